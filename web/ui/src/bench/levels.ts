// Times by level of a data loader, from a single item to the whole benchmark.

import type { LevelCounts, Spread } from '../api/types'
import { sheetOf, type Sheet } from '../charts/sheet'
import { count, itemsRate, megabytesRate, number, seconds, share } from '../parts/format'
import type { Load } from './loads'

export type Level = keyof LevelCounts

export const LEVELS: { level: Level; name: string; title: string; what: string }[] = [
  { level: 'getitem', name: 'getitem', title: 'Get item', what: 'one item, from the request to the last byte' },
  { level: 'fetch', name: 'fetch', title: 'Fetch', what: 'one batch by one worker' },
  { level: 'worker_loop', name: 'worker loop', title: 'Worker loop', what: 'one worker, from its start to its end' },
  { level: 'load_all', name: 'load all', title: 'Load all', what: 'one pass over all objects' },
  { level: 'benchmark', name: 'benchmark', title: 'Benchmark', what: 'setup, warm-up and all passes' },
]

export const STATISTICS = ['mean', 'median', 'min', 'max'] as const
export type Statistic = (typeof STATISTICS)[number]

export const statisticOf = (time: Spread, statistic: Statistic): number => time[`${statistic}_s`]

/** Throughput of the slowest and of the fastest pass; `null` without passes. */
export function passRange({ cell }: Load, figure: 'items_per_s' | 'mb_per_s'): { min: number; max: number } | null {
  const values = cell.passes.map((pass) => pass[figure])
  return values.length > 0 ? { min: Math.min(...values), max: Math.max(...values) } : null
}

/** Table with a row for each load and level. */
export function levelSheet(loads: readonly Load[]): Sheet {
  type Row = { label: string; cell: Load['cell']; level: Level; found: Spread | null }
  const time = (name: Exclude<keyof Spread, 'n'>, head: string) => ({ name, head, text: seconds, of: ({ found }: Row) => found?.[name] ?? null })
  const rows = loads.flatMap(({ label, cell }) => LEVELS.map(({ level }): Row => ({ label, cell, level, found: cell.levels[level] })))
  return sheetOf(rows, [
    { name: 'load', head: 'Load', of: ({ label }) => label },
    { name: 'mode', head: 'Mode', of: ({ cell }) => cell.mode },
    { name: 'workers', head: 'Workers', text: count, of: ({ cell }) => cell.workers },
    { name: 'in_flight', head: 'Reads in flight', text: count, of: ({ cell }) => cell.in_flight },
    { name: 'batch_size', head: 'Batch', text: count, of: ({ cell }) => cell.batch_size },
    { name: 'level', head: 'Level', of: ({ level }) => level },
    { name: 'n', head: 'Calls', text: count, of: ({ found }) => found?.n ?? 0 },
    time('mean_s', 'Mean'),
    time('median_s', 'Median'),
    time('min_s', 'Min'),
    time('max_s', 'Max'),
    time('stdev_s', 'Std. dev.'),
    time('p90_s', 'p90'),
    time('p99_s', 'p99'),
    time('p999_s', 'p99.9'),
    time('sum_s', 'Sum'),
    { name: 'checks', head: 'Consistency checks', of: checksOf },
  ])
}

/** Table with a row for each load, with throughput in several units. */
export function rateSheet(loads: readonly Load[]): Sheet {
  return sheetOf(loads, [
    { name: 'load', head: 'Load', of: ({ label }) => label },
    { name: 'mode', head: 'Mode', of: ({ cell }) => cell.mode },
    { name: 'workers', head: 'Workers', text: count, of: ({ cell }) => cell.workers },
    { name: 'reads_at_most', head: 'Max. reads in flight', text: count, of: ({ cell }) => cell.permits },
    { name: 'items_per_s', head: 'Throughput', text: itemsRate, of: ({ cell }) => cell.items_per_s },
    { name: 'slowest_pass_items_per_s', head: 'Slowest pass', text: itemsRate, of: (load) => passRange(load, 'items_per_s')?.min ?? null },
    { name: 'fastest_pass_items_per_s', head: 'Fastest pass', text: itemsRate, of: (load) => passRange(load, 'items_per_s')?.max ?? null },
    { name: 'mb_per_s', head: 'MB (10⁶)', text: megabytesRate, of: ({ cell }) => cell.mb_per_s },
    { name: 'mib_per_s', head: 'MiB (2²⁰)', text: (value) => `${number(value)} MiB/s`, of: ({ cell }) => cell.mib_per_s },
    { name: 'mbit_per_s', head: 'Mbit (10⁶)', text: (value) => `${number(value)} Mbit/s`, of: ({ cell }) => cell.mbit_per_s },
    { name: 'reads_in_flight', head: 'Reads in flight', text: number, of: ({ cell }) => cell.little.in_flight },
    { name: 'ceiling_items_per_s', head: 'Client alone', text: itemsRate, of: ({ cell }) => cell.ceiling?.items_per_s ?? null },
    { name: 'limited_by', head: 'Client-bound', of: ({ cell: { ceiling } }) => (ceiling ? (ceiling.is_client_bound ? 'yes' : 'no') : 'not measured') },
    { name: 'checks', head: 'Consistency checks', of: checksOf },
  ])
}

function checksOf({ cell }: Pick<Load, 'cell'>): string {
  return cell.books.balanced ? 'passed' : 'VOID'
}

export function quantilesOf(time: Spread | null): { name: string; at_s: number }[] {
  const named = { p50: time?.median_s, p90: time?.p90_s, p99: time?.p99_s, 'p99.9': time?.p999_s }
  return Object.entries(named).flatMap(([name, at_s]) => (at_s === undefined ? [] : [{ name, at_s }]))
}

export function latencySheet(loads: readonly Load[]): Sheet {
  const bins = loads.flatMap(({ label, cell }) => cell.latency_bins.map((bin) => ({ label, ...bin })))
  return sheetOf(bins, [
    { name: 'load', head: 'Load', of: ({ label }) => label },
    { name: 'from_s', head: 'From', text: seconds, of: ({ from_s }) => from_s },
    { name: 'to_s', head: 'To', text: seconds, of: ({ to_s }) => to_s },
    { name: 'reads', head: 'Reads', text: count, of: ({ count }) => count },
    { name: 'share', head: 'Share', text: share, of: ({ share }) => share },
  ])
}
