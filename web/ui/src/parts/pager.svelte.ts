// A list that is fetched a page at a time.

import { NO_ANSWER, problemOf } from '../api/client'
import { reach } from '../api/reach.svelte'
import type { Page, Problem } from '../api/types'

type Fetch<T> = (cursor: string | null, signal: AbortSignal) => Promise<Page<T>>

export class Pager<T> {
  items = $state.raw<T[]>([])
  next = $state.raw<string | null>(null)
  problem = $state.raw<Problem | null>(null)
  loading = $state(false)
  /** Whether an answer was had since the last `start`. */
  ready = $state(false)
  #fetching: AbortController | null = null
  #fetch: Fetch<T> | null = null

  /** Fetches the first page in a new way; gives whether it came. What is shown stays until then. */
  start(fetch: Fetch<T>): Promise<boolean> {
    this.#fetch = fetch
    return this.#read(null, 0)
  }

  /** Fetches again as much as is shown; gives whether it came. */
  again(): Promise<boolean> {
    return this.#read(null, this.items.length)
  }

  /** Fetches the page after what is shown; gives whether it came. Does nothing where there is none, or while pages are fetched. */
  async more(): Promise<boolean> {
    return this.next !== null && !this.loading && (await this.#read(this.next, 0))
  }

  /** Waits for no answer any more, and asks for none. */
  end(): void {
    this.#fetch = null
    this.#fetching?.abort()
  }

  /** Fetches page after page until `least` items are there, and shows them at once; whatever was being fetched is not waited for. */
  async #read(from: string | null, least: number): Promise<boolean> {
    const fetch = this.#fetch
    if (!fetch) return false
    this.#fetching?.abort()
    const fetching = new AbortController()
    this.#fetching = fetching
    this.loading = true
    try {
      const read: T[] = []
      let cursor = from
      do {
        const page = await fetch(cursor, fetching.signal)
        if (fetching.signal.aborted) return false
        read.push(...page.items)
        cursor = page.next
      } while (cursor !== null && read.length < least)
      this.items = from === null ? read : [...this.items, ...read]
      this.next = cursor
      this.problem = null
      this.ready = true
      return true
    } catch (cause) {
      if (fetching.signal.aborted) return false
      this.problem = problemOf(cause)
      if (this.problem.type === NO_ANSWER) reach.onBack(() => fetching.signal.aborted || void this.#read(from, least))
      return false
    } finally {
      if (this.#fetching === fetching) this.loading = false
    }
  }
}
