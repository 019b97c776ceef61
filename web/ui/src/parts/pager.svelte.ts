// A list that is fetched a page at a time.

import { problemOf } from '../api/client'
import type { Page, Problem } from '../api/types'

export class Pager<T> {
  items = $state.raw<T[]>([])
  next = $state.raw<string | null>(null)
  problem = $state.raw<Problem | null>(null)
  loading = $state(false)
  /** Whether an answer was had since the last `start`. */
  ready = $state(false)
  #fetching: AbortController | null = null
  #fetch: ((cursor: string | null, signal: AbortSignal) => Promise<Page<T>>) | null = null

  /** Fetches the first page in a new way. What is shown stays until the answer comes. */
  async start(fetch: (cursor: string | null, signal: AbortSignal) => Promise<Page<T>>): Promise<void> {
    this.#fetch = fetch
    await this.#page(null)
  }

  /** Fetches the first page again. */
  async again(): Promise<void> {
    if (this.#fetch) await this.#page(null)
  }

  /** Fetches the page after what is shown. */
  async more(): Promise<void> {
    if (this.next !== null && !this.loading) await this.#page(this.next)
  }

  /** Changes what is shown, without asking anybody. */
  change(items: T[]): void {
    this.items = items
  }

  async #page(cursor: string | null): Promise<void> {
    if (!this.#fetch) return
    this.#fetching?.abort()
    const fetching = new AbortController()
    this.#fetching = fetching
    this.loading = true
    try {
      const page = await this.#fetch(cursor, fetching.signal)
      this.items = cursor === null ? page.items : [...this.items, ...page.items]
      this.next = page.next
      this.problem = null
      this.ready = true
    } catch (cause) {
      if (!fetching.signal.aborted) this.problem = problemOf(cause)
    } finally {
      if (this.#fetching === fetching) this.loading = false
    }
  }
}
