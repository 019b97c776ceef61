// Difference between a figure and the same figure of the baseline.

import { figure, type Quantity } from '../parts/format'

/** Better direction of a figure; `null` if neither direction is better. */
export type Better = 'more' | 'less' | null

export interface Delta {
  sign: '▲' | '▼' | '='
  /** Amount, e.g. `12 % more`, `2.4×`, `8 points less` or `same`. */
  text: string
  /** Empty if neither direction is better. */
  word: '' | 'better' | 'worse'
}

/** Minimum relative difference that counts. Repeated runs of one document differ by less. */
const SAME = 0.005
const MANIFOLD = 2

export function delta(base: number | null, value: number | null, quantity: Quantity | 'count', better: Better): Delta | null {
  if (base === null || value === null) return null
  const difference = value - base
  const scale = quantity === 'share' ? 1 : Math.max(Math.abs(base), Math.abs(value))
  if (difference === 0 || Math.abs(difference) < SAME * scale) return { sign: '=', text: 'same', word: '' }
  const isMore = difference > 0
  const word = better === null ? '' : (better === 'more') === isMore ? 'better' : 'worse'
  return { sign: isMore ? '▲' : '▼', text: amount(base, value, quantity), word }
}

function amount(base: number, value: number, quantity: Quantity | 'count'): string {
  const direction = value > base ? 'more' : 'less'
  if (quantity === 'share') return `${digits(Math.abs(value - base) * 100)} points ${direction}`
  if (base <= 0) return `${quantity === 'count' ? digits(Math.abs(value - base)) : figure(Math.abs(value - base), quantity)} ${direction}`
  const ratio = value / base
  if (ratio >= MANIFOLD) return `${digits(ratio)}×`
  return `${digits(Math.abs(ratio - 1) * 100)}\u202f% ${direction}`
}

function digits(value: number): string {
  return value >= 100 ? String(Math.round(value)) : value >= 10 ? value.toFixed(0) : value.toFixed(1)
}
