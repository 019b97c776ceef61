// The series of one run for the chosen window, and the readiness of the whole run beside it.

import { problemOf } from '../api/client'
import { api } from '../api/endpoints'
import type { Metric, Problem, Timeline } from '../api/types'
import { bucketFor, joined, PERCENTILES, tableOf, wholeBuckets, withColumns, type SeriesTable } from '../charts/series'
import { rangeOf, type Window } from '../charts/window'
import { Request } from '../parts/request.svelte'
import type { RunFeed } from './feed.svelte'

/** Buckets of the readiness of the whole run, where there is a pixel for each. */
const POINTS = 400
/** Pixels beside that chart. */
const MARGIN = 150
/** Significant digits of figures that are drawn. */
const DIGITS = 4
/** While following: in less than a second most pipelines finish a handful of items, and rates become noise. */
const LEAST_FOLLOWED_S = 1
/** A run that is over and shorter than this is shown as finely as it was measured. */
const SHORT_S = 30
/** Share of the run that goes by before its overview is fetched again, and the least time. */
const OVERVIEW_SHARE = 0.01
const OVERVIEW_LEAST_S = 2

/** Figures that a part of the page shows. */
export interface Wanted {
  metrics: Metric[]
  /** Pixels that buckets are drawn on: the server is asked for no more buckets. */
  points: number
  /** Ids whose buckets come with their least, greatest, median and 99th percentile; `null` for all ids. */
  detailed?: string[] | null
}

/**
 * All figures shown come from the server's sums in buckets of one width. New figures are fetched as buckets too: a live sample
 * says only that there are some. A mean of the samples' means would not be the mean.
 */
export class RunSeries {
  problem = $state.raw<Problem | null>(null)
  loading = $state(true)
  table = $state.raw<SeriesTable | null>(null)
  /** Metrics that the table was fetched with. */
  metrics = $state.raw<Metric[]>([])
  /** Readiness of the whole run. */
  overview = $state.raw<SeriesTable | null>(null)
  timeline = $state.raw<Timeline | null>(null)
  #window: Window | null = null
  /** Wanted figures by the part of the page that shows them. */
  #wants = new Map<string, Wanted>()
  /** The width that was asked for when `table` was fetched. */
  #asked_s = 0
  #loading: AbortController | null = null
  #adding = false
  #overview = new Request((signal) => this.#readOverview(signal))

  constructor(private readonly feed: RunFeed) {}

  /** Sets the figures that a part of the page shows, and fetches them if they are others than before. */
  want(by: string, wanted: Wanted): void {
    const { metrics: had, ...before } = this.#merged()
    this.#wants.set(by, wanted)
    const { metrics, ...after } = this.#merged()
    const more = metrics.filter((metric) => !had.includes(metric))
    if (!this.#window) return
    if (JSON.stringify(before) !== JSON.stringify(after) || (more.length > 0 && (this.loading || !this.table))) void this.load(this.#window)
    else if (more.length > 0) void this.#extend(more)
  }

  /** A metric with its percentiles in the buckets of the table, with all digits; `null` before there is a table. */
  async exact(metric: Metric): Promise<SeriesTable | null> {
    const { table } = this
    if (!table) return null
    const metrics = [metric, ...Object.values(PERCENTILES[metric] ?? {})]
    return tableOf(await api.series(this.feed.id, { ...this.#bucketsOf(table), metrics }), this.#end(this.feed.elapsed()))
  }

  /** The buckets of a table, as a question to the server. */
  #bucketsOf({ from_s, bucket_s, t_s }: SeriesTable) {
    return { from_s, to_s: from_s + t_s.length * bucket_s, points: t_s.length }
  }

  /** Fetches further metrics for the buckets of the table. */
  async #extend(metrics: Metric[]): Promise<void> {
    const { table } = this
    if (!table) return
    try {
      const more = await this.#read(this.#bucketsOf(table), this.#end(this.feed.elapsed()), undefined, metrics)
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

  /** The wanted figures of whole buckets. */
  async #read(buckets: ReturnType<typeof wholeBuckets>, ended_s = Infinity, signal?: AbortSignal, metrics = this.#merged().metrics): Promise<SeriesTable> {
    const { detailed } = this.#merged()
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

  /** The end of a run that is over. */
  #end(elapsed_s: number): number {
    return this.feed.over ? elapsed_s : Infinity
  }

  /** Holds for a run that was over so soon that whole seconds would say little of it. */
  #isShort(elapsed_s: number): boolean {
    return this.feed.over && elapsed_s < SHORT_S
  }

  /** Fetches the wanted figures of a window. */
  async load(window: Window): Promise<void> {
    this.#window = window
    this.#loading?.abort()
    const { metrics, points } = this.#merged()
    if (metrics.length === 0) return
    const loading = new AbortController()
    this.#loading = loading
    const elapsed_s = this.feed.elapsed()
    const { from_s, to_s } = rangeOf(window, elapsed_s)
    const bucket_s = bucketFor(to_s - from_s, points, window.follow && !this.#isShort(elapsed_s) ? LEAST_FOLLOWED_S : 0)
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
      this.table = await this.#read(wanted, ended_s, loading.signal)
      this.metrics = metrics
      this.#asked_s = bucket_s
      this.problem = null
      this.loading = false
    } catch (cause) {
      if (loading.signal.aborted) return
      this.problem = problemOf(cause)
      this.loading = false
    }
  }

  /** Fetches readiness and events of the whole run; once more where that is being done, since the run may have ended meanwhile. */
  loadOverview(): Promise<void> {
    return this.#overview.ask()
  }

  async #readOverview(signal: AbortSignal): Promise<void> {
    const elapsed_s = this.feed.elapsed()
    const points = Math.min(POINTS, Math.max(100, innerWidth - MARGIN))
    const bucket_s = bucketFor(elapsed_s, points, this.#isShort(elapsed_s) ? 0 : LEAST_FOLLOWED_S)
    const wanted = wholeBuckets(0, this.feed.over ? Math.ceil(elapsed_s / bucket_s - 1e-6) * bucket_s : elapsed_s, bucket_s)
    if (wanted.points === 0) return
    const ended_s = this.#end(elapsed_s)
    // A failure is shown for the window alone; the overview stays as it is until the next time.
    const [readiness, timeline] = await Promise.all([
      api.series(this.feed.id, { ...wanted, metrics: ['readiness'], spreads: false, digits: 3 }, signal),
      api.timeline(this.feed.id, signal),
    ])
    if (signal.aborted) return
    this.overview = tableOf(readiness, ended_s)
    this.timeline = timeline
  }

  /** Fetches the buckets that are complete by `now_s` and not yet here. */
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
