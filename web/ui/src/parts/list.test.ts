// @vitest-environment jsdom
import { afterEach, expect, it, vi } from 'vitest'

import { List } from './list.svelte'

afterEach(() => window.history.replaceState(null, ''))

const rows = ['a', 'b', 'c', 'd', 'e'].map((id) => ({ id }))
const ids = (list: List<{ id: string }>) => list.selected.map(({ id }) => id).join('')

async function started(): Promise<List<{ id: string }>> {
  const list = new List<{ id: string }>()
  await list.start(async (cursor) => (cursor ? { items: rows.slice(3), next: null } : { items: rows.slice(0, 3), next: 'd' }))
  return list
}

const select = (list: List<{ id: string }>, id: string, on: boolean, range = false) => list.select(list.items.find((row) => row.id === id) ?? { id }, on, range)

it('selects single rows and ranges', async () => {
  const list = await started()
  await list.more()
  select(list, 'd', true)
  select(list, 'b', true, true)
  expect(ids(list)).toBe('bcd')
  select(list, 'c', false)
  expect(ids(list)).toBe('bd')
  select(list, 'e', false, true)
  expect(ids(list)).toBe('b')
  list.selectAll(true)
  expect(ids(list)).toBe('abcde')
})

it('counts rows as selected only while they are shown', async () => {
  const list = await started()
  list.selectAll(true)
  list.items = rows.slice(1, 2)
  expect(ids(list)).toBe('b')
})

it('restores rows, selection and scroll position from the history entry', async () => {
  const scrolled = vi.spyOn(window, 'scrollTo').mockImplementation(() => {})
  const first = await started()
  await first.more()
  select(first, 'e', true)
  const end = first.keep()
  vi.stubGlobal('scrollY', 321)
  document.dispatchEvent(new Event('click'))
  end()

  const second = await started()
  expect([second.items.length, ids(second)]).toEqual([5, 'e'])
  await new Promise(requestAnimationFrame)
  expect(scrolled.mock.lastCall).toEqual([0, 321])
  vi.unstubAllGlobals()
})
