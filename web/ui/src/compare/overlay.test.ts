import { expect, it } from 'vitest'

import { grid, itemsAt, sampleAt } from './overlay'

it('takes the value of the bucket at each position, and none after the last bucket', () => {
  const measured = { ends: [1, 2, 3], values: [10, null, 30] }
  expect(sampleAt(measured, [0.5, 1, 1.5, 2, 2.1, 3, 3.5])).toEqual([10, 10, null, null, 30, 30, null])
  expect(sampleAt({ ends: [], values: [] }, [1])).toEqual([null])
})

it('includes the ends of buckets', () => {
  const ends = grid(60, 600)
  expect(ends).toHaveLength(600)
  expect(ends.at(-1)).toBe(60)
  const values = ends.map((_, place) => place)
  expect(sampleAt({ ends, values }, ends)).toEqual(values)
})

it('adds up items, including the shorter last bucket', () => {
  expect(itemsAt([1, 2, 2.5], [10, null, 4], 0)).toEqual([10, 10, 12])
  expect(itemsAt([11], [3], 10)).toEqual([3])
})
