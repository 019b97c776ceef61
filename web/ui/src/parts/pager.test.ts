import { expect, it } from 'vitest'

import type { Page } from '../api/types'
import { Pager } from './pager.svelte'

interface Asked {
  cursor: string | null
  signal: AbortSignal
  answer: (items: number[], next?: string | null) => void
  fail: () => void
}

/** Requests of a pager, which the test answers. */
function asked(): { asked: Asked[]; fetch: (cursor: string | null, signal: AbortSignal) => Promise<Page<number>> } {
  const asked: Asked[] = []
  const fetch = (cursor: string | null, signal: AbortSignal) =>
    new Promise<Page<number>>((resolve, reject) => {
      signal.addEventListener('abort', () => reject(new DOMException('given up', 'AbortError')))
      asked.push({ cursor, signal, answer: (items, next = null) => resolve({ items, next }), fail: () => reject(new Error('gone')) })
    })
  return { asked, fetch }
}

it('resolves `more` to false when `again` cancels it', async () => {
  const server = asked()
  const pager = new Pager<number>()
  const started = pager.start(server.fetch)
  server.asked[0]?.answer([1, 2], 'b')
  expect(await started).toBe(true)

  const more = pager.more()
  expect(await pager.more()).toBe(false) // a request is pending
  const again = pager.again()
  expect(await more).toBe(false)
  expect([server.asked[1]?.signal.aborted, pager.loading]).toEqual([true, true])

  server.asked[2]?.answer([1, 2], 'b')
  expect(await again).toBe(true)
  expect([pager.items, pager.next, pager.loading]).toEqual([[1, 2], 'b', false])
})

it('stops repeated calls of `more` after a failure and after `end`', async () => {
  const server = asked()
  const pager = new Pager<number>()
  const started = pager.start(server.fetch)
  server.asked[0]?.answer([1], 'b')
  await started

  const failed = pager.more()
  server.asked[1]?.fail()
  expect([await failed, pager.problem?.detail, pager.next]).toEqual([false, 'gone', 'b'])

  const left = pager.more()
  pager.end()
  expect([await left, await pager.more(), await pager.again()]).toEqual([false, false, false])
  expect(server.asked).toHaveLength(3)
})

it('fetches as many entries again as are shown, and shows them together', async () => {
  const server = asked()
  const pager = new Pager<number>()
  const started = pager.start(server.fetch)
  server.asked[0]?.answer([1, 2], 'b')
  await started
  const more = pager.more()
  server.asked[1]?.answer([3, 4], 'c')
  await more
  expect(pager.items).toEqual([1, 2, 3, 4])

  const again = pager.again()
  server.asked[2]?.answer([0, 1], 'b')
  await Promise.resolve()
  expect(pager.items).toEqual([1, 2, 3, 4])
  await expect.poll(() => server.asked.length).toBe(4)
  server.asked[3]?.answer([2, 3], 'c')
  await again
  expect([pager.items, pager.next, server.asked.map(({ cursor }) => cursor)]).toEqual([[0, 1, 2, 3], 'c', [null, 'b', null, 'b']])
})

it('keeps changes of entries made while a further page was fetched', async () => {
  const server = asked()
  const pager = new Pager<number>()
  const started = pager.start(server.fetch)
  server.asked[0]?.answer([1], 'b')
  await started
  const more = pager.more()
  pager.items = [10]
  server.asked[1]?.answer([2])
  await more
  expect(pager.items).toEqual([10, 2])
})

it('shows an entry once that has moved to the next page', async () => {
  const server = asked()
  const pager = new Pager<number>(String)
  const started = pager.start(server.fetch)
  server.asked[0]?.answer([1, 2], 'b')
  await started
  const more = pager.more()
  server.asked[1]?.answer([2, 3])
  await more
  expect(pager.items).toEqual([1, 2, 3])
})

it('fetches long lists again in few pages', async () => {
  const limits: number[] = []
  const pager = new Pager<number>()
  const fetch = async (cursor: string | null, _: AbortSignal, limit: number) => {
    limits.push(limit)
    const from = Number(cursor)
    return { items: Array.from({ length: limit }, (_, at) => from + at), next: String(from + limit) }
  }
  await pager.start(fetch, 410)
  expect([limits, pager.items.length]).toEqual([[200, 200, 50], 450])
  await pager.more()
  expect([limits.at(-1), pager.items.length]).toEqual([50, 500])
})
