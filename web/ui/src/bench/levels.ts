// Times of each level of a loader, from one item up to the whole, as the seed's figure has them.

import type { LevelCounts, Spread } from '../api/types'
import type { Sheet } from '../charts/sheet'
import { count, itemsRate, megabytesRate, number, seconds, share } from '../parts/format'
import type { Load } from './loads'

export type Level = keyof LevelCounts

export const LEVELS: { level: Level; name: string; seed: string; what: string }[] = [
  { level: 'getitem', name: 'getitem', seed: 'Get item', what: 'one item, from the request to its last byte' },
  { level: 'fetch', name: 'fetch', seed: 'Fetch', what: 'one batch by one worker' },
  { level: 'worker_loop', name: 'worker loop', seed: 'Worker loop', what: 'one life of a worker' },
  { level: 'load_all', name: 'load all', seed: 'load all', what: 'one pass over all objects' },
  { level: 'benchmark', name: 'benchmark', seed: 'benchmark', what: 'set-up, warm-up and all passes' },
]

export const STATISTICS = ['mean', 'median', 'min', 'max'] as const
export type Statistic = (typeof STATISTICS)[number]

export function statisticOf(time: Spread, statistic: Statistic): number {
  return time[`${statistic}_s`]
}

/** Least and most of the passes. */
export function passRange({ cell }: Load, figure: 'items_per_s' | 'mb_per_s'): { min: number; max: number } | null {
  const values = cell.passes.map((pass) => pass[figure])
  return values.length > 0 ? { min: Math.min(...values), max: Math.max(...values) } : null
}

/** A row for each load and level, with everything that is known of its times. */
export function levelSheet(loads: readonly Load[]): Sheet {
  const time = (name: string, head: string) => ({ name, head, text: seconds })
  return {
    columns: [
      { name: 'load', head: 'Load' },
      { name: 'mode', head: 'Mode' },
      { name: 'workers', head: 'Workers', text: count },
      { name: 'in_flight', head: 'In flight', text: count },
      { name: 'batch_size', head: 'Batch', text: count },
      { name: 'level', head: 'Level' },
      { name: 'n', head: 'Calls', text: count },
      time('mean_s', 'Mean'),
      time('median_s', 'Median'),
      time('min_s', 'Min'),
      time('max_s', 'Max'),
      time('stdev_s', 'Std. dev.'),
      time('p90_s', 'p90'),
      time('p99_s', 'p99'),
      time('p999_s', 'p99.9'),
      time('sum_s', 'Sum'),
      { name: 'books', head: 'Books' },
    ],
    rows: loads.flatMap(({ label, cell }) =>
      LEVELS.map(({ level }) => {
        const found = cell.levels[level]
        const figures = found ? [found.n, found.mean_s, found.median_s, found.min_s, found.max_s, found.stdev_s, found.p90_s, found.p99_s, found.p999_s, found.sum_s] : [0, ...Array<null>(9).fill(null)]
        return [label, cell.mode, cell.workers, cell.in_flight, cell.batch_size, level, ...figures, cell.books.balanced ? 'balanced' : 'VOID']
      }),
    ),
  }
}

/** A row for each load: how much it read in a second. */
export function rateSheet(loads: readonly Load[]): Sheet {
  return {
    columns: [
      { name: 'load', head: 'Load' },
      { name: 'mode', head: 'Mode' },
      { name: 'workers', head: 'Workers', text: count },
      { name: 'reads_at_most', head: 'Reads at most', text: count },
      { name: 'items_per_s', head: 'Items', text: itemsRate },
      { name: 'slowest_pass_items_per_s', head: 'Slowest pass', text: itemsRate },
      { name: 'fastest_pass_items_per_s', head: 'Fastest pass', text: itemsRate },
      { name: 'mb_per_s', head: 'MB (10⁶)', text: megabytesRate },
      { name: 'mib_per_s', head: 'MiB (2²⁰)', text: (value) => `${number(value)} MiB/s` },
      { name: 'mbit_per_s', head: 'Mbit (10⁶)', text: (value) => `${number(value)} Mbit/s` },
      { name: 'reads_in_flight', head: 'In flight', text: number },
      { name: 'ceiling_items_per_s', head: 'Client’s ceiling', text: itemsRate },
      { name: 'limited_by', head: 'Client' },
      { name: 'books', head: 'Books' },
    ],
    rows: loads.map((load) => {
      const { label, cell } = load
      const range = passRange(load, 'items_per_s')
      return [
        label,
        cell.mode,
        cell.workers,
        cell.permits,
        cell.items_per_s,
        range?.min ?? null,
        range?.max ?? null,
        cell.mb_per_s,
        cell.mib_per_s,
        cell.mbit_per_s,
        cell.little.in_flight,
        cell.ceiling?.items_per_s ?? null,
        cell.ceiling ? (cell.ceiling.is_client_bound ? 'client-bound' : 'not the limit') : 'not measured',
        cell.books.balanced ? 'balanced' : 'VOID',
      ]
    }),
  }
}

export function quantilesOf(time: Spread | null): { name: string; at_s: number }[] {
  if (!time) return []
  return [
    { name: 'p50', at_s: time.median_s },
    { name: 'p90', at_s: time.p90_s },
    { name: 'p99', at_s: time.p99_s },
    { name: 'p99.9', at_s: time.p999_s },
  ]
}

export function latencySheet(loads: readonly Load[]): Sheet {
  return {
    columns: [
      { name: 'load', head: 'Load' },
      { name: 'from_s', head: 'From', text: seconds },
      { name: 'to_s', head: 'To', text: seconds },
      { name: 'reads', head: 'Reads', text: count },
      { name: 'share', head: 'Share', text: share },
    ],
    rows: loads.flatMap(({ label, cell }) => cell.latency_bins.map(({ from_s, to_s, count, share }) => [label, from_s, to_s, count, share])),
  }
}
