import { expect, it } from 'vitest'

import { axisLabels, linearScale, logScale, rowsOf, spaced } from './scale'

it('all powers of ten have the same length on a logarithmic axis', () => {
  const scale = logScale([0.0001, 0.001, 0.01])
  const [first, second, third] = [0.0001, 0.001, 0.01].map(scale.at) as [number, number, number]
  expect(second - first).toBeCloseTo(third - second)
  expect(first).toBeGreaterThan(0)
  expect(third).toBeLessThan(1)
  expect(scale.ticks).toEqual([0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01])
})

it('limits the number of ticks, and adds ticks on a short axis', () => {
  expect(logScale([1e-6, 100], { most: 5 }).ticks).toEqual([1e-6, 1e-4, 0.01, 1, 100])
  expect(logScale([2, 4], { decades: 0.3 }).ticks).toEqual([2, 3, 4])
})

it('puts a single value in the middle', () => {
  expect(logScale([25]).at(25)).toBeCloseTo(0.5)
  expect(logScale([0, NaN, 3]).at(0)).toBe(0)
})

it('invents no ticks and no labels before there are figures', () => {
  expect([logScale([]).ticks, logScale([0]).ticks, linearScale([]).ticks]).toEqual([[], [], []])
  expect(linearScale([], { high: 1 }).ticks).toContain(1)
  expect(axisLabels([0, 0.5], 'time', false)).toEqual(['', ''])
  expect(axisLabels([0, 0.5], 'time', true).map((text) => text.replace('\u202f', ' '))).toEqual(['0', '500 ms'])
  expect(axisLabels([1], 'share', false).map((text) => text.replace('\u202f', ' '))).toEqual(['100 %'])
})

it('a linear axis begins at 0 and has round ticks', () => {
  const scale = linearScale([0.00061, 0.00326], { most: 4 })
  expect(scale.at(0)).toBe(0)
  expect(scale.ticks).toEqual([0, 0.001, 0.002, 0.003])
  expect(linearScale([0]).ticks).toEqual([0])
  expect(linearScale([0.3], { high: 1 }).at(0.5)).toBe(0.5)
})

it('omits labels that would overlap, and keeps powers of ten', () => {
  expect(spaced([0.8, 0.9, 1, 1.5, 2], (value) => value * 100, 45)).toEqual([1, 1.5, 2])
  expect(spaced([], (value) => value, 10)).toEqual([])
})

it('puts overlapping labels into different rows', () => {
  const label = (left: number, right: number) => ({ left, right })
  expect(rowsOf([label(0, 40), label(50, 90), label(60, 100), label(95, 130), label(104, 140)])).toEqual([0, 0, 1, 2, 0])
  expect(rowsOf([])).toEqual([])
})
