// Figures of a profile for its chart: speed-ups by the number of ops at a time.

import type { Profile, StageProfile } from '../api/types'
import { sheetOf, type Sheet } from '../charts/sheet'
import { count, number, samplesRate, seconds } from '../parts/format'

type Point = StageProfile['points'][number]
interface Row {
  stage: StageProfile
  point: Point
}

/** Rate at a point as a multiple of that at the first point of the stage. */
export function speedUp({ points }: StageProfile, { samples_per_s }: Point): number {
  const first = points[0]?.samples_per_s ?? 0
  return first > 0 ? samples_per_s / first : 0
}

/** The largest number of ops at a time of any stage. */
export const mostAtATime = ({ stages }: Profile): number => Math.max(1, ...stages.flatMap(({ points }) => points.map(({ at_a_time }) => at_a_time)))

/** Numbers 1, 2, 4, ... up to `most`, and `most`. */
export function doublings(most: number): number[] {
  const numbers: number[] = []
  for (let number = 1; number < most; number *= 2) numbers.push(number)
  return [...numbers, most]
}

export function profileSheet({ stages }: Profile): Sheet {
  const rows = stages.flatMap((stage) => stage.points.map((point): Row => ({ stage, point })))
  return sheetOf(rows, [
    { name: 'stage', head: 'Stage', of: ({ stage }) => stage.id },
    { name: 'at_a_time', head: 'At a time', text: count, of: ({ point }) => point.at_a_time },
    { name: 'samples_per_s', head: 'Rate', text: samplesRate, of: ({ point }) => point.samples_per_s },
    { name: 'op_s', head: 'Op', text: seconds, of: ({ point }) => point.op_s },
    { name: 'cpu_s', head: 'CPU of an op', text: seconds, of: ({ point }) => point.cpu_s ?? null },
    { name: 'slowdown', head: 'Slowdown', text: number, of: ({ point }) => point.slowdown },
    { name: 'failed_samples', head: 'Failed', text: count, of: ({ point }) => point.failed_samples },
  ])
}
