// A list that is fetched page by page.

import { NO_ANSWER, problemOf } from '../api/client'
import { reach } from '../api/reach.svelte'
import type { Page, Problem } from '../api/types'

/** Number of entries of a page, and the maximum that the server returns at once. */
const [PAGE, MOST] = [50, 200]

type Fetch<T> = (cursor: string | null, signal: AbortSignal, limit: number) => Promise<Page<T>>

export class Pager<T> {
  items = $state.raw<T[]>([])
  next = $state.raw<string | null>(null)
  problem = $state.raw<Problem | null>(null)
  loading = $state(false)
  /** Set by the first answer. */
  ready = $state(false)
  #fetching: AbortController | null = null
  #fetch: Fetch<T> | null = null

  /** `keyOf` identifies entries: an entry that moves to the next page between two requests is then shown once. */
  constructor(private readonly keyOf: (item: T) => unknown = (item) => item) {}

  /** Fetches at least `least` entries with a new function; resolves to true after a success. The old entries stay until then. */
  start(fetch: Fetch<T>, least = 0): Promise<boolean> {
    this.#fetch = fetch
    return this.#read(null, least)
  }

  /** Fetches as many entries as are shown again; resolves to true after a success. */
  again(): Promise<boolean> {
    return this.#read(null, this.items.length)
  }

  /** Fetches the next page; resolves to true after a success. Does nothing at the end of the list and while a request is pending. */
  async more(): Promise<boolean> {
    return this.next !== null && !this.loading && (await this.#read(this.next, 0))
  }

  /** Cancels the current request and prevents further ones. */
  end(): void {
    this.#fetch = null
    this.#fetching?.abort()
  }

  /** Fetches pages until there are `least` entries, and shows them together. Cancels the pending request. */
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
        const page = await fetch(cursor, fetching.signal, Math.min(MOST, Math.max(PAGE, least - read.length)))
        if (fetching.signal.aborted) return false
        read.push(...page.items)
        cursor = page.next
      } while (cursor !== null && read.length < least)
      const items = from === null ? read : [...this.items, ...read]
      this.items = [...new Map(items.map((item) => [this.keyOf(item), item])).values()]
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
