import { expect, it } from 'vitest'

import type { Page } from '../api/types'
import { Pager } from './pager.svelte'

interface Asked {
  cursor: string | null
  signal: AbortSignal
  answer: (items: number[], next?: string | null) => void
  fail: () => void
}

/** A pager whose server is the test. */
function asked(): { asked: Asked[]; fetch: (cursor: string | null, signal: AbortSignal) => Promise<Page<number>> } {
  const asked: Asked[] = []
  const fetch = (cursor: string | null, signal: AbortSignal) =>
    new Promise<Page<number>>((resolve, reject) => {
      signal.addEventListener('abort', () => reject(new DOMException('given up', 'AbortError')))
      asked.push({ cursor, signal, answer: (items, next = null) => resolve({ items, next }), fail: () => reject(new Error('gone')) })
    })
  return { asked, fetch }
}

it('tells who asks for more whether it came, also when all is fetched again in the middle of that', async () => {
  const server = asked()
  const pager = new Pager<number>()
  const started = pager.start(server.fetch)
  server.asked[0]?.answer([1, 2], 'b')
  expect(await started).toBe(true)

  const more = pager.more()
  expect(await pager.more()).toBe(false) // already asked for
  const again = pager.again()
  expect(await more).toBe(false)
  expect([server.asked[1]?.signal.aborted, pager.loading]).toEqual([true, true])

  server.asked[2]?.answer([1, 2], 'b')
  expect(await again).toBe(true)
  expect([pager.items, pager.next, pager.loading]).toEqual([[1, 2], 'b', false])
})

it('ends whoever asks on and on when a page fails, or when nobody looks any more', async () => {
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

it('fetches again as much as is shown, and shows it at once', async () => {
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

it('keeps what was changed while a further page was fetched', async () => {
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
