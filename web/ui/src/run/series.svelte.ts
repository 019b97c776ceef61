// Series of one run in the selected window, and queue readiness over the whole run.

import { problemOf } from '../api/client'
import { api } from '../api/endpoints'
import type { Metric, Problem, Timeline } from '../api/types'
import { bucketFor, joined, PERCENTILES, tableOf, wholeBuckets, withColumns, type SeriesTable } from '../charts/series'
import { rangeOf, type Range, type Window } from '../charts/window'
import { Request } from '../parts/request.svelte'
import type { RunFeed } from './feed.svelte'

/** Maximum number of buckets of the queue readiness over the whole run. */
const POINTS = 400
/** Width of the page beside the readiness map, in pixels. */
const MARGIN = 150
/** Significant digits of figures for charts. */
const DIGITS = 4
/** Minimum width of a bucket while the run goes on: rates of a few items per bucket would be noise. */
const LEAST_FOLLOWED_S = 1
/** Runs that are over and shorter than this are shown in buckets as narrow as they were measured. */
const SHORT_S = 30
/** Age at which the overview is fetched again: a share of the run's length, and a minimum in seconds. */
const OVERVIEW_SHARE = 0.01
const OVERVIEW_LEAST_S = 2

/** Series that a part of the page shows. */
export interface Wanted {
  metrics: Metric[]
  /** Maximum number of buckets: the width of the plot in pixels. */
  points: number
  /** Ids of stages and queues for which minimum, maximum and percentiles are fetched, too; `null` for all. */
  detailed?: string[] | null
}

/** Series in buckets of one width, all fetched from the server: a live sample only triggers the request for new buckets. */
export class RunSeries {
  problem = $state.raw<Problem | null>(null)
  loading = $state(true)
  table = $state.raw<SeriesTable | null>(null)
  /** Metrics in `table`. */
  metrics = $state.raw<Metric[]>([])
  /** Queue readiness over the whole run. */
  overview = $state.raw<SeriesTable | null>(null)
  timeline = $state.raw<Timeline | null>(null)
  #window: Window | null = null
  /** Series wanted by each part of the page. */
  #wants = new Map<string, Wanted>()
  /** Width of the buckets in the request for `table`. */
  #asked_s = 0
  #loading: AbortController | null = null
  #adding = false
  #overview = new Request((signal) => this.#readOverview(signal))

  constructor(private readonly feed: RunFeed) {}

  /** Sets the series that a part of the page shows, and fetches those that are missing. */
  want(by: string, wanted: Wanted): void {
    const { metrics: had, ...before } = this.#merged()
    this.#wants.set(by, wanted)
    const { metrics, ...after } = this.#merged()
    const more = metrics.filter((metric) => !had.includes(metric))
    if (!this.#window) return
    if (JSON.stringify(before) !== JSON.stringify(after) || (more.length > 0 && (this.loading || !this.table))) void this.load(this.#window)
    else if (more.length > 0) void this.#extend(more)
  }

  /** Fetches a metric and its percentiles in the buckets of `table`, with all digits; `null` before `table` has been fetched. */
  async exact(metric: Metric): Promise<SeriesTable | null> {
    const { table } = this
    if (!table) return null
    const metrics = [metric, ...Object.values(PERCENTILES[metric] ?? {})]
    return tableOf(await api.series(this.feed.id, { ...this.#bucketsOf(table), metrics }), this.#ended_s)
  }

  #bucketsOf({ from_s, bucket_s, t_s }: SeriesTable) {
    return { from_s, to_s: from_s + t_s.length * bucket_s, points: t_s.length }
  }

  async #extend(metrics: Metric[]): Promise<void> {
    const { table } = this
    if (!table) return
    try {
      const more = await this.#read(this.#bucketsOf(table), undefined, metrics)
      if (this.table === table) [this.table, this.metrics] = [withColumns(table, more), [...this.metrics, ...metrics]]
      else if (this.#window) await this.load(this.#window)
    } catch (cause) {
      this.problem = problemOf(cause)
    }
  }

  #merged(): Required<Wanted> {
    const wants = [...this.#wants.values()]
    const detailed = wants.flatMap(({ detailed = [] }) => detailed ?? [])
    return {
      metrics: [...new Set(wants.flatMap(({ metrics }) => metrics))],
      points: Math.max(1, ...wants.map(({ points }) => points)),
      detailed: wants.some(({ detailed }) => detailed === null) ? null : detailed,
    }
  }

  async #read(buckets: ReturnType<typeof wholeBuckets>, signal?: AbortSignal, metrics = this.#merged().metrics): Promise<SeriesTable> {
    const { detailed } = this.#merged()
    const ended_s = this.#ended_s
    const all = { ...buckets, digits: DIGITS }
    const detailedMetrics = metrics.flatMap((metric) => [metric, ...Object.values(PERCENTILES[metric] ?? {})])
    const [lines, details] = await Promise.all([
      detailed === null ? null : api.series(this.feed.id, { ...all, metrics, spreads: false }, signal),
      detailed?.length === 0 ? null : api.series(this.feed.id, { ...all, metrics: detailedMetrics, ...(detailed ? { ids: detailed } : {}) }, signal),
    ])
    const [first, second] = [lines, details].flatMap((series) => (series ? [tableOf(series, ended_s)] : []))
    return second ? withColumns(first as SeriesTable, second) : (first as SeriesTable)
  }

  start(): () => void {
    const end = this.feed.listen({
      sample: ({ t1_s }) => {
        void this.#add(t1_s)
        void this.#refreshOverview(t1_s)
      },
      refetch: () => {
        if (this.#window) void this.load(this.#window)
        void this.loadOverview()
      },
    })
    return () => {
      end()
      this.#window = null
      this.#loading?.abort()
      this.#overview.end()
    }
  }

  /** End of a run that is over; `Infinity` for other runs. */
  get #ended_s(): number {
    return this.feed.over ? this.feed.elapsed() : Infinity
  }

  /** Whole buckets of a range, at most one for each of `points` pixels. */
  #bucketsIn({ from_s, to_s }: Range, points: number, follow: boolean) {
    const { over } = this.feed
    const elapsed_s = this.feed.elapsed()
    const bucket_s = bucketFor(to_s - from_s, points, follow && !(over && elapsed_s < SHORT_S) ? LEAST_FOLLOWED_S : 0)
    // The last bucket may end after the range, and after the end of a run that is over.
    const last_s = Math.ceil(Math.min(to_s, elapsed_s) / bucket_s - 1e-6) * bucket_s
    return { bucket_s, wanted: wholeBuckets(from_s, over ? last_s : Math.min(last_s, elapsed_s), bucket_s) }
  }

  async load(window: Window): Promise<void> {
    this.#window = window
    this.#loading?.abort()
    const { metrics, points } = this.#merged()
    if (metrics.length === 0) return
    const loading = new AbortController()
    this.#loading = loading
    const { bucket_s, wanted } = this.#bucketsIn(rangeOf(window, this.feed.elapsed()), points, window.follow)
    this.loading = wanted.points > 0
    if (!this.loading) return
    try {
      this.table = await this.#read(wanted, loading.signal)
      this.metrics = metrics
      this.#asked_s = bucket_s
      this.problem = null
    } catch (cause) {
      if (loading.signal.aborted) return
      this.problem = problemOf(cause)
    }
    this.loading = false
  }

  /** Fetches queue readiness and events of the whole run. A request that is pending is followed by another one. */
  loadOverview(): Promise<void> {
    return this.#overview.ask()
  }

  async #readOverview(signal: AbortSignal): Promise<void> {
    const points = Math.min(POINTS, Math.max(100, innerWidth - MARGIN))
    const { wanted } = this.#bucketsIn({ from_s: 0, to_s: this.feed.elapsed() }, points, true)
    if (wanted.points === 0) return
    const ended_s = this.#ended_s
    // Failures are not shown: the earlier overview stays until the next request.
    const [readiness, timeline] = await Promise.all([
      api.series(this.feed.id, { ...wanted, metrics: ['readiness'], spreads: false, digits: 3 }, signal),
      api.timeline(this.feed.id, signal),
    ])
    if (signal.aborted) return
    this.overview = tableOf(readiness, ended_s)
    this.timeline = timeline
  }

  /** Fetches the buckets that have been completed since the last request. */
  async #add(now_s: number): Promise<void> {
    const window = this.#window
    if (!window?.follow || this.#adding || this.loading) return
    const { table } = this
    const range = rangeOf(window, now_s)
    if (!table || bucketFor(range.to_s - range.from_s, this.#merged().points, LEAST_FOLLOWED_S) !== this.#asked_s) {
      if (now_s >= LEAST_FOLLOWED_S) await this.load(window)
      return
    }
    const wanted = wholeBuckets(table.to_s, now_s, table.bucket_s)
    if (wanted.points === 0) return
    this.#adding = true
    try {
      const tail = await this.#read(wanted)
      // The window or the table may have changed during the request.
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
