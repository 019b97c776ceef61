// @vitest-environment jsdom
import { expect, it } from 'vitest'

import { compareLink } from './chosen.svelte'

const run = (id: string, at: string) => ({ id, at })

it('begins a comparison with the oldest entry as its baseline', () => {
  const rows = [run('new', '2026-02'), run('old', '2026-01'), run('middle', '2026-01-15')]
  expect(compareLink('/compare?runs=', rows, ({ at }) => at)).toBe('/compare?runs=old,middle,new&base=old')
})

it('has no address for one entry or more than six', () => {
  const rows = Array.from({ length: 7 }, (_, at) => run(String(at), String(at)))
  expect([rows.slice(0, 1), rows, rows.slice(1)].map((some) => compareLink('/', some, ({ at }) => at) !== null)).toEqual([false, false, true])
})
