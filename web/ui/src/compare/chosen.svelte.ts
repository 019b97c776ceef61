// Runs or benchmarks that are compared: the address has their ids and the baseline.

import { place, setQuery } from '../app/router.svelte'

export const [FEWEST, MOST] = [2, 6]

/** Address of a comparison with the oldest entry first, as its baseline; `null` for too few or too many. */
export function compareLink<Row extends { id: string }>(to: string, rows: readonly Row[], timeOf: (row: Row) => string): string | null {
  if (rows.length < FEWEST || rows.length > MOST) return null
  const ids = rows.toSorted((one, other) => (timeOf(one) < timeOf(other) ? -1 : 1)).map(({ id }) => encodeURIComponent(id))
  return `${to}${ids.join(',')}&base=${ids[0]}`
}

export class Chosen {
  #asked: string
  ids: string[]
  fits: boolean

  /** `name` is the parameter of the address with the ids. */
  constructor(private readonly name: string) {
    this.#asked = $derived(place.query.get(this.name) ?? '')
    this.ids = $derived([...new Set(this.#asked.split(',').filter(Boolean))])
    this.fits = $derived(this.ids.length >= FEWEST && this.ids.length <= MOST)
  }

  /** Position of the baseline: the entry that the address names, otherwise the oldest. */
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
