import { expect, it } from 'vitest'

import { delta } from './delta'

const said = (...of: Parameters<typeof delta>) => {
  const found = delta(...of)
  return found && [found.sign, found.text.replaceAll('\u202f', ' '), found.word].join('|')
}

it('names amount, direction and improvement of a difference', () => {
  expect(said(100, 112, 'rate', 'more')).toBe('▲|12 % more|better')
  expect(said(0.02, 0.015, 'time', 'less')).toBe('▼|25 % less|better')
  expect(said(0.02, 0.025, 'time', 'less')).toBe('▲|25 % more|worse')
  expect(said(4, 5, 'count', null)).toBe('▲|25 % more|')
})

it('counts differences of shares in points', () => {
  expect(said(0.5, 0.75, 'share', 'more')).toBe('▲|25 points more|better')
  expect(said(0.02, 0.01, 'share', 'less')).toBe('▼|1.0 points less|better')
})

it('shows large ratios as multiples', () => {
  expect(said(10, 24, 'rate', 'more')).toBe('▲|2.4×|better')
  expect(said(24, 10, 'rate', 'more')).toBe('▼|58 % less|worse')
})

it('has no difference from missing values', () => {
  expect(said(null, 1, 'rate', 'more')).toBeNull()
  expect(said(1, null, 'rate', 'more')).toBeNull()
  expect(said(0, 0, 'rate', 'more')).toBe('=|same|')
  expect(said(1000, 1001, 'rate', 'more')).toBe('=|same|')
  expect(said(0, 3, 'count', 'less')).toBe('▲|3.0 more|worse')
})
