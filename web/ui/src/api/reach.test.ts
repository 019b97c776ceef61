import { afterEach, beforeEach, expect, it, vi } from 'vitest'

import { Reach } from './reach.svelte'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

it('checks a lost server with growing delays, and calls the waiting tasks when it answers', async () => {
  const checks: number[] = []
  let answers = false
  const reach = new Reach(async () => (checks.push(Date.now()), answers))
  const [start, back] = [Date.now(), vi.fn()]
  reach.heard(false)
  reach.onBack(back)
  await vi.advanceTimersByTimeAsync(30_000)
  expect(checks.map((at) => at - start)).toEqual([1000, 3000, 7000, 15_000, 23_000])
  expect([reach.lostAt, back.mock.calls.length]).toEqual([start, 0])
  answers = true
  expect(await reach.check()).toBe(true)
  expect([reach.lostAt, back.mock.calls.length]).toEqual([null, 1])
  await vi.advanceTimersByTimeAsync(30_000)
  expect([checks.length, back.mock.calls.length]).toEqual([6, 1])
})

it('keeps the time of the first request without an answer', async () => {
  const reach = new Reach(() => Promise.resolve(false))
  reach.heard(false)
  const since = reach.lostAt
  await vi.advanceTimersByTimeAsync(5000)
  reach.heard(false)
  expect(reach.lostAt).toBe(since)
  reach.heard(true)
  expect(reach.lostAt).toBeNull()
})
