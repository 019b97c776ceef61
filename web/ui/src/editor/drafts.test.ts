import { expect, it } from 'vitest'

import { Drafts } from './drafts'

function storage(initial: Record<string, string> = {}) {
  const items = new Map(Object.entries(initial))
  return { getItem: (key: string) => items.get(key) ?? null, setItem: (key: string, value: string) => void items.set(key, value) }
}

const at = (second: number) => new Date(Date.UTC(2030, 0, 1, 0, 0, second))

it('keeps one draft for each start and forgets one at a time', () => {
  const kept = storage()
  new Drafts(() => kept).keep('', '{"a":1', at(1))
  new Drafts(() => kept).keep('run-1', '{}', at(2))
  const drafts = new Drafts(() => kept)
  expect(drafts.get('')).toEqual({ text: '{"a":1', saved_at: at(1).toISOString() })
  drafts.forget('')
  expect([drafts.get(''), drafts.get('run-1')?.text]).toEqual([null, '{}'])
})

it('drops the oldest draft', () => {
  const kept = storage()
  const drafts = new Drafts(() => kept)
  for (let n = 0; n < 10; n += 1) drafts.keep(`run-${n}`, String(n), at(n))
  expect([drafts.get('run-0'), drafts.get('run-1'), drafts.get('run-2')?.text, drafts.get('run-9')?.text]).toEqual([null, null, '2', '9'])
})

it('works with storage that is forbidden, full or holds other data', () => {
  const full = { getItem: () => null, setItem: () => { throw new Error('full') } }
  expect(() => new Drafts(() => full).keep('', 'x')).not.toThrow()
  expect(() => new Drafts(() => { throw new Error('forbidden') }).keep('', 'x')).not.toThrow()
  for (const odd of ['null', '[]', '{"": 1}', '{"": {"text": 1}}', '{']) {
    expect(new Drafts(() => storage({ 'penstock.drafts': odd })).get(''), odd).toBeNull()
  }
})
