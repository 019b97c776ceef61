// Series of several runs at the same x values.

/** Ends of the buckets, ascending, and the value of each bucket. */
export interface Measured {
  ends: number[]
  values: (number | null)[]
}

/** Evenly spaced numbers from 0 to `to`, without 0. */
export function grid(to: number, points: number): number[] {
  return Array.from({ length: points }, (_, place) => ((place + 1) * to) / points)
}

/** Value of the bucket at each position of `at`; `null` after the last bucket. */
export function sampleAt({ ends, values }: Measured, at: readonly number[]): (number | null)[] {
  let bucket = 0
  return at.map((place) => {
    while (bucket < ends.length && (ends[bucket] as number) < place - 1e-9) bucket += 1
    return values[bucket] ?? null
  })
}

/** Number of items delivered by the end of each bucket. A bucket without a rate adds no items. */
export function itemsAt(ends: readonly number[], qps: readonly (number | null)[], from_s: number): number[] {
  let items = 0
  return ends.map((end, place) => (items += (qps[place] ?? 0) * (end - (ends[place - 1] ?? from_s))))
}
