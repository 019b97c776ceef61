// What a page asks of the server: figures to show, and things to do.

import { onDestroy } from 'svelte'

import { NO_ANSWER, problemOf } from '../api/client'
import { reach } from '../api/reach.svelte'
import type { Problem } from '../api/types'

/** Asks for one thing, never twice at once, so that no answer overtakes a newer one and a slow one is not given up for the next. */
export class Request<T> {
  /** The newest answer; stays when a later request fails. */
  answer = $state.raw<T | null>(null)
  /** Why the last request failed. */
  problem = $state.raw<Problem | null>(null)
  #asking: AbortController | null = null
  #again = false

  constructor(private readonly fetch: (signal: AbortSignal) => Promise<T>) {}

  get isAsking(): boolean {
    return this.#asking !== null
  }

  /** Asks; where an answer is awaited, once more after it: it may be older than the reason to ask. */
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

  /** Asks without waiting for earlier answers. */
  anew(): Promise<void> {
    this.end()
    return this.ask()
  }

  /** Gives up the answers that are awaited. */
  end(): void {
    this.#asking?.abort()
    this.#asking = null
  }
}

/** A request that ends with the component that makes it. */
export function request<T>(fetch: (signal: AbortSignal) => Promise<T>): Request<T> {
  const made = new Request(fetch)
  onDestroy(() => made.end())
  return made
}

/** Does something again and again while the tab is looked at; gives the end of that. */
export function everySeen(after_ms: number, task: () => void): () => void {
  const timer = window.setInterval(() => {
    if (document.visibilityState === 'visible') task()
  }, after_ms)
  return () => window.clearInterval(timer)
}

/** Does what a button says. */
export class Action {
  busy = $state(false)
  /** What failed, and why. */
  failure = $state.raw<{ title: string; problem: Problem } | null>(null)

  /** `title` says what could not be done. Resolves to whether it was done. */
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
