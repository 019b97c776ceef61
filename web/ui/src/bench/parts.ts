// Parts of the mean read time of a load.

import type { Sheet } from '../charts/sheet'
import { count, seconds, share } from '../parts/format'
import type { Load } from './loads'

/** Parts of a read, in order. The wait for a permit precedes the read and is not a part of it. */
export const PART_WORDS = {
  retry: 'failed attempts and the pauses after them',
  connect: 'opening a connection, if necessary',
  first_byte: 'from the request to the first byte',
  body: 'from the first byte to the last byte',
  verify: 'checking length and checksum',
  else: 'the rest of the read, mostly waiting for a CPU core',
}

/** Table with a row for each load and part. */
export function partSheet(loads: readonly Load[]): Sheet {
  return {
    columns: [
      { name: 'load', head: 'Load' },
      { name: 'part', head: 'Part' },
      { name: 'mean_s', head: 'Mean time per read', text: seconds },
      { name: 'share', head: 'Share of the mean read time', text: share },
      { name: 'n', head: 'Reads with this part', text: count },
      { name: 'their_mean_s', head: 'Mean of reads with this part', text: seconds },
      { name: 'their_p99_s', head: 'p99 of reads with this part', text: seconds },
    ],
    rows: loads.flatMap(({ label, cell: { parts, mean_read } }) => {
      const times = (name: string) => parts.find((part) => part.name === name)?.time
      const row = (part: string, of: string, mean_s: number, share: number | null) => {
        const time = times(of)
        return [label, part, mean_s, share, time?.n ?? null, time?.mean_s ?? null, time?.p99_s ?? null]
      }
      const between = times('between')
      return [
        ...mean_read.parts.map(({ name, mean_s, share }) => row(name, name, mean_s, share)),
        ...(between ? [row('between reads, per batch', 'between', between.mean_s, null)] : []),
        ...(mean_read.permit_s === null ? [] : [row('wait for a permit, before the read', 'permit', mean_read.permit_s, null)]),
        ...mean_read.stages.map(({ name, mean_s }) => row(`stage ${name}, per item`, `stage:${name}`, mean_s, null)),
      ]
    }),
  }
}
