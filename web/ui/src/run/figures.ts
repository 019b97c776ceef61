// The window of a run's figures: read from the address, written for requests, and in words.

import type { FigureWindow, QueryOf, RunFigures } from '../api/types'
import { place } from '../app/router.svelte'
import { windowOf, type Window } from '../charts/window'
import { clock } from '../parts/format'

/** Parameters of the address that links between pages of a run keep. */
const KEPT = ['from', 'to', 'last', 'warmup', 'hide']

/** True if the address selects the whole run with warm-up. */
export const withWarmUp = () => place.query.has('warmup')

/** Parameters for a request for the figures of the window in the address. */
export function askOf(over: boolean): QueryOf<'show_figures'> {
  const window: Window = windowOf(place.query, over)
  if (!window.follow) return { from_s: window.from_s, to_s: window.to_s }
  if (window.span_s !== null) return { last_s: window.span_s }
  return withWarmUp() ? { from_s: 0 } : {}
}

/** True if figures of the window `shown` are those of a choice: the last `span_s` seconds, or the whole run. */
export function isShown(shown: FigureWindow, window: Window, span_s: number | null): boolean {
  // The figures of a run that is shorter than its window are those of the whole run.
  return window.follow && (shown.kind === 'last' ? window.span_s : null) === span_s
}

/** Window in words: `last 30 s`, `whole run without warm-up`, `1:20 to 2:05`. */
export function windowInWords({ kind, from_s, to_s }: FigureWindow): string {
  switch (kind) {
    case 'whole':
      return 'whole run'
    case 'steady':
      return 'whole run without warm-up'
    case 'last':
      return `last ${spanInWords(Math.round(to_s - from_s))}`
    case 'range':
      return `${clock(from_s, to_s - from_s < 8)} to ${clock(to_s, to_s - from_s < 8)}`
  }
}

/** Duration in the largest unit that divides it: `30 s`, `5 min`, `1 h`. */
export function spanInWords(whole_s: number): string {
  if (whole_s % 3600 === 0) return `${whole_s / 3600} h`
  return whole_s >= 60 && whole_s % 60 === 0 ? `${whole_s / 60} min` : `${whole_s} s`
}

/** Address of another page of the run, with the present window and hidden lines. */
export function sameWindow(path: string): string {
  const kept = new URLSearchParams([...place.query].filter(([name]) => KEPT.includes(name))).toString()
  return kept ? `${path}?${kept}` : path
}

/** Unit of the items that the consumer takes. */
export function unitOf({ batches_per_s }: Pick<RunFigures, 'batches_per_s'>): 'sample' | 'batch' {
  return batches_per_s === null ? 'sample' : 'batch'
}
