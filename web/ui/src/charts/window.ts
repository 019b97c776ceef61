// Which stretch of a run is looked at. It stands in the address, so that a link shows the same.

/** Follows now with the last `span_s` seconds (`null`: the whole run), or stays where it was put. */
export type Window = { follow: true; span_s: number | null } | { follow: false; from_s: number; to_s: number }

export interface Range {
  from_s: number
  to_s: number
}

export const DEFAULT_SPAN_S = 300
/** Closer than this there is nothing to see: rows are 250 ms long. */
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

/** `from` and `to` for the address of a stretch within the run, not closer than can be measured. */
export function zoomTo(from_s: number, to_s: number, elapsed_s: number): Range {
  const span = Math.min(Math.max(to_s - from_s, CLOSEST_S), Math.max(elapsed_s, CLOSEST_S))
  const middle = (from_s + to_s) / 2
  const start = Math.min(Math.max(0, middle - span / 2), Math.max(0, elapsed_s - span))
  return { from_s: round(start), to_s: round(start + span) }
}

export type Step = 'earlier' | 'later' | 'closer' | 'wider'

export function stepped(range: Range, step: Step, elapsed_s: number): Range {
  const span = range.to_s - range.from_s
  const middle = (range.from_s + range.to_s) / 2
  switch (step) {
    case 'earlier':
      return zoomTo(range.from_s - span / 4, range.to_s - span / 4, elapsed_s)
    case 'later':
      return zoomTo(range.from_s + span / 4, range.to_s + span / 4, elapsed_s)
    case 'closer':
      return zoomTo(middle - span / 4, middle + span / 4, elapsed_s)
    case 'wider':
      return zoomTo(middle - span, middle + span, elapsed_s)
  }
}

function number(text: string | null): number | null {
  if (text === null || text.trim() === '') return null
  const value = Number(text)
  return Number.isFinite(value) && value >= 0 ? value : null
}

function round(value_s: number): number {
  return Math.round(value_s * 100) / 100
}
