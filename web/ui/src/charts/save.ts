/** Gives a file to the reader. */
export function save(name: string, content: Blob | string, type = 'text/plain'): void {
  const blob = typeof content === 'string' ? new Blob([content], { type }) : content
  const link = document.createElement('a')
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  // The browser reads the address after the click.
  window.setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
}

/** A name for a file made of what it is about: letters, digits and dashes. */
export function fileName(parts: string[], extension: string): string {
  return `${parts.map((part) => part.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '')).join('_')}.${extension}`
}
