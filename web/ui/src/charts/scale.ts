// Axes of drawn charts: where a value lies, and where a line with a figure helps to read it.

export interface Scale {
  low: number
  high: number
  /** The place of a value between `low` and `high`, from 0 to 1. */
  at: (value: number) => number
  ticks: number[]
}

/** A logarithmic axis around the values above 0, at least `decades` long, that begins `below` decades under the least, with at most `most` ticks. */
export function logScale(values: readonly number[], { decades = 0.5, most = 8, below = 0.06 } = {}): Scale {
  const seen = values.filter((value) => value > 0 && Number.isFinite(value))
  const [least, greatest] = seen.length > 0 ? [leastOf(seen), greatestOf(seen)] : [1, 10]
  let [low, high] = [Math.log10(least) - below, Math.log10(greatest) + 0.06]
  const lacking = decades - (high - low)
  if (lacking > 0) [low, high] = [low - lacking / 2, high + lacking / 2]
  const span = high - low
  return { low: 10 ** low, high: 10 ** high, at: (value) => clamped((Math.log10(Math.max(value, Number.MIN_VALUE)) - low) / span), ticks: logTicks(low, high, most) }
}

/** An axis from 0 to a little above the greatest value, with round ticks. */
export function linearScale(values: readonly number[], { most = 6, high: fixed = null as number | null } = {}): Scale {
  const greatest = greatestOf([0, ...values.filter(Number.isFinite)])
  const high = fixed ?? (greatest > 0 ? greatest * 1.06 : 1)
  const rough = high / most
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = power * ([1, 2, 5, 10].find((part) => part * power >= rough * (1 - 1e-9)) ?? 10)
  const ticks = Array.from({ length: Math.floor(high / step + 1e-9) + 1 }, (_, place) => Number((place * step).toPrecision(12)))
  return { low: 0, high, at: (value) => clamped(value / high), ticks }
}

/** The ticks whose words do not run into each other: each is `least` away from the next. `at` tells where one lies. */
export function spaced(ticks: readonly number[], at: (value: number) => number, least: number): number[] {
  const kept: number[] = []
  // From the far end: where steps get narrower, the round one stands there.
  for (const value of [...ticks].reverse()) {
    const last = kept[0]
    if (last === undefined || Math.abs(at(last) - at(value)) >= least) kept.unshift(value)
  }
  return kept
}

/** Rows for labels with these edges, in order, from 0: a label goes into the first row in which it touches no other. */
export function rowsOf(labels: readonly { left: number; right: number }[], gap = 6): number[] {
  const ends: number[] = []
  return labels.map(({ left, right }) => {
    const free = ends.findIndex((end) => end + gap <= left)
    const row = free === -1 ? ends.length : free
    ends[row] = right
    return row
  })
}

/** Ticks at 1, 2 and 5 of every power of ten, or fewer or more of them, as room is. */
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
  const found: number[] = []
  for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
    if (power % every !== 0) continue
    for (const part of parts) {
      const value = part * 10 ** power
      if (Math.log10(value) >= low && Math.log10(value) <= high) found.push(Number(value.toPrecision(6)))
    }
  }
  return found
}

function clamped(share: number): number {
  return Math.min(Math.max(share, 0), 1)
}

function leastOf(values: readonly number[]): number {
  return values.reduce((least, value) => Math.min(least, value), Infinity)
}

function greatestOf(values: readonly number[]): number {
  return values.reduce((greatest, value) => Math.max(greatest, value), -Infinity)
}
