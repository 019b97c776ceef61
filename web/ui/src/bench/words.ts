// Labels and outcomes shared by several parts of a report.

import type { BenchReport, BenchmarkSummary } from '../api/types'

/** A gain as text: `+12 %`, `14× as fast`. */
export function gainText(gain: number): string {
  if (gain >= 1) return `${(gain + 1).toFixed(gain >= 9 ? 0 : 1)}× as fast`
  const percent = gain * 100
  return `${percent < 0 ? '−' : '+'}${Math.abs(percent).toFixed(Math.abs(percent) < 10 ? 1 : 0)}\u202f%`
}

export type Verdict = 'completed' | 'failed' | 'stopped' | 'void' | 'incomplete'

/** Outcome of a benchmark. A failed consistency check takes precedence over the state. */
export function verdictOf({ state, balanced, is_sound }: Pick<BenchmarkSummary, 'state' | 'balanced' | 'is_sound'>): Verdict {
  if (!balanced) return 'void'
  if (state !== 'completed') return state
  return is_sound ? 'completed' : 'incomplete'
}

/** True if everything was measured without failed reads and all consistency checks passed. */
export function isSound(report: BenchReport): boolean {
  const failures = report.actions.flatMap((action) => ('whole_set' in action ? action.whole_set.flatMap(({ failures }) => failures) : action.calls.failures))
  return report.state === 'completed' && report.balanced && failures.length === 0
}

/** Path of straight lines through the points, for a drawing. */
export function pathOf(points: readonly { x: number; y: number }[]): string {
  return points.map(({ x, y }, place) => `${place === 0 ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`).join('')
}
