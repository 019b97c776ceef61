// A paged list whose rows can be selected. Its history entry keeps the selection, the number of rows and the scroll position.

import type { Page } from '../api/types'
import { Pager } from './pager.svelte'

/** State of a list in its history entry, restored after a reload or a return to the page. */
interface Kept {
  rows: number
  scroll: number
  selected: string[]
}

export class List<Row extends { id: string }> extends Pager<Row> {
  #kept: Kept | null = (window.history.state as { list?: Kept } | null)?.list ?? null
  #selected = $state.raw<ReadonlySet<string>>(new Set(this.#kept?.selected))
  /** Id of the row that was pressed last: a range begins there. */
  #pressed = ''
  /** Selected rows among the shown rows, in the order of the list. */
  selected = $derived(this.items.filter(({ id }) => this.#selected.has(id)))

  constructor() {
    super(({ id }) => id)
  }

  /** Fetches the list; the first time, as many rows as the history entry had. */
  override async start(fetch: (cursor: string | null, signal: AbortSignal, limit: number) => Promise<Page<Row>>): Promise<boolean> {
    const kept = this.#kept
    const done = await super.start(fetch, kept?.rows)
    if (done && kept) {
      this.#kept = null
      // The rows are drawn before the next frame.
      requestAnimationFrame(() => window.scrollTo(0, kept.scroll))
    }
    return done
  }

  isSelected({ id }: Row): boolean {
    return this.#selected.has(id)
  }

  /** Selects or clears a row; with `range` also the rows between it and the row pressed before. */
  select(row: Row, on: boolean, range = false): void {
    const [from, to] = [this.items.findIndex(({ id }) => id === this.#pressed), this.items.indexOf(row)].sort((a, b) => a - b) as [number, number]
    this.selectAll(on, range && from >= 0 ? this.items.slice(from, to + 1) : [row])
    this.#pressed = row.id
  }

  selectAll(on: boolean, rows: readonly Row[] = this.items): void {
    const ids = new Set(this.#selected)
    for (const { id } of rows) {
      if (on) ids.add(id)
      else ids.delete(id)
    }
    this.#selected = ids
  }

  /** Keeps the state of the list in the current history entry until the returned function is called. */
  keep(): () => void {
    const save = () => {
      if (this.#kept || !this.ready) return
      const list: Kept = { rows: this.items.length, scroll: window.scrollY, selected: this.selected.map(({ id }) => id) }
      window.history.replaceState({ list }, '')
    }
    const saving = new AbortController()
    const { signal } = saving
    // Before a click, which may leave the page; and after each scroll and selection, since keys may leave it too.
    document.addEventListener('click', save, { capture: true, signal })
    document.addEventListener('change', save, { signal })
    document.addEventListener('scrollend', save, { signal })
    return () => {
      saving.abort()
      this.end()
    }
  }
}
