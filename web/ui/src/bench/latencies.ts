// How long reads took, in ranges of equal width on a logarithmic axis.

import type { Spread } from '../api/types'
import type { Sheet } from '../charts/sheet'
import { count, seconds, share } from '../parts/format'
import type { Load } from './loads'

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
