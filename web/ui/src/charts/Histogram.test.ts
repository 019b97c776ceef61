// @vitest-environment jsdom
import { cleanup, render } from '@testing-library/svelte'
import { afterEach, expect, it, vi } from 'vitest'

import Histogram from './Histogram.svelte'

vi.stubGlobal('ResizeObserver', class { observe() {} unobserve() {} disconnect() {} })

afterEach(cleanup)

const NO_MARKS = [{ name: 'p50', at_s: null }]

/** Left ends and widths of the bars over buckets of these bounds, in nanoseconds. */
function barsOf(bounds: [number, number][]): [number, number][] {
  const buckets = bounds.map(([from, to]) => ({ from_s: from / 1e9, to_s: to / 1e9, count: 1, share: 1 / bounds.length }))
  const { container } = render(Histogram, { label: 'Task times', buckets, marks: NO_MARKS })
  return [...container.querySelectorAll('rect[fill]')].map((bar) => [Number(bar.getAttribute('x')), Number(bar.getAttribute('width'))])
}

it('has one bar for each bucket of a few nanoseconds', () => {
  const bars = barsOf([[0, 1], [1, 2], [2, 3], [31, 32], [64, 66], [98, 100]])
  expect(bars).toHaveLength(6)
  const lefts = bars.map(([left]) => left)
  expect(lefts[0]).toBe(0)
  expect([...lefts].sort((one, other) => one - other)).toEqual(lefts)
  expect(new Set(lefts).size).toBe(6)
})

it('spans from the shortest to the longest time', () => {
  const [first, last] = barsOf([[1_000_000, 1_020_000], [100_000_000, 102_000_000]])
  expect(first?.[0]).toBeCloseTo(0)
  expect((last?.[0] ?? 0) + (last?.[1] ?? 0)).toBeCloseTo(599)
})
