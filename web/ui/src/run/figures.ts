// The window of a run whose figures a page shows: in the address, in a request, and in words.

import type { FigureWindow, QueryOf, RunFigures } from '../api/types'
import { place } from '../app/router.svelte'
import { windowOf, type Window } from '../charts/window'
import { clock } from '../parts/format'

/** Parameters of the address that belong to the window and the charts, and stay when another page of the run opens. */
const KEPT = ['from', 'to', 'last', 'hide']

/** Window of the figures in the address: a run that is over is shown whole, warm-up left out. */
export function askOf(over: boolean): QueryOf<'show_figures'> {
  const window: Window = windowOf(place.query, over)
  if (!window.follow) return { from_s: window.from_s, to_s: window.to_s }
  return window.span_s === null ? {} : { last_s: window.span_s }
}

/** The window in words: `last 30 s`, `whole run without warm-up`, `1:20 to 2:05`. */
export function windowInWords({ kind, from_s, to_s }: FigureWindow): string {
  switch (kind) {
    case 'whole':
      return 'whole run'
    case 'steady':
      return 'whole run without warm-up'
    case 'last':
      return `last ${span(Math.round(to_s - from_s))}`
    case 'range':
      return `${clock(from_s, to_s - from_s < 8)} to ${clock(to_s, to_s - from_s < 8)}`
  }
}

/** A round time in the largest unit that fits: `30 s`, `5 min`, `1 h`. */
function span(whole_s: number): string {
  if (whole_s % 3600 === 0) return `${whole_s / 3600} h`
  return whole_s >= 60 && whole_s % 60 === 0 ? `${whole_s / 60} min` : `${whole_s} s`
}

/** The address of another page of the run, with the window and the hidden lines of this one. */
export function sameWindow(path: string): string {
  const kept = new URLSearchParams([...place.query].filter(([name]) => KEPT.includes(name))).toString()
  return kept ? `${path}?${kept}` : path
}

/** The unit of what the consumer takes, for one and for several. */
export function unitOf({ batches_per_s }: Pick<RunFigures, 'batches_per_s'>): 'sample' | 'batch' {
  return batches_per_s === null ? 'sample' : 'batch'
}
