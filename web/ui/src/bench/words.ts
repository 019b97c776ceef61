// Words that several parts of a report say.

import type { BenchReport, BenchmarkSummary } from '../api/types'

/** A gain in words: `+12 %`, `14.4×`. */
export function gainText(gain: number): string {
  if (gain >= 1) return `${(gain + 1).toFixed(gain >= 9 ? 0 : 1)}× as fast`
  const percent = gain * 100
  return `${percent < 0 ? '−' : '+'}${Math.abs(percent).toFixed(Math.abs(percent) < 10 ? 1 : 0)}\u202f%`
}

export const KINDS: Record<BenchmarkSummary['kind'], string> = { folder: 'a folder', s3: 'a bucket', memory: 'memory' }

export type Verdict = 'completed' | 'failed' | 'stopped' | 'void' | 'incomplete'

/** Outcome of a benchmark in one word. Wrong figures come before everything else. */
export function verdictOf({ state, balanced, is_sound }: Pick<BenchmarkSummary, 'state' | 'balanced' | 'is_sound'>): Verdict {
  if (!balanced) return 'void'
  if (state !== 'completed') return state
  return is_sound ? 'completed' : 'incomplete'
}

/** Holds where everything was measured and all books balance. */
export function isSound(report: BenchReport): boolean {
  const failures = report.actions.flatMap((action) => ('whole_set' in action ? action.whole_set.flatMap(({ failures }) => failures) : action.calls.failures))
  return report.state === 'completed' && report.balanced && failures.length === 0
}
