// The series of one run for the window that is looked at, and the readiness of the whole run beside it.

import { problemOf } from '../api/client'
import { api } from '../api/endpoints'
import type { Metric, Problem } from '../api/types'
import { bucketFor, joined, tableOf, wholeBuckets, type SeriesTable } from '../charts/series'
import { rangeOf, type Window } from '../charts/window'
import { Request } from '../parts/request.svelte'
import type { RunFeed } from './feed.svelte'

const METRICS: Metric[] = [
  'ave_time_s',
  'tasks_per_s',
  'failures_per_s',
  'busy',
  'thread_wait',
  'permit_wait',
  'blocked',
  'readiness',
  'qps',
  'ave_get_time_s',
  'ave_put_time_s',
  'starved',
]
/** Buckets across a chart. */
const POINTS = 400
/** While following: in less than a second most pipelines finish a handful of items, and rates become noise. */
const LEAST_FOLLOWED_S = 1
/** A run that is over and shorter than this is shown as finely as it was measured. */
const SHORT_S = 30
/** How much of the run goes by before its overview is fetched again, and how long at least. */
const OVERVIEW_SHARE = 0.01
const OVERVIEW_LEAST_S = 2

/**
 * All figures shown come from the server's sums in buckets of one width. What is new is fetched as buckets too: a live sample
 * says only that there is something new. A mean of the samples' means would not be the mean.
 */
export class RunSeries {
  problem = $state.raw<Problem | null>(null)
  loading = $state(true)
  table = $state.raw<SeriesTable | null>(null)
  /** Readiness of the whole run. */
  overview = $state.raw<SeriesTable | null>(null)
  #window: Window | null = null
  /** The width that was asked for when `table` was fetched. */
  #asked_s = 0
  #loading: AbortController | null = null
  #adding = false
  #overview = new Request((signal) => this.#readOverview(signal))

  constructor(private readonly feed: RunFeed) {}

  start(): () => void {
    const ends = [
      this.feed.onSample(({ t1_s }) => {
        void this.#add(t1_s)
        void this.#refreshOverview(t1_s)
      }),
      this.feed.onRefetch(() => {
        if (this.#window) void this.load(this.#window)
        void this.loadOverview()
      }),
    ]
    return () => {
      ends.forEach((end) => end())
      this.#window = null
      this.#loading?.abort()
      this.#overview.end()
    }
  }

  /** Where the run ended, if it did. */
  #end(elapsed_s: number): number {
    return this.feed.over ? elapsed_s : Infinity
  }

  /** Whether the run is over so soon that whole seconds would say little of it. */
  #isShort(elapsed_s: number): boolean {
    return this.feed.over && elapsed_s < SHORT_S
  }

  /** Fetches what a window shows. */
  async load(window: Window): Promise<void> {
    this.#window = window
    this.#loading?.abort()
    const loading = new AbortController()
    this.#loading = loading
    const elapsed_s = this.feed.elapsed()
    const { from_s, to_s } = rangeOf(window, elapsed_s)
    const bucket_s = bucketFor(to_s - from_s, POINTS, window.follow && !this.#isShort(elapsed_s) ? LEAST_FOLLOWED_S : 0)
    // The last bucket may end behind the window, and behind the end of a run that is over.
    const last_s = Math.ceil(Math.min(to_s, elapsed_s) / bucket_s - 1e-6) * bucket_s
    const wanted = wholeBuckets(from_s, this.feed.over ? last_s : Math.min(last_s, elapsed_s), bucket_s)
    if (wanted.points === 0) {
      this.loading = false
      return
    }
    this.loading = true
    const ended_s = this.#end(elapsed_s)
    try {
      this.table = tableOf(await api.series(this.feed.id, { ...wanted, metrics: METRICS }, loading.signal), ended_s)
      this.#asked_s = bucket_s
      this.problem = null
      this.loading = false
    } catch (cause) {
      if (loading.signal.aborted) return
      this.problem = problemOf(cause)
      this.loading = false
    }
  }

  /** Fetches the readiness of the whole run; once more where that is being done, since the run may have ended meanwhile. */
  loadOverview(): Promise<void> {
    return this.#overview.ask()
  }

  async #readOverview(signal: AbortSignal): Promise<void> {
    const elapsed_s = this.feed.elapsed()
    const bucket_s = bucketFor(elapsed_s, POINTS, this.#isShort(elapsed_s) ? 0 : LEAST_FOLLOWED_S)
    const wanted = wholeBuckets(0, this.feed.over ? Math.ceil(elapsed_s / bucket_s - 1e-6) * bucket_s : elapsed_s, bucket_s)
    if (wanted.points === 0) return
    const ended_s = this.#end(elapsed_s)
    // A failure is shown for the window alone; this strip keeps what it has until the next time.
    const read = await api.series(this.feed.id, { ...wanted, metrics: ['readiness'] }, signal)
    if (!signal.aborted) this.overview = tableOf(read, ended_s)
  }

  /** Fetches the buckets that are complete by `now_s` and not yet here. */
  async #add(now_s: number): Promise<void> {
    const window = this.#window
    if (!window?.follow || this.#adding || this.loading) return
    const { table } = this
    const range = rangeOf(window, now_s)
    if (!table || bucketFor(range.to_s - range.from_s, POINTS, LEAST_FOLLOWED_S) !== this.#asked_s) {
      if (now_s >= LEAST_FOLLOWED_S) await this.load(window)
      return
    }
    const wanted = wholeBuckets(table.to_s, now_s, table.bucket_s)
    if (wanted.points === 0) return
    this.#adding = true
    try {
      const tail = tableOf(await api.series(this.feed.id, { ...wanted, metrics: METRICS }))
      // Another window may have been opened, or the series fetched again, in the meantime.
      if (this.table !== table || this.#window !== window) return
      const next = joined(table, tail, range.from_s)
      if (next) {
        this.table = next
        this.problem = null
        } else {
        await this.load(window)
      }
    } catch (cause) {
      this.problem = problemOf(cause)
    } finally {
      this.#adding = false
    }
  }

  async #refreshOverview(now_s: number): Promise<void> {
    if (this.#overview.isAsking) return
    const behind_s = now_s - (this.overview?.to_s ?? 0)
    if (behind_s > Math.max(OVERVIEW_LEAST_S, now_s * OVERVIEW_SHARE)) await this.loadOverview()
  }
}
