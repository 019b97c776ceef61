// Compared runs or benchmarks. The page's address contains their ids and the baseline.

import { place, setQuery } from '../app/router.svelte'

export const [FEWEST, MOST] = [2, 6]

/** Address of a comparison with the oldest entry as the first column and baseline; `null` for too few or too many entries. */
export function compareLink<Row extends { id: string }>(to: string, rows: readonly Row[], timeOf: (row: Row) => string): string | null {
  if (rows.length < FEWEST || rows.length > MOST) return null
  const ids = rows.toSorted((one, other) => (timeOf(one) < timeOf(other) ? -1 : 1)).map(({ id }) => encodeURIComponent(id))
  return `${to}${ids.join(',')}&base=${ids[0]}`
}

export class Chosen {
  ids: string[]
  /** True if the number of entries allows a comparison. */
  fits: boolean

  /** `name` is the query parameter with the ids. */
  constructor(private readonly name: string) {
    const asked = $derived(place.query.get(this.name) ?? '')
    this.ids = $derived([...new Set(asked.split(',').filter(Boolean))])
    this.fits = $derived(this.ids.length >= FEWEST && this.ids.length <= MOST)
  }

  /** Index of the baseline: the entry in the parameter `base`, otherwise the oldest entry. */
  base(times: readonly string[]): number {
    const named = this.ids.indexOf(place.query.get('base') ?? '')
    const oldest = times.reduce((found, time, at) => (time < (times[found] ?? '') ? at : found), 0)
    return named >= 0 ? named : oldest
  }

  drop(id: string): void {
    setQuery({ [this.name]: this.ids.filter((each) => each !== id).join(',') })
  }
}

export const letter = (at: number) => String.fromCharCode(65 + at)
