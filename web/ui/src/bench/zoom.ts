// Which stretch of a load is looked at. Loads may be over in milliseconds, so that stretches are not rounded as those of runs are.

import type { Range, Step } from '../charts/window'

export type { Step }

/** How much closer than the whole one may look. */
const CLOSEST = 1 / 200

export function zoomed({ from_s, to_s }: Range, step: Step, whole_s: number): Range {
  const span = to_s - from_s
  const middle = (from_s + to_s) / 2
  switch (step) {
    case 'earlier':
      return kept(middle - span / 4, span, whole_s)
    case 'later':
      return kept(middle + span / 4, span, whole_s)
    case 'closer':
      return kept(middle, Math.max(span / 2, whole_s * CLOSEST), whole_s)
    case 'wider':
      return kept(middle, Math.min(span * 2, whole_s), whole_s)
  }
}

function kept(middle: number, span: number, whole_s: number): Range {
  const from_s = Math.min(Math.max(0, middle - span / 2), whole_s - span)
  return { from_s, to_s: from_s + span }
}
