// A list of a page: its entries, the selected ones, and its place in the browser's history.

import type { Page } from '../api/types'
import { Pager } from './pager.svelte'

/** Part of a list that its history entry keeps: a return and a reload show it again. */
interface Kept {
  rows: number
  scroll: number
  selected: string[]
}

export class List<Row extends { id: string }> extends Pager<Row> {
  #kept: Kept | null = (window.history.state as { list?: Kept } | null)?.list ?? null
  #selected = $state.raw<ReadonlySet<string>>(new Set(this.#kept?.selected))
  /** Row that was pressed last: a range begins there. */
  #pressed = ''
  /** Selected rows among those shown, in their order. */
  selected = $derived(this.items.filter(({ id }) => this.#selected.has(id)))

  constructor() {
    super(({ id }) => id)
  }

  /** Fetches the list; the first time with as many rows as its history entry had. */
  override async start(fetch: (cursor: string | null, signal: AbortSignal, limit: number) => Promise<Page<Row>>): Promise<boolean> {
    const kept = this.#kept
    const done = await super.start(fetch, kept?.rows)
    if (done && kept) {
      this.#kept = null
      // After the rows are drawn.
      requestAnimationFrame(() => window.scrollTo(0, kept.scroll))
    }
    return done
  }

  isSelected({ id }: Row): boolean {
    return this.#selected.has(id)
  }

  /** Selects or clears a row; with `range` also the rows between it and the one pressed before. */
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

  /** Keeps the list's place in the current history entry until the returned function is called. */
  keep(): () => void {
    const save = () => {
      if (this.#kept || !this.ready) return
      const list: Kept = { rows: this.items.length, scroll: window.scrollY, selected: this.selected.map(({ id }) => id) }
      window.history.replaceState({ list }, '')
    }
    // Before a click that leaves the page, and for departures by keys after each scroll and each selection.
    document.addEventListener('click', save, true)
    document.addEventListener('change', save)
    document.addEventListener('scrollend', save)
    return () => {
      document.removeEventListener('click', save, true)
      document.removeEventListener('change', save)
      document.removeEventListener('scrollend', save)
      this.end()
    }
  }
}
