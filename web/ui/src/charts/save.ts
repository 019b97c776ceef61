/** Saves a file through the browser's download. */
export function save(name: string, content: Blob | string, type = 'text/plain'): void {
  const blob = typeof content === 'string' ? new Blob([content], { type }) : content
  const link = document.createElement('a')
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  // The browser reads the URL after the click.
  window.setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
}

/** File name of letters, digits and dashes, made of the parts. */
export function fileName(parts: string[], extension: string): string {
  return `${parts.map((part) => part.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '')).join('_')}.${extension}`
}
