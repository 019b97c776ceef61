// One run as it goes on: its details, refreshed while it lives, and its newest live sample.

import { ApiError, problemOf } from '../api/client'
import { api } from '../api/endpoints'
import { live } from '../api/live.svelte'
import type { LiveSample, LogEntry, Problem, RunDetail, RunSummary } from '../api/types'
import { isOver, labelsOf, stepsOf } from './pipeline'

/** How often the figures since the start are fetched while the run lives. */
const REFRESH_MS = 2000
/** What a mean of now is taken over. */
export const RECENT_S = 10
/** The live samples in that. */
const RECENT = RECENT_S * 4

/** The last run seen, so that going from one of its pages to the next does not begin with nothing. */
let seen: RunDetail | null = null

export class RunFeed {
  detail = $state.raw<RunDetail | null>(null)
  problem = $state.raw<Problem | null>(null)
  over = $derived(this.detail !== null && isOver(this.detail.state))
  snapshot = $derived(this.detail?.snapshot ?? null)
  steps = $derived(this.snapshot ? stepsOf(this.snapshot) : [])
  /** Names of the steps, by their ids. */
  labels = $derived(labelsOf(this.steps))
  /** The newest live sample. */
  sample = $state.raw<LiveSample | null>(null)
  /** Live samples of the last `RECENT_S` seconds. */
  recent = $state.raw<LiveSample[]>([])
  /** When the newest sample came, on the page's own clock. */
  heard_ms = $state<number | null>(null)
  #fetched_ms = 0
  #fetching: AbortController | null = null
  #later: number | undefined
  #unfollow: () => void = () => {}
  #onSample = new Set<(sample: LiveSample) => void>()
  #onRefetch = new Set<() => void>()
  #onLog = new Set<(entry: LogEntry) => void>()

  constructor(readonly id: string) {
    if (seen?.id === id) this.detail = seen
  }

  /** Follows the run until the function that it returns is called. */
  start(): () => void {
    void this.refresh()
    this.#unfollow = live.follow(this.id, {
      sample: (sample) => this.#receive(sample),
      state: (run) => this.#change(run),
      end: (run) => {
        this.#change(run)
        this.refetch()
      },
      log: (_, entry) => this.#onLog.forEach((receive) => receive(entry)),
      refetch: () => this.refetch(),
    })
    return () => {
      this.#unfollow()
      this.#fetching?.abort()
      window.clearTimeout(this.#later)
    }
  }

  onSample(receive: (sample: LiveSample) => void): () => void {
    this.#onSample.add(receive)
    return () => this.#onSample.delete(receive)
  }

  onRefetch(fetch: () => void): () => void {
    this.#onRefetch.add(fetch)
    return () => this.#onRefetch.delete(fetch)
  }

  onLog(receive: (entry: LogEntry) => void): () => void {
    this.#onLog.add(receive)
    return () => this.#onLog.delete(receive)
  }

  /** Fetches everything again: something may have been missed. */
  refetch(): void {
    this.recent = []
    this.sample = null
    void this.refresh()
    this.#onRefetch.forEach((fetch) => fetch())
  }

  /** Fetches the details. A failure leaves what is shown, and sets `problem`. */
  async refresh(): Promise<void> {
    this.#fetching?.abort()
    const fetching = new AbortController()
    this.#fetching = fetching
    this.#fetched_ms = performance.now()
    try {
      this.show(await api.run(this.id, fetching.signal))
      this.problem = null
    } catch (cause) {
      if (fetching.signal.aborted) return
      this.problem = problemOf(cause)
      // A run that is not there stays away, and nothing can be heard of it; a server that does not answer may come back.
      if (this.problem.status === 404) this.#unfollow()
      if (!(cause instanceof ApiError) || cause.problem.status === 0 || cause.problem.status >= 500) {
        this.#later = window.setTimeout(() => void this.refresh(), REFRESH_MS)
      }
    } finally {
      if (this.#fetching === fetching) this.#fetching = null
    }
  }

  show(detail: RunDetail): void {
    this.detail = detail
    seen = detail
  }

  /** Seconds since the run's start, as of its newest sample or details. */
  elapsed(): number {
    const elapsed_s = this.detail?.elapsed_s ?? 0
    return this.over ? elapsed_s : Math.max(elapsed_s, this.sample?.t1_s ?? 0)
  }

  #receive(sample: LiveSample): void {
    if (this.sample && sample.t1_s <= this.sample.t1_s) return
    this.sample = sample
    this.recent = [...this.recent.slice(1 - RECENT), sample]
    this.heard_ms = performance.now()
    this.#onSample.forEach((receive) => receive(sample))
    // A slow answer is waited for: each sample would give it up for the next.
    if (this.#fetching === null && performance.now() - this.#fetched_ms > REFRESH_MS) void this.refresh()
  }

  #change(run: RunSummary): void {
    if (this.detail) this.show({ ...this.detail, ...run })
    void this.refresh()
  }
}
