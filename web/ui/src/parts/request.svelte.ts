// Requests for the data of a page, and actions of its buttons.

import { onDestroy, onMount } from 'svelte'

import { NO_ANSWER, problemOf } from '../api/client'
import { reach } from '../api/reach.svelte'
import type { Problem } from '../api/types'

/** Sends one request at a time, so that an old answer never replaces a newer one and a slow answer is still shown. */
export class Request<T> {
  /** Newest answer. It stays when a later request fails. */
  answer = $state.raw<T | null>(null)
  /** Problem of the last request; `null` after a success. */
  problem = $state.raw<Problem | null>(null)
  #asking: AbortController | null = null
  #again = false

  constructor(private readonly fetch: (signal: AbortSignal) => Promise<T>) {}

  get isAsking(): boolean {
    return this.#asking !== null
  }

  /** Sends the request. While one is pending, sends another after it, since the pending answer may be outdated. */
  async ask(): Promise<void> {
    this.#again = true
    if (this.#asking) return
    const asking = new AbortController()
    this.#asking = asking
    while (this.#again && !asking.signal.aborted) {
      this.#again = false
      await this.#ask(asking.signal)
    }
    if (this.#asking === asking) this.#asking = null
  }

  async #ask(signal: AbortSignal): Promise<void> {
    try {
      const answer = await this.fetch(signal)
      if (signal.aborted) return
      this.answer = answer
      this.problem = null
    } catch (cause) {
      if (signal.aborted) return
      this.problem = problemOf(cause)
      if (this.problem.type === NO_ANSWER) reach.onBack(() => signal.aborted || void this.ask())
    }
  }

  anew(): Promise<void> {
    this.end()
    return this.ask()
  }

  end(): void {
    this.#asking?.abort()
    this.#asking = null
  }
}

/** Creates a request that is cancelled when the calling component is destroyed. */
export function request<T>(fetch: (signal: AbortSignal) => Promise<T>): Request<T> {
  const made = new Request(fetch)
  onDestroy(() => made.end())
  return made
}

/** Creates a request that is sent when the calling component is mounted, then repeated while the tab is visible and as long as `isWanted`. */
export function polled<T>(fetch: (signal: AbortSignal) => Promise<T>, every_ms: number, isWanted = () => true): Request<T> {
  const made = request(fetch)
  onMount(() => {
    void made.ask()
    return everySeen(every_ms, () => isWanted() && void made.ask())
  })
  return made
}

/** Repeats a task while the tab is visible, until the returned function is called. */
export function everySeen(after_ms: number, task: () => unknown): () => void {
  const timer = window.setInterval(() => {
    if (document.visibilityState === 'visible') task()
  }, after_ms)
  return () => window.clearInterval(timer)
}

export class Action {
  busy = $state(false)
  /** Title and problem of the last action; `null` after a success. */
  failure = $state.raw<{ title: string; problem: Problem } | null>(null)

  /** Runs a task; resolves to true after a success. `title` is the title of a failure. */
  async run(title: string, task: () => Promise<unknown>): Promise<boolean> {
    this.busy = true
    this.failure = null
    try {
      await task()
    } catch (cause) {
      this.failure = { title, problem: problemOf(cause) }
    } finally {
      this.busy = false
    }
    return this.failure === null
  }
}
