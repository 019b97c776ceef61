// The range of a run that charts show. The address has it, so that a link shows the same.

/** Follows now with the last `span_s` seconds (`null`: the whole run), or stays where it was put. */
export type Window = { follow: true; span_s: number | null } | { follow: false; from_s: number; to_s: number }

export interface Range {
  from_s: number
  to_s: number
}

export const DEFAULT_SPAN_S = 60
/** Length of the shortest range, in seconds: four rows of 250 ms. */
const CLOSEST_S = 1

/** Reads `from` and `to`, or `last`. A run that is over is shown whole unless the address says otherwise. */
export function windowOf(query: URLSearchParams, over: boolean): Window {
  const from_s = number(query.get('from'))
  const to_s = number(query.get('to'))
  if (from_s !== null && to_s !== null && to_s > from_s) return { follow: false, from_s, to_s }
  const last = query.get('last')
  if (last === 'all') return { follow: true, span_s: null }
  const span_s = number(last)
  if (span_s !== null && span_s > 0) return { follow: true, span_s }
  return { follow: true, span_s: over ? null : DEFAULT_SPAN_S }
}

export function rangeOf(window: Window, elapsed_s: number): Range {
  if (!window.follow) return { from_s: window.from_s, to_s: window.to_s }
  const span_s = window.span_s ?? elapsed_s
  return { from_s: Math.max(0, elapsed_s - span_s), to_s: Math.max(elapsed_s, CLOSEST_S) }
}

/** `from` and `to` for the address of a range within the run, not closer than can be measured. */
export function zoomTo(from_s: number, to_s: number, elapsed_s: number): Range {
  return rounded(rangeAround((from_s + to_s) / 2, to_s - from_s, elapsed_s, CLOSEST_S))
}

export type Step = 'earlier' | 'later' | 'closer' | 'wider'

const STEPS: Record<string, Step | 'home'> = { ArrowLeft: 'earlier', ArrowRight: 'later', '+': 'closer', '=': 'closer', '-': 'wider', '0': 'home' }

/** The step that a key asks for; `home` shows what the chart showed at first. */
export function stepOf({ key, ctrlKey, metaKey }: KeyboardEvent): Step | 'home' | null {
  return ctrlKey || metaKey ? null : (STEPS[key] ?? null)
}

export function stepped(range: Range, step: Step, elapsed_s: number): Range {
  return rounded(rangeAround(...moved(range, step), elapsed_s, CLOSEST_S))
}

/** Like `stepped` for what may be over in milliseconds: nothing is rounded, and the closest is a part of the whole. */
export function zoomed(range: Range, step: Step, whole_s: number): Range {
  return rangeAround(...moved(range, step), whole_s, whole_s / 200)
}

/** The range in which two moments stand at these shares of its width: where two fingers have moved them. */
export function pinched([one, other]: [number, number], [at, next]: [number, number]): Range {
  const gap = Math.abs(next - at) < 0.02 ? 0.02 * Math.sign(next - at || other - one) : next - at
  const length = Math.max((other - one) / gap, CLOSEST_S)
  const from_s = Math.max(0, one - at * length)
  return { from_s, to_s: from_s + length }
}

/** The middle and the length of a range after a step. */
function moved({ from_s, to_s }: Range, step: Step): [middle: number, span: number] {
  const [middle, span] = [(from_s + to_s) / 2, to_s - from_s]
  switch (step) {
    case 'earlier':
      return [middle - span / 4, span]
    case 'later':
      return [middle + span / 4, span]
    case 'closer':
      return [middle, span / 2]
    case 'wider':
      return [middle, span * 2]
  }
}

/** The range of this length around `middle`, moved so that it lies within the whole. */
function rangeAround(middle: number, length: number, whole_s: number, closest_s: number): Range {
  const span = Math.min(Math.max(length, closest_s), Math.max(whole_s, closest_s))
  const from_s = Math.min(Math.max(0, middle - span / 2), Math.max(0, whole_s - span))
  return { from_s, to_s: from_s + span }
}

function number(text: string | null): number | null {
  if (text === null || text.trim() === '') return null
  const value = Number(text)
  return Number.isFinite(value) && value >= 0 ? value : null
}

function rounded({ from_s, to_s }: Range): Range {
  return { from_s: Math.round(from_s * 100) / 100, to_s: Math.round(to_s * 100) / 100 }
}
