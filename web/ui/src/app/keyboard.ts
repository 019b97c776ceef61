export interface Shortcut {
  /** Keys to press in this order: `['g', 'r']`. */
  keys: string[]
  does: string
  act: () => void
}

const NEXT_KEY_MS = 1200

/** Watches for shortcuts outside of fields; returns a function that stops watching. */
export function watchKeys(shortcuts: readonly Shortcut[]): () => void {
  let typed: string[] = []
  let since = 0
  const onKey = (event: KeyboardEvent) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isField(event.target)) return
    if (event.timeStamp - since > NEXT_KEY_MS) typed = []
    since = event.timeStamp
    typed = [...typed, event.key]
    const hit = shortcuts.find(({ keys }) => same(keys, typed)) ?? shortcuts.find(({ keys }) => same(keys, [event.key]))
    if (hit) {
      typed = []
      event.preventDefault()
      hit.act()
    } else if (!shortcuts.some(({ keys }) => same(keys.slice(0, typed.length), typed))) {
      typed = []
    }
  }
  document.addEventListener('keydown', onKey)
  return () => document.removeEventListener('keydown', onKey)
}

const same = (a: string[], b: string[]): boolean => a.length === b.length && a.every((key, place) => key === b[place])

function isField(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest('input, textarea, select, [contenteditable="true"], .cm-editor, [data-keys]') !== null
}
