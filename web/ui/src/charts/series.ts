// Series of metrics over time, as tables of buckets for charts.

import type { Metric, Series } from '../api/types'
import { quoted, sheetOf, type Sheet } from './sheet'
import type { Range } from './window'

type Written = Series['columns'][number]
/** A metric of a stage or queue by bucket. Minima and maxima are optional: requests can omit them. */
export type Column = Omit<Written, 'min' | 'max'> & Partial<Pick<Written, 'min' | 'max'>>

/** Metrics for the median and the 99th percentile, by the metric of the mean. */
export const PERCENTILES: Partial<Record<Metric, { p50: Metric; p99: Metric }>> = {
  ave_time_s: { p50: 'p50_time_s', p99: 'p99_time_s' },
  ave_get_time_s: { p50: 'p50_get_time_s', p99: 'p99_get_time_s' },
  ave_put_time_s: { p50: 'p50_put_time_s', p99: 'p99_put_time_s' },
}

const PARTS = ['mean', 'min', 'max'] as const

/** Metrics of percentiles have one figure per bucket, without minimum and maximum. */
export const isPercentile = (metric: string) => /^p\d/.test(metric)

/** Columns by `columnKey`; `t_s` holds the ends of the buckets. All buckets are `bucket_s` wide, except the last one of a run that is over. */
export type SeriesTable = Pick<Series, 'from_s' | 'to_s' | 'bucket_s' | 't_s'> & { columns: Map<string, Column> }

export type Summary = Record<'current' | 'min' | 'mean' | 'max', number | null>

const NO_SUMMARY: Summary = { current: null, min: null, mean: null, max: null }

const NARROWEST_S = 0.25
// The server stores rows of 0.25 s, 4 s and 64 s and fills a bucket from the widest rows that fit, so buckets are multiples of them.
const WIDTHS_S = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]

/** Tolerance for bucket ends, in seconds. */
const CLOSE_S = 0.01

export function columnKey(metric: Metric, id: string): string {
  return `${metric} ${id}`
}

/** Table of an answer of the server; the last bucket is cut at `end_s`, the end of the run. */
export function tableOf(series: Series, end_s = Infinity): SeriesTable {
  const { from_s, bucket_s } = series
  const t_s = series.t_s.map((end) => Math.min(end, end_s))
  const to_s = Math.min(series.to_s, end_s)
  const columns = new Map(series.columns.map((column) => [columnKey(column.metric, column.id), column]))
  return { from_s, to_s, bucket_s, t_s, columns }
}

/** Minimum round width of buckets, not below `least_s`, such that at most `points` of them cover `span_s`. */
export function bucketFor(span_s: number, points: number, least_s = NARROWEST_S): number {
  const needed = Math.max(span_s / points, least_s)
  const round = WIDTHS_S.find((width) => width >= needed - 1e-9)
  return round ?? Math.ceil(needed / 4096) * 4096
}

/** Request parameters for the whole buckets in a time range; `points` is their number. */
export function wholeBuckets(from_s: number, to_s: number, bucket_s: number): { from_s: number; to_s: number; points: number } {
  const first = Math.max(0, Math.floor(from_s / bucket_s + 1e-6))
  const end = Math.max(first, Math.floor(to_s / bucket_s + 1e-6))
  return { from_s: first * bucket_s, to_s: end * bucket_s, points: end - first }
}

/** `table` with the buckets of `tail` appended and those before `keep_from_s` removed; `null` if the widths differ or buckets between the two are missing. */
export function joined(table: SeriesTable, tail: SeriesTable, keep_from_s: number): SeriesTable | null {
  if (Math.abs(table.bucket_s - tail.bucket_s) > 1e-9) return null
  if (tail.from_s > table.to_s + CLOSE_S) return null
  const skip = firstAfter(tail.t_s, table.to_s + CLOSE_S)
  if (skip === tail.t_s.length) return table
  const start = firstAfter(table.t_s, keep_from_s)
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

export function withColumns(table: SeriesTable, more: SeriesTable): SeriesTable {
  return { ...table, columns: new Map([...table.columns, ...more.columns]) }
}

/** Index of the first bucket that overlaps a time range, and the index after the last one. */
export function within(table: SeriesTable, from_s: number, to_s: number): [number, number] {
  return [firstAfter(table.t_s, from_s + CLOSE_S), firstAfter(table.t_s, to_s + table.bucket_s - CLOSE_S)]
}

/** Summary of a column in a time range. The mean weights each bucket by its length, or by its calls for metrics that are times per call. */
export function summaryOf(table: SeriesTable, metric: Metric, id: string, from_s: number, to_s: number): Summary {
  const column = table.columns.get(columnKey(metric, id))
  if (!column) return NO_SUMMARY
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
  // Percentiles have no mean: a mean of percentiles is not a percentile.
  return { current, min, mean: weight > 0 && !isPercentile(metric) ? weighed / weight : null, max }
}

/** Current value, minimum, mean and maximum of each line in a time range; `head` is the heading of the first column. */
export function summarySheet(table: SeriesTable | null, metric: Metric, lines: readonly { id: string; label: string }[], range: Range, head: string, text: (value: number | null) => string): Sheet {
  const rows = lines.map(({ id, label }) => ({ label, ...(table ? summaryOf(table, metric, id, range.from_s, range.to_s) : NO_SUMMARY) }))
  const figures = (['Current', 'Min', 'Mean', 'Max'] as const).map((head) => ({ name: head.toLowerCase(), head, text, of: (row: Summary) => row[head.toLowerCase() as keyof Summary] }))
  return sheetOf(rows, [{ name: head.toLowerCase().replace(' ', '_'), head, of: ({ label }) => label }, ...figures])
}

/** `table` with only the columns of `metric`, multiplied by the weights of their ids; the default weight is 1. */
export function weighed(table: SeriesTable, metric: Metric, weights: Map<string, number>): SeriesTable {
  const columns = new Map([...table.columns].filter(([, column]) => column.metric === metric))
  return mapped({ ...table, columns }, ({ id }, values) => values.map((value) => (value === null ? null : value * (weights.get(id) ?? 1))))
}

/** `table` with the values of each column replaced: its means, and its minima and maxima if it has them. */
function mapped(table: SeriesTable, change: (column: Column, values: Column['mean']) => Column['mean']): SeriesTable {
  const columns = Array.from(table.columns, ([key, column]): [string, Column] => {
    const parts = PARTS.flatMap((which) => (column[which] ? [[which, change(column, column[which])]] : []))
    return [key, { ...column, ...Object.fromEntries(parts) }]
  })
  return { ...table, columns: new Map(columns) }
}

/** Metrics per second: in a short part of a bucket, a few items make a high rate. */
const RATES: readonly Metric[] = ['qps', 'tasks_per_s', 'failures_per_s']

/** `table` without the last rate of each stage and queue that ended within a bucket, which is that of a part of the bucket, unless it is the only rate. */
export function withoutParts(table: SeriesTable): SeriesTable {
  const { t_s, from_s, bucket_s } = table
  const last = t_s.length - 1
  const isCut = last >= 0 && (t_s[last] as number) - (t_s[last - 1] ?? from_s) < bucket_s - CLOSE_S
  return mapped(table, ({ metric, mean }, values) => {
    const [first, end] = [mean.findIndex((value) => value !== null), mean.findLastIndex((value) => value !== null)]
    return RATES.includes(metric) && end > first && (end < last || isCut) ? values.with(end, null) : values
  })
}

/** A column for a saved file; a metric that was multiplied by weights has another name. */
export type SavedColumn = Omit<Column, 'metric'> & { metric: string }

/** CSV with a line for each bucket, and columns for mean, minimum and maximum of each series. */
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
  const place = sorted.findIndex((each) => each > value)
  return place === -1 ? sorted.length : place
}

export function nulls(length: number): null[] {
  return Array.from({ length }, () => null)
}
