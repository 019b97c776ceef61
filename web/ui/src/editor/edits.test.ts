import { jsonLanguage } from '@codemirror/lang-json'
import { describe, expect, it } from 'vitest'

import { compact } from '../parts/json'
import { insertElement, removeValue, setValue, swapWithNext, typedNumber, type Change } from './edits'

const text = `{
  "name": "photos",
  "stages": [
    { "fetch": { "concurrency": 12 } },
    { "collate": {} }
  ]
}
`

function edit(of: string, make: (tree: ReturnType<typeof jsonLanguage.parser.parse>, text: string) => Change | Change[] | null): string | null {
  const made = make(jsonLanguage.parser.parse(of), of)
  if (made === null) return null
  return [made]
    .flat()
    .sort((a, b) => b.from - a.from)
    .reduce((now, { from, to, insert }) => now.slice(0, from) + insert + now.slice(to), of)
}

const set = (pointer: string, value: unknown, of = text) => edit(of, (tree, now) => setValue(tree, now, pointer, compact(value)))
const take = (pointer: string, of = text) => edit(of, (tree, now) => removeValue(tree, now, pointer))

describe('setting a value', () => {
  it('changes only the characters of the value', () => {
    expect(set('/stages/0/fetch/concurrency', 4)).toBe(text.replace('12', '4'))
  })

  it('adds a key after the others', () => {
    expect(set('/seed', 7)).toBe(text.replace(']\n}', '],\n  "seed": 7\n}'))
    expect(set('/stages/0/fetch/queue', 3)).toBe(text.replace('12 }', '12, "queue": 3 }'))
    expect(set('/stages/1/collate/order', 'input')).toBe(text.replace('{}', '{ "order": "input" }'))
  })

  it('creates missing parents', () => {
    expect(set('/consumer/simulate/step_ms', 30)).toBe(text.replace(']\n}', '],\n  "consumer": { "simulate": { "step_ms": 30 } }\n}'))
  })

  it('does nothing if a parent is not an object', () => {
    expect(set('/name/x', 1)).toBeNull()
    expect(set('/stages/7', {})).toBeNull()
  })
})

describe('removing a value', () => {
  it('removes its key and one comma', () => {
    expect(take('/name')).toBe(text.replace('"name": "photos",\n  ', ''))
    expect(take('/stages')).toBe('{\n  "name": "photos"\n}\n')
    expect(take('/stages/1')).toBe(text.replace(',\n    { "collate": {} }', ''))
    expect(take('/stages/0/fetch/concurrency')).toBe(text.replace('{ "concurrency": 12 }', '{}'))
  })

  it('leaves valid JSON at each place', () => {
    for (const pointer of ['/name', '/stages', '/stages/0', '/stages/1', '/stages/0/fetch', '/stages/0/fetch/concurrency']) {
      expect(() => JSON.parse(take(pointer) as string), pointer).not.toThrow()
    }
    expect(take('')).toBeNull()
    expect(take('/none')).toBeNull()
  })
})

describe('stages', () => {
  const insert = (at: number, of = text) => edit(of, (tree, now) => insertElement(tree, now, '/stages', at, { sleep: { mean_ms: 5 } }))
  const kinds = (of: string | null) => (JSON.parse(of ?? 'null') as { stages: object[] }).stages.flatMap(Object.keys)

  it('are inserted at any place, on a line of their own', () => {
    expect([0, 1, 2].map((at) => kinds(insert(at)))).toEqual([
      ['sleep', 'fetch', 'collate'],
      ['fetch', 'sleep', 'collate'],
      ['fetch', 'collate', 'sleep'],
    ])
    for (const at of [0, 1, 2]) expect(insert(at)).toContain('\n    { "sleep": { "mean_ms": 5 } }')
    expect(insert(0, '{"stages": []}')).toBe('{"stages": [{ "sleep": { "mean_ms": 5 } }]}')
  })

  it('stand on lines of their own after all have been removed', () => {
    const none = take('/stages/0', take('/stages/0') ?? '') ?? ''
    expect(JSON.parse(none)).toEqual({ name: 'photos', stages: [] })
    const line = '\n    { "sleep": { "mean_ms": 5 } }'
    expect(insert(1, insert(0, none) ?? '')).toBe(`{\n  "name": "photos",\n  "stages": [${line},${line}\n  ]\n}\n`)
  })

  it('keep their text when they are swapped', () => {
    expect(edit(text, (tree, now) => swapWithNext(tree, now, '/stages', 0))).toBe(`{
  "name": "photos",
  "stages": [
    { "collate": {} },
    { "fetch": { "concurrency": 12 } }
  ]
}
`)
    expect(edit(text, (tree, now) => swapWithNext(tree, now, '/stages', 1))).toBeNull()
  })
})

it('keeps every digit of a number that was typed', () => {
  expect(typedNumber(' 18446744073709551615 ')).toBe('18446744073709551615')
  expect(typedNumber('-1.5e3')).toBe('-1.5e3')
  expect(typedNumber(' [ 32,-1.5 ]')).toBe('[ 32,-1.5 ]')
  expect(['[1', '[]', '[01]'].map(typedNumber)).toEqual(['"[1"', '"[]"', '"[01]"'])
  expect(['01', '1,5', 'NaN', '', '0x1'].map(typedNumber)).toEqual(['"01"', '"1,5"', '"NaN"', '""', '"0x1"'])
})
