// Details of one run, its figures for the window in the address, refreshed until the run is over, and its newest live sample.

import { ApiError, problemOf } from '../api/client'
import { api } from '../api/endpoints'
import type { Listener } from '../api/events'
import { live } from '../api/live.svelte'
import type { LiveSample, Problem, RunDetail, RunFigures, RunSummary } from '../api/types'
import { askOf, windowInWords } from './figures'
import { isOver, labelsOf, stepsOf } from './pipeline'

/** Interval between two requests of the pages of a run until the run is over. */
const REFRESH_MS = 1000
/** Interval between two requests of a card without figures: a page may have several cards. */
const CARD_REFRESH_MS = 5000

/** Request for the figures of the window in the address, as text. */
const wanted = (over: boolean) => JSON.stringify(askOf(over))

/** Details of the last run shown: another page of the same run shows them at once. */
let seen: RunDetail | null = null

export class RunFeed {
  detail = $state.raw<RunDetail | null>(null)
  /** Figures of the pages of a run. */
  figures = $state.raw<RunFigures | null>(null)
  problem = $state.raw<Problem | null>(null)
  over = $derived(this.detail !== null && isOver(this.detail.state))
  snapshot = $derived(this.detail?.snapshot ?? null)
  /** Window of `figures` in words. */
  window = $derived(this.figures ? windowInWords(this.figures.window) : '')
  steps = $derived(this.figures?.queues.length ? stepsOf(this.figures) : this.snapshot ? stepsOf(this.snapshot) : [])
  labels = $derived(labelsOf(this.steps))
  sample = $state.raw<LiveSample | null>(null)
  /** Arrival time of the newest live sample on the clock of `performance.now()`. */
  heard_ms = $state<number | null>(null)
  #withFigures = false
  /** Window of the last request. */
  #asked = ''
  #fetched_ms = 0
  #fetching: AbortController | null = null
  /** Set when live events may have been missed during a request. */
  #missed = false
  /** Set once details and figures were read after the run's end: they no longer change. */
  #isFinal = false
  #later: number | undefined
  #unfollow: () => void = () => {}
  #listeners = new Set<Listener>()

  constructor(readonly id: string) {
    if (seen?.id === id) this.detail = seen
  }

  /** Follows the run until the returned function is called. `withFigures` also fetches the figures. */
  start(withFigures = false): () => void {
    this.#withFigures = withFigures
    // A card waits for the event stream, which starts with a refetch. Without a stream, it fetches them after the interval.
    if (withFigures) void this.refresh()
    else this.#later = window.setTimeout(() => void this.refresh(), CARD_REFRESH_MS)
    this.#unfollow = live.follow(this.id, {
      sample: (sample) => this.#receive(sample),
      state: (run) => this.#change(run),
      end: (run) => {
        this.#change(run)
        this.#catchUp()
      },
      log: (run, entry) => this.#listeners.forEach(({ log }) => log?.(run, entry)),
      refetch: () => this.#catchUp(),
    })
    return () => {
      this.#unfollow()
      this.#fetching?.abort()
      window.clearTimeout(this.#later)
    }
  }

  /** Passes samples, lines of the log and refetches on until the returned function is called. */
  listen(listener: Listener): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  refetch(): void {
    this.sample = null
    void this.refresh()
    this.#listeners.forEach(({ refetch }) => refetch?.())
  }

  /** Fetches everything again, since live events may have been missed; a pending request is completed first. */
  #catchUp(): void {
    if (this.#isFinal && !this.problem) return
    if (this.#fetching) this.#missed = true
    else this.refetch()
  }

  /** Fetches details and figures and shows them together. A failure sets `problem` and keeps the earlier details and figures. */
  async refresh(): Promise<void> {
    window.clearTimeout(this.#later)
    this.#fetching?.abort()
    const fetching = new AbortController()
    const { signal } = fetching
    this.#fetching = fetching
    this.#fetched_ms = performance.now()
    const figuresOf = (over: boolean) => {
      this.#asked = wanted(over)
      return this.#withFigures ? api.figures(this.id, askOf(over), signal) : null
    }
    try {
      // The default window depends on the state of the run. Until the state is known, the run is assumed to be over.
      const both = await Promise.all([api.run(this.id, signal), figuresOf(this.over || !this.detail)])
      if (!this.detail && this.#asked !== wanted(isOver(both[0].state))) {
        this.show(both[0])
        both[1] = await figuresOf(this.over)
      }
      this.figures = both[1]
      this.#isFinal = isOver(both[0].state) && (!both[1] || isOver(both[1].state))
      this.show(both[0])
      this.problem = null
    } catch (cause) {
      if (signal.aborted) return
      this.problem = problemOf(cause)
      // A missing run sends no events. A server that does not answer is asked again later.
      if (this.problem.status === 404) this.#unfollow()
      if (!(cause instanceof ApiError) || cause.problem.status === 0 || cause.problem.status >= 500) {
        this.#later = window.setTimeout(() => void this.refresh(), REFRESH_MS)
      }
    } finally {
      if (this.#fetching === fetching) this.#fetching = null
    }
    if (this.#missed && !this.#fetching) {
      this.#missed = false
      this.#catchUp()
    }
  }

  /** Fetches the figures again if the address or the end of the run has changed the window. */
  look(): void {
    if (this.detail && wanted(this.over) !== this.#asked) void this.refresh()
  }

  show(detail: RunDetail): void {
    this.detail = detail
    seen = detail
  }

  /** Seconds from the run's start to its newest live sample or details. */
  elapsed(): number {
    const elapsed_s = this.detail?.elapsed_s ?? 0
    return this.over ? elapsed_s : Math.max(elapsed_s, this.sample?.t1_s ?? 0)
  }

  #receive(sample: LiveSample): void {
    if (this.sample && sample.t1_s <= this.sample.t1_s) return
    this.sample = sample
    this.heard_ms = performance.now()
    this.#listeners.forEach(({ sample: receive }) => receive?.(sample))
    // Requests do not overlap: otherwise each live sample would cancel a slow request.
    if (this.#fetching === null && performance.now() - this.#fetched_ms > (this.#withFigures ? REFRESH_MS : CARD_REFRESH_MS)) void this.refresh()
  }

  #change(run: RunSummary): void {
    const { detail } = this
    if (detail) this.show({ ...detail, ...run })
    // The summary has all figures of a card except those of queues, which are fetched at intervals.
    if (this.#isFinal || (!this.#withFigures && detail?.state === run.state)) return
    if (this.#fetching) this.#missed = true
    else void this.refresh()
  }
}
