// How long reads took, in ranges of equal width on a logarithmic axis, so that two loads can lie over each other.

import type { LatencyRange, Spread } from '../api/types'
import type { Sheet } from '../charts/sheet'
import { count, seconds, share } from '../parts/format'
import type { Load } from './loads'

/** Ranges for each power of ten: each ends 10 % above its beginning. */
const PER_DECADE = 24

export interface Bin extends LatencyRange {
  /** Of all reads. */
  share: number
}

/** The counts in wider ranges. A recorded range, at most 3 % wide, goes as a whole where its middle lies: no read is divided. */
export function binned(ranges: readonly LatencyRange[]): Bin[] {
  const counts = new Map<number, number>()
  let all = 0
  for (const { from_s, to_s, count } of ranges) {
    if (count === 0) continue
    const middle = Math.sqrt(Math.max(from_s, to_s / 2) * to_s)
    const place = Math.floor(Math.log10(middle) * PER_DECADE + 1e-9)
    counts.set(place, (counts.get(place) ?? 0) + count)
    all += count
  }
  const edge = (place: number) => 10 ** (place / PER_DECADE)
  return [...counts]
    .sort(([one], [other]) => one - other)
    .map(([place, count]) => ({ from_s: edge(place), to_s: edge(place + 1), count, share: count / all }))
}

export const QUANTILES = ['p50', 'p90', 'p99', 'p99.9'] as const

export function quantilesOf(time: Spread | null): { name: string; at_s: number }[] {
  if (!time) return []
  const at = [time.median_s, time.p90_s, time.p99_s, time.p999_s]
  return QUANTILES.map((name, place) => ({ name, at_s: at[place] as number }))
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
    rows: loads.flatMap(({ label, cell }) => binned(cell.latencies).map(({ from_s, to_s, count, share }) => [label, from_s, to_s, count, share])),
  }
}
