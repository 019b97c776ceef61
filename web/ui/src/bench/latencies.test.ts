import { expect, it } from 'vitest'

import { binned, quantilesOf } from './latencies'
import { spread } from './sample'

it('no read is lost or divided, and two loads have the same ranges', () => {
  const ranges = [
    { from_s: 0.001, to_s: 0.00102, count: 3 },
    { from_s: 0.00102, to_s: 0.00104, count: 4 },
    { from_s: 0.002, to_s: 0.00204, count: 0 },
    { from_s: 0.01, to_s: 0.0102, count: 1 },
  ]
  const bins = binned(ranges)
  expect(bins.map(({ count }) => count)).toEqual([7, 1])
  expect(bins.map(({ share }) => share)).toEqual([0.875, 0.125])
  expect(bins[0]?.from_s).toBeCloseTo(0.001)
  expect((bins[0]?.to_s ?? 0) / (bins[0]?.from_s ?? 1)).toBeCloseTo(10 ** (1 / 24))
  expect(binned([{ from_s: 0.00101, to_s: 0.00103, count: 5 }])[0]?.from_s).toBe(bins[0]?.from_s)
  expect(binned([])).toEqual([])
})

it('a range that begins at 0 has a place, too', () => {
  const [bin] = binned([{ from_s: 0, to_s: 0.000001, count: 2 }])
  expect(bin?.count).toBe(2)
  expect(bin?.from_s).toBeGreaterThan(0)
})

it('percentiles have their names', () => {
  expect(quantilesOf(spread(0.001)).map(({ name, at_s }) => [name, at_s])).toEqual([['p50', 0.001], ['p90', 0.002], ['p99', 0.003], ['p99.9', 0.004]])
  expect(quantilesOf(null)).toEqual([])
})
