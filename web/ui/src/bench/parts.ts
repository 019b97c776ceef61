// What the mean read of a load consists of.

import type { LoadReport } from '../api/types'
import type { Sheet } from '../charts/sheet'
import { count, seconds, share } from '../parts/format'
import type { Load } from './loads'

/** What a read does, in turn. Waiting for a permit comes before it, and is no part of it. */
export const READ_PARTS = ['retry', 'connect', 'first_byte', 'body', 'verify'] as const
/** What is left of a read: mostly waiting for a core. */
export const REST = 'else'

export const PART_WORDS: Record<string, string> = {
  retry: 'tries that failed, and the pauses behind them',
  connect: 'opening a connection, where one was opened',
  first_byte: 'from the request to the first byte',
  body: 'from the first byte to the last',
  verify: 'checking length and checksum',
  [REST]: 'what is left of the read, mostly waiting for a core',
}

export interface Segment {
  name: string
  /** Seconds of the mean read. */
  mean_s: number
  from_s: number
}

export interface Stack {
  load: Load
  /** The mean read; 0 where none was measured. */
  mean_s: number
  segments: Segment[]
  /** Mean time that a read waits for its permit before it begins. */
  permit_s: number | null
  /** Seconds of each stage for one item. */
  stages: { name: string; mean_s: number }[]
}

/** The mean read of a load, from its first part to its last; a part that few reads had counts for all of them. */
export function stackOf(load: Load): Stack {
  const { cell } = load
  const read = cell.levels.getitem
  const segments: Segment[] = []
  let from_s = 0
  const add = (name: string, mean_s: number) => {
    if (mean_s <= 0) return
    segments.push({ name, mean_s, from_s })
    from_s += mean_s
  }
  for (const name of READ_PARTS) add(name, perRead(cell, name) ?? 0)
  if (read) add(REST, read.mean_s - from_s)
  const stages = cell.parts
    .filter(({ name }) => name.startsWith('stage:'))
    .map(({ name, time }) => ({ name: name.slice('stage:'.length), mean_s: cell.items > 0 ? time.sum_s / cell.items : 0 }))
  return { load, mean_s: read?.mean_s ?? from_s, segments, permit_s: perRead(cell, 'permit'), stages }
}

/** Seconds of a part for each read, whether the read had it or not. */
function perRead(cell: LoadReport, name: string): number | null {
  const part = cell.parts.find((part) => part.name === name)
  const reads = cell.levels.getitem?.n ?? 0
  return part && reads > 0 ? part.time.sum_s / reads : null
}

/** A row for each load and part. */
export function partSheet(stacks: readonly Stack[]): Sheet {
  return {
    columns: [
      { name: 'load', head: 'Load' },
      { name: 'part', head: 'Part' },
      { name: 'mean_s', head: 'Of the mean read', text: seconds },
      { name: 'share', head: 'Share of it', text: share },
      { name: 'n', head: 'Reads that had it', text: count },
      { name: 'their_mean_s', head: 'Mean of those', text: seconds },
      { name: 'their_p99_s', head: 'p99 of those', text: seconds },
    ],
    rows: stacks.flatMap(({ load, mean_s, segments, permit_s, stages }) => {
      const times = (name: string) => load.cell.parts.find((part) => part.name === name)?.time
      const row = (part: string, of: string, mean: number | null, inside: boolean) => {
        const time = times(of)
        return [load.label, part, mean, inside && mean !== null && mean_s > 0 ? mean / mean_s : null, time?.n ?? null, time?.mean_s ?? null, time?.p99_s ?? null]
      }
      return [
        ...segments.map(({ name, mean_s }) => row(name, name, mean_s, true)),
        ...(times('between') ? [row('between reads, per batch', 'between', times('between')!.mean_s, false)] : []),
        ...(permit_s === null ? [] : [row('permit, before the read', 'permit', permit_s, false)]),
        ...stages.map(({ name, mean_s }) => row(`stage ${name}, per item`, `stage:${name}`, mean_s, false)),
      ]
    }),
  }
}
