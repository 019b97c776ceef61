// One run: its details and its figures of the window in the address, refreshed while it lives, and its newest live sample.

import { ApiError, problemOf } from '../api/client'
import { api } from '../api/endpoints'
import { live } from '../api/live.svelte'
import type { LiveSample, LogEntry, Problem, RunDetail, RunFigures, RunSummary } from '../api/types'
import { askOf, windowInWords } from './figures'
import { isOver, labelsOf, stepsOf } from './pipeline'

/** Interval between two readings while the run lives. */
const REFRESH_MS = 1000

/** The last run seen: its next page begins with it. */
let seen: RunDetail | null = null

export class RunFeed {
  detail = $state.raw<RunDetail | null>(null)
  /** All figures that a page shows; their window is in them. */
  figures = $state.raw<RunFigures | null>(null)
  problem = $state.raw<Problem | null>(null)
  over = $derived(this.detail !== null && isOver(this.detail.state))
  snapshot = $derived(this.detail?.snapshot ?? null)
  /** Window of the figures that the page shows, in words. */
  window = $derived(this.figures ? windowInWords(this.figures.window) : '')
  steps = $derived(this.figures?.queues.length ? stepsOf(this.figures) : this.snapshot ? stepsOf(this.snapshot) : [])
  labels = $derived(labelsOf(this.steps))
  sample = $state.raw<LiveSample | null>(null)
  /** Arrival of the newest sample, on the page's own clock. */
  heard_ms = $state<number | null>(null)
  #withFigures = false
  /** The window that was asked for last. */
  #asked = ''
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

  /** Follows the run until the returned function is called, on the pages of a run with the figures of the window. */
  start(withFigures = false): () => void {
    this.#withFigures = withFigures
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
    this.sample = null
    void this.refresh()
    this.#onRefetch.forEach((fetch) => fetch())
  }

  /** Fetches details and figures, and shows both together. A failure leaves the earlier ones, and sets `problem`. */
  async refresh(): Promise<void> {
    this.#fetching?.abort()
    const fetching = new AbortController()
    const { signal } = fetching
    this.#fetching = fetching
    this.#fetched_ms = performance.now()
    try {
      // The window of a run depends on its state: the first time, the state comes first.
      let detail: RunDetail | Promise<RunDetail> = api.run(this.id, signal)
      if (!this.detail) this.show((detail = await detail))
      this.#asked = this.#wanted()
      const both = await Promise.all([detail, this.#withFigures ? api.figures(this.id, askOf(this.over), signal) : null])
      this.figures = both[1]
      this.show(both[0])
      this.problem = null
    } catch (cause) {
      if (signal.aborted) return
      this.problem = problemOf(cause)
      // A run that does not exist sends no events; a server that does not answer may come back.
      if (this.problem.status === 404) this.#unfollow()
      if (!(cause instanceof ApiError) || cause.problem.status === 0 || cause.problem.status >= 500) {
        this.#later = window.setTimeout(() => void this.refresh(), REFRESH_MS)
      }
    } finally {
      if (this.#fetching === fetching) this.#fetching = null
    }
  }

  /** Fetches the figures again where the address, or the end of the run, asks for another window than the last one. */
  look(): void {
    if (this.#wanted() !== this.#asked && this.#asked) void this.refresh()
  }

  #wanted(): string {
    return this.detail ? JSON.stringify(askOf(this.over)) : ''
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
    this.heard_ms = performance.now()
    this.#onSample.forEach((receive) => receive(sample))
    // Requests do not overlap: a slow answer would be given up again and again.
    if (this.#fetching === null && performance.now() - this.#fetched_ms > REFRESH_MS) void this.refresh()
  }

  #change(run: RunSummary): void {
    if (this.detail) this.show({ ...this.detail, ...run })
    void this.refresh()
  }
}
