// Series of several runs over one x column.

/** Rising ends of buckets, and what was measured in each. */
export interface Measured {
  ends: number[]
  values: (number | null)[]
}

/** Rising numbers from just above 0 to `to`. */
export function grid(to: number, points: number): number[] {
  return Array.from({ length: points }, (_, place) => ((place + 1) * to) / points)
}

/** At each place of `at` the value of the bucket that it lies in; `null` behind the last one. */
export function sampleAt({ ends, values }: Measured, at: readonly number[]): (number | null)[] {
  let bucket = 0
  return at.map((place) => {
    while (bucket < ends.length && (ends[bucket] as number) < place - 1e-9) bucket += 1
    return values[bucket] ?? null
  })
}

/** Items that had passed by the end of each bucket. In time that was not measured none are known to have passed. */
export function itemsAt(ends: readonly number[], qps: readonly (number | null)[], from_s: number): number[] {
  let items = 0
  return ends.map((end, place) => (items += (qps[place] ?? 0) * (end - (ends[place - 1] ?? from_s))))
}
