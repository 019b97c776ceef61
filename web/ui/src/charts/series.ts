// Series as charts read them. They are plain arrays outside of Svelte's reactivity: a counter says when to draw again.

import type { Metric, Series } from '../api/types'
import { quoted } from './sheet'

type Written = Series['columns'][number]
/** A figure over time. The least and the greatest of each bucket are there where they were asked for. */
export type Column = Omit<Written, 'min' | 'max'> & Partial<Pick<Written, 'min' | 'max'>>

/** Median and 99th percentile of the times that a metric is the mean of. */
export const PERCENTILES: Partial<Record<Metric, { p50: Metric; p99: Metric }>> = {
  ave_time_s: { p50: 'p50_time_s', p99: 'p99_time_s' },
  ave_get_time_s: { p50: 'p50_get_time_s', p99: 'p99_get_time_s' },
  ave_put_time_s: { p50: 'p50_put_time_s', p99: 'p99_put_time_s' },
}

const PARTS = ['mean', 'min', 'max'] as const

/** Percentiles have no mean, least or greatest. */
export const isPercentile = (metric: string) => /^p\d/.test(metric)

/** Columns over one x column of bucket ends; every bucket is `bucket_s` wide, the last one of an ended run may be shorter. */
export type SeriesTable = Pick<Series, 'from_s' | 'to_s' | 'bucket_s' | 't_s'> & { columns: Map<string, Column> }

export interface Summary {
  current: number | null
  min: number | null
  mean: number | null
  max: number | null
}

const NARROWEST_S = 0.25
// The server keeps rows of 0.25 s, 4 s and 64 s, and fills a bucket with the widest of them that are no wider than it: only
// multiples of those come back as they were asked for.
const WIDTHS_S = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]

/** Bucket ends may be off by this much after a way through JSON. */
const CLOSE_S = 0.01

export function columnKey(metric: Metric, id: string): string {
  return `${metric} ${id}`
}

/** `end_s` is the end of the run, maybe within the last bucket, which then ends there. */
export function tableOf(series: Series, end_s = Infinity): SeriesTable {
  const { from_s, bucket_s } = series
  const t_s = series.t_s.map((end) => Math.min(end, end_s))
  const to_s = Math.min(series.to_s, end_s)
  const columns = new Map(series.columns.map((column) => [columnKey(column.metric, column.id), column]))
  return { from_s, to_s, bucket_s, t_s, columns }
}

/** The narrowest bucket of a round width, at least `least_s`, with which `span_s` takes at most `points` of them. */
export function bucketFor(span_s: number, points: number, least_s = NARROWEST_S): number {
  const needed = Math.max(span_s / points, least_s)
  const round = WIDTHS_S.find((width) => width >= needed - 1e-9)
  return round ?? Math.ceil(needed / 4096) * 4096
}

/** The whole buckets within a stretch of time, as a question to the server. `points` is 0 if there is none. */
export function wholeBuckets(from_s: number, to_s: number, bucket_s: number): { from_s: number; to_s: number; points: number } {
  const first = Math.max(0, Math.floor(from_s / bucket_s + 1e-6))
  const end = Math.max(first, Math.floor(to_s / bucket_s + 1e-6))
  return { from_s: first * bucket_s, to_s: end * bucket_s, points: end - first }
}

/**
 * `table` with the buckets of `tail` behind its own, and without those that ended before `keep_from_s`. `null` if they do not
 * fit together: another width, or something missing in between. Buckets are never merged here: a mean of means is no mean.
 */
export function joined(table: SeriesTable, tail: SeriesTable, keep_from_s: number): SeriesTable | null {
  if (Math.abs(table.bucket_s - tail.bucket_s) > 1e-9) return null
  if (tail.from_s > table.to_s + CLOSE_S) return null
  const skip = tail.t_s.findIndex((end) => end > table.to_s + CLOSE_S)
  if (skip === -1) return table
  const kept = table.t_s.findIndex((end) => end > keep_from_s)
  const start = kept === -1 ? table.t_s.length : kept
  const length = table.t_s.length - start
  const added = tail.t_s.length - skip
  const columns = new Map<string, Column>()
  for (const key of new Set([...table.columns.keys(), ...tail.columns.keys()])) {
    const [old, young] = [table.columns.get(key), tail.columns.get(key)]
    const { id, metric } = (old ?? young) as Column
    const column: Column = { id, metric, mean: [] }
    for (const which of PARTS) {
      if (!old?.[which] && !young?.[which]) continue
      column[which] = [...(old?.[which]?.slice(start) ?? nulls(length)), ...(young?.[which]?.slice(skip) ?? nulls(added))]
    }
    columns.set(key, column)
  }
  const t_s = [...table.t_s.slice(start), ...tail.t_s.slice(skip)]
  return { from_s: (t_s[0] as number) - table.bucket_s, to_s: tail.to_s, bucket_s: table.bucket_s, t_s, columns }
}

/** `table` with further columns over the same buckets. */
export function withColumns(table: SeriesTable, more: SeriesTable): SeriesTable {
  return { ...table, columns: new Map([...table.columns, ...more.columns]) }
}

/** Index of the first bucket that lies at least partly within a stretch of time, and of the one behind the last. */
export function within(table: SeriesTable, from_s: number, to_s: number): [number, number] {
  return [firstAfter(table.t_s, from_s + CLOSE_S), firstAfter(table.t_s, to_s + table.bucket_s - CLOSE_S)]
}

/**
 * A column's figures over a stretch of time. Rates and shares of time weigh every bucket by its length; times per call by the
 * calls in it, so that the mean is that of the calls.
 */
export function summaryOf(table: SeriesTable, metric: Metric, id: string, from_s: number, to_s: number): Summary {
  const column = table.columns.get(columnKey(metric, id))
  const none = { current: null, min: null, mean: null, max: null }
  if (!column) return none
  const calls = callsPerSecond(table, metric, id)
  const [start, end] = within(table, from_s, to_s)
  let [weighed, weight] = [0, 0]
  let [min, max, current]: [number | null, number | null, number | null] = [null, null, null]
  for (let place = start; place < end; place++) {
    const mean = column.mean[place] ?? null
    current = mean
    if (mean === null) continue
    const length = (table.t_s[place] as number) - (place > 0 ? (table.t_s[place - 1] as number) : table.from_s)
    const share = length * (calls ? calls(place) : 1)
    weighed += mean * share
    weight += share
    const [low, high] = [column.min?.[place] ?? mean, column.max?.[place] ?? mean]
    min = min === null ? low : Math.min(min, low)
    max = max === null ? high : Math.max(max, high)
  }
  // A mean of percentiles is no percentile.
  return { current, min, mean: weight > 0 && !isPercentile(metric) ? weighed / weight : null, max }
}

/** A table of one metric with its figures multiplied by the weight of each id; by 1 where `weights` has none. */
export function weighed(table: SeriesTable, metric: Metric, weights: Map<string, number>): SeriesTable {
  const columns = new Map<string, Column>()
  for (const [key, column] of table.columns) {
    if (column.metric !== metric) continue
    const weight = weights.get(column.id) ?? 1
    const next: Column = { ...column }
    for (const which of PARTS) if (column[which]) next[which] = column[which].map((value) => (value === null ? null : value * weight))
    columns.set(key, next)
  }
  return { ...table, columns }
}

/** A column as it is saved: its figures may be those of a metric multiplied by something, and then have a name of their own. */
export type SavedColumn = Omit<Column, 'metric'> & { metric: string }

/** A table as CSV: a line per bucket, a column per series and figure. */
export function csv(table: SeriesTable, columns: SavedColumn[]): string {
  const parts = columns.flatMap((column) => PARTS.filter((which) => column[which]).map((which) => ({ name: `${column.id} ${column.metric}${isPercentile(column.metric) ? '' : ` ${which}`}`, values: column[which] })))
  const names = parts.map(({ name }) => quoted(name))
  const lines = table.t_s.map((end, place) => [end, ...parts.map(({ values }) => values?.[place])].map((value) => value ?? '').join(','))
  return [['t_s', ...names].join(','), ...lines].join('\r\n') + '\r\n'
}

function callsPerSecond(table: SeriesTable, metric: Metric, id: string): ((place: number) => number) | null {
  if (metric === 'ave_time_s') {
    const tasks = table.columns.get(columnKey('tasks_per_s', id))
    const failures = table.columns.get(columnKey('failures_per_s', id))
    return tasks ? (place) => Math.max(0, (tasks.mean[place] ?? 0) - (failures?.mean[place] ?? 0)) : null
  }
  if (metric === 'ave_get_time_s' || metric === 'ave_put_time_s') {
    const items = table.columns.get(columnKey('qps', id))
    return items ? (place) => items.mean[place] ?? 0 : null
  }
  return null
}

function firstAfter(sorted: number[], value: number): number {
  let [low, high] = [0, sorted.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if ((sorted[middle] as number) > value) high = middle
    else low = middle + 1
  }
  return low
}

function nulls(length: number): null[] {
  return Array.from({ length }, () => null)
}
