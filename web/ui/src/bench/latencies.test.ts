import { expect, it } from 'vitest'

import { quantilesOf } from './latencies'
import { spread } from './sample'

it('percentiles have their names', () => {
  expect(quantilesOf(spread(0.001)).map(({ name, at_s }) => [name, at_s])).toEqual([['p50', 0.001], ['p90', 0.002], ['p99', 0.003], ['p99.9', 0.004]])
  expect(quantilesOf(null)).toEqual([])
})
