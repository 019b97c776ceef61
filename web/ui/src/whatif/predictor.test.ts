import { afterEach, beforeEach, expect, it, vi } from 'vitest'

import { ApiError } from '../api/client'
import type { Predicted, PredictRequest } from '../api/types'
import { Predictor, SETTLE_MS } from './predictor.svelte'

beforeEach(() => {
  vi.useFakeTimers()
})
afterEach(() => {
  vi.useRealTimers()
})

interface Asked {
  request: PredictRequest
  signal: AbortSignal
  answer: (rate: number) => Promise<void>
  refuse: (cause: unknown) => Promise<void>
}

function predictor(): { predictor: Predictor; asked: Asked[] } {
  const asked: Asked[] = []
  const made = new Predictor(
    (request, signal) =>
      new Promise((resolve, reject) => {
        const settle = async (act: () => void) => {
          act()
          await vi.advanceTimersByTimeAsync(0)
        }
        asked.push({ request, signal, answer: (rate) => settle(() => resolve({ rate } as Predicted)), refuse: (cause) => settle(() => reject(cause)) })
      }),
  )
  return { predictor: made, asked }
}

it('requests one prediction after the settings have stopped changing', async () => {
  const { predictor: made, asked } = predictor()
  for (const value of [2, 3, 4]) {
    made.ask({ '/threads': value })
    vi.advanceTimersByTime(SETTLE_MS - 1)
  }
  expect(asked).toHaveLength(0)
  vi.advanceTimersByTime(1)
  expect(asked.map(({ request }) => request)).toEqual([{ set: { '/threads': 4 } }])
  expect(made.busy).toBe(true)
  await asked[0]?.answer(48)
  expect([made.predicted?.rate, made.busy]).toEqual([48, false])
})

it('ignores the answer to a superseded request', async () => {
  const { predictor: made, asked } = predictor()
  made.ask({ '/threads': 2 }, 0)
  vi.advanceTimersByTime(0)
  made.ask({ '/threads': 3 }, 0)
  vi.advanceTimersByTime(0)
  expect(asked[0]?.signal.aborted).toBe(true)
  await asked[0]?.answer(1)
  expect([made.predicted, made.busy]).toEqual([null, true])
  await asked[1]?.answer(2)
  expect(made.predicted?.rate).toBe(2)
})

it('keeps a problem until the next success', async () => {
  const { predictor: made, asked } = predictor()
  made.ask({ '/threads': 600 }, 0)
  vi.advanceTimersByTime(0)
  await asked[0]?.refuse(new ApiError({ type: '', title: '', status: 422, detail: '', errors: [{ pointer: '/threads', detail: 'too many' }] }))
  expect([made.problem?.errors?.map(({ pointer }) => pointer), made.busy]).toEqual([['/threads'], false])
  made.ask({}, 0)
  vi.advanceTimersByTime(0)
  await asked[1]?.answer(24)
  expect(made.problem).toBeNull()
})

it('requests proposals independently', async () => {
  const { predictor: made, asked } = predictor()
  void made.look()
  expect(asked[0]?.request).toEqual({ sweep: { max_threads: null, max_memory_mib: null } })
  expect(made.looking).toBe(true)
  await asked[0]?.answer(24)
  expect([made.usual?.rate, made.predicted, made.looking]).toEqual([24, null, false])
  made.end()
})
