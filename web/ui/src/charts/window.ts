// Time range of a run that charts show, as stored in the address of the page.

/** The last `span_s` seconds of the run (`null` for the whole run), or a fixed range. */
export type Window = { follow: true; span_s: number | null } | { follow: false; from_s: number; to_s: number }

export interface Range {
  from_s: number
  to_s: number
}

export const DEFAULT_SPAN_S = 60
/** Length of the shortest range, in seconds: four rows of 250 ms. */
const CLOSEST_S = 1

/** Window in the address: `from` and `to`, or `last`. By default, a run that is over is shown whole. */
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

/** Range for the address: within the run, at least `CLOSEST_S` long, and rounded. */
export function zoomTo(from_s: number, to_s: number, elapsed_s: number): Range {
  return rounded(rangeAround((from_s + to_s) / 2, to_s - from_s, elapsed_s, CLOSEST_S))
}

export type Step = 'earlier' | 'later' | 'closer' | 'wider'

const STEPS: Record<string, Step | 'home'> = { ArrowLeft: 'earlier', ArrowRight: 'later', '+': 'closer', '=': 'closer', '-': 'wider', '0': 'home' }

/** Step for a key; `home` returns to the default range. */
export function stepOf({ key, ctrlKey, metaKey }: KeyboardEvent): Step | 'home' | null {
  return ctrlKey || metaKey ? null : (STEPS[key] ?? null)
}

export function stepped(range: Range, step: Step, elapsed_s: number): Range {
  return rounded(rangeAround(...moved(range, step), elapsed_s, CLOSEST_S))
}

/** Like `stepped`, but without rounding and with a minimum relative to `whole_s`, for axes of milliseconds. */
export function zoomed(range: Range, step: Step, whole_s: number): Range {
  return rangeAround(...moved(range, step), whole_s, whole_s / 200)
}

/** Range in which the times `one` and `other` lie at the shares `at` and `next` of its width: two fingers drag the times there. */
export function pinched([one, other]: [number, number], [at, next]: [number, number]): Range {
  const gap = Math.abs(next - at) < 0.02 ? 0.02 * Math.sign(next - at || other - one) : next - at
  const length = Math.max((other - one) / gap, CLOSEST_S)
  const from_s = Math.max(0, one - at * length)
  return { from_s, to_s: from_s + length }
}

function moved({ from_s, to_s }: Range, step: Step): [middle: number, span: number] {
  const [middle, span] = [(from_s + to_s) / 2, to_s - from_s]
  const steps: Record<Step, [middle: number, span: number]> = {
    earlier: [middle - span / 4, span],
    later: [middle + span / 4, span],
    closer: [middle, span / 2],
    wider: [middle, span * 2],
  }
  return steps[step]
}

/** Range of a length around `middle`, shifted into the whole. */
function rangeAround(middle: number, length: number, whole_s: number, closest_s: number): Range {
  const span = Math.min(Math.max(length, closest_s), Math.max(whole_s, closest_s))
  const from_s = Math.min(Math.max(0, middle - span / 2), Math.max(0, whole_s - span))
  return { from_s, to_s: from_s + span }
}

export function number(text: string | null): number | null {
  if (text === null || text.trim() === '') return null
  const value = Number(text)
  return Number.isFinite(value) && value >= 0 ? value : null
}

function rounded({ from_s, to_s }: Range): Range {
  return { from_s: Math.round(from_s * 100) / 100, to_s: Math.round(to_s * 100) / 100 }
}
