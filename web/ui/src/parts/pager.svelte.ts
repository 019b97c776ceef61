// A list that is fetched a page at a time.

import { NO_ANSWER, problemOf } from '../api/client'
import { reach } from '../api/reach.svelte'
import type { Page, Problem } from '../api/types'

/** Entries of a page, and the most that the server gives at once. */
const [PAGE, MOST] = [50, 200]

type Fetch<T> = (cursor: string | null, signal: AbortSignal, limit: number) => Promise<Page<T>>

export class Pager<T> {
  items = $state.raw<T[]>([])
  next = $state.raw<string | null>(null)
  problem = $state.raw<Problem | null>(null)
  loading = $state(false)
  /** Set by the first answer after `start`. */
  ready = $state(false)
  #fetching: AbortController | null = null
  #fetch: Fetch<T> | null = null

  /** `keyOf` tells entries apart: one that moves to the next page while that is fetched is shown once. */
  constructor(private readonly keyOf?: (item: T) => string) {}

  /** Fetches the list in a new way until `least` entries are there; resolves to true if it succeeds. The old entries stay until then. */
  start(fetch: Fetch<T>, least = 0): Promise<boolean> {
    this.#fetch = fetch
    return this.#read(null, least)
  }

  /** Fetches as many entries as are shown once more; resolves to true if it succeeds. */
  again(): Promise<boolean> {
    return this.#read(null, this.items.length)
  }

  /** Fetches the page after the last entry; resolves to true if it succeeds. Does nothing at the end, and while pages are fetched. */
  async more(): Promise<boolean> {
    return this.next !== null && !this.loading && (await this.#read(this.next, 0))
  }

  /** Cancels the current request and prevents further ones. */
  end(): void {
    this.#fetch = null
    this.#fetching?.abort()
  }

  /** Fetches page after page until `least` entries are there, and shows them together. Cancels the request before it. */
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
      this.items = this.#once(from === null ? read : [...this.items, ...read])
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

  #once(items: T[]): T[] {
    const { keyOf } = this
    return keyOf ? [...new Map(items.map((item) => [keyOf(item), item])).values()] : items
  }
}
