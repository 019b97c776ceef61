// Axes of drawn charts: positions of values, and ticks.

import { axisFigure, type Quantity } from '../parts/format'

export interface Scale {
  /** Position of a value on the axis, from 0 to 1. */
  at: (value: number) => number
  ticks: number[]
}

/** Labels of an axis. Without a figure, only the axis of a share has a scale; others have no labels. */
export function axisLabels(ticks: readonly number[], quantity: Quantity, isMeasured: boolean): string[] {
  return ticks.map((value) => (isMeasured || quantity === 'share' ? axisFigure(value, quantity) : ''))
}

/** Logarithmic axis for the positive values, without ticks if there are none: at least `decades` long, from `below` decades under the smallest value, with at most `most` ticks. */
export function logScale(values: readonly number[], { decades = 0.5, most = 8, below = 0.06 } = {}): Scale {
  const seen = values.filter((value) => value > 0 && Number.isFinite(value))
  const [least, greatest] = seen.length > 0 ? [Math.min(...seen), Math.max(...seen)] : [1, 10]
  let [low, high] = [Math.log10(least) - below, Math.log10(greatest) + 0.06]
  const lacking = decades - (high - low)
  if (lacking > 0) [low, high] = [low - lacking / 2, high + lacking / 2]
  const span = high - low
  return { at: (value) => clamped((Math.log10(Math.max(value, Number.MIN_VALUE)) - low) / span), ticks: seen.length > 0 ? logTicks(low, high, most) : [] }
}

/** Linear axis, without ticks if there are no values, from 0 to `high`, by default 6 % above the largest value, with at most `most` steps. */
export function linearScale(values: readonly number[], { most = 6, high: fixed = null as number | null } = {}): Scale {
  const greatest = Math.max(0, ...values.filter(Number.isFinite))
  const high = fixed ?? (greatest > 0 ? greatest * 1.06 : 1)
  const step = roundStep(high / most)
  // Without a positive value, 0 is the only tick.
  const count = fixed !== null || greatest > 0 ? Math.floor(high / step + 1e-9) + 1 : Math.min(values.length, 1)
  const ticks = Array.from({ length: count }, (_, place) => Number((place * step).toPrecision(12)))
  return { at: (value) => clamped(value / high), ticks }
}

/** Smallest step of at least `least` that is 1, 2 or 5 times a power of ten. */
export function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least))
  return power * ([1, 2, 5, 10].find((part) => part * power >= least * (1 - 1e-9)) ?? 10)
}

/** Ticks whose labels do not overlap: their positions `at` are at least `least` apart. */
export function spaced(ticks: readonly number[], at: (value: number) => number, least: number): number[] {
  const kept: number[] = []
  // Starts at the last tick: ticks of a logarithmic axis are close before a power of ten, and the power of ten is kept.
  for (const value of [...ticks].reverse()) {
    const last = kept[0]
    if (last === undefined || Math.abs(at(last) - at(value)) >= least) kept.unshift(value)
  }
  return kept
}

/** Row of each label, from 0: the first row in which the label does not overlap an earlier one. */
export function rowsOf(labels: readonly { left: number; right: number }[], gap = 6): number[] {
  const ends: number[] = []
  return labels.map(({ left, right }) => {
    const free = ends.findIndex((end) => end + gap <= left)
    const row = free === -1 ? ends.length : free
    ends[row] = right
    return row
  })
}

/** Ticks of a logarithmic axis at round multiples of powers of ten: as many as possible, but at most `most`. */
export function logTicks(low: number, high: number, most: number): number[] {
  const kinds = [[1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1]]
  for (const parts of kinds) {
    const found = within(low, high, parts, 1)
    if (found.length <= most) return found
  }
  for (let every = 2; ; every++) {
    const found = within(low, high, [1], every)
    if (found.length <= most) return found
  }
}

function within(low: number, high: number, parts: number[], every: number): number[] {
  const powers = Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, place) => Math.floor(low) + place)
  const values = powers.filter((power) => power % every === 0).flatMap((power) => parts.map((part) => part * 10 ** power))
  return values.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high).map((value) => Number(value.toPrecision(6)))
}

function clamped(share: number): number {
  return Math.min(Math.max(share, 0), 1)
}
