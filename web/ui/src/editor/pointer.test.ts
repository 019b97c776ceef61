import { jsonLanguage } from '@codemirror/lang-json'
import { describe, expect, it } from 'vitest'

import { isUnder, pointerAt, pointerOf, rangeOf, segmentsOf } from './pointer'

const text = `{
  "name": "photos",
  "source": { "list": { "store": "photos" } },
  "stages": [
    { "fetch": { "concurrency": 900 } },
    { "wasm": { "module": "a@1", "params": { "a/b": 1, "m~n": [true, null, -2.5e3] } } }
  ],
  "limit": 1, "limit": 2
}
`
const tree = jsonLanguage.parser.parse(text)

function marked(pointer: string, of = text): string {
  const { from, to } = rangeOf(jsonLanguage.parser.parse(of), of, pointer)
  return of.slice(from, to)
}

describe('the characters marked for a pointer', () => {
  it('are exactly the value', () => {
    expect(marked('/name')).toBe('"photos"')
    expect(marked('/stages/0/fetch/concurrency')).toBe('900')
    expect(marked('/stages/0')).toBe('{ "fetch": { "concurrency": 900 } }')
    expect(marked('/stages/1/wasm/params/m~0n/2')).toBe('-2.5e3')
    expect(marked('/stages/1/wasm/params/m~0n/1')).toBe('null')
    expect(marked('/stages/1/wasm/params/a~1b')).toBe('1')
    expect(marked('')).toBe(text.trim())
  })

  it('are the key of the nearest value around a missing one', () => {
    expect(marked('/stages/0/fetch/module')).toBe('"fetch"')
    expect(marked('/stages/2')).toBe('"stages"')
    expect(marked('/source/list/shard/rank')).toBe('"list"')
    expect(marked('/name/x')).toBe('"name"')
  })

  it('are a bracket without a key', () => {
    expect(marked('/consumer')).toBe('{')
    expect(text.slice(rangeOf(tree, text, '/stages/1/sleep').from).startsWith('{ "wasm"')).toBe(true)
    expect(marked('/stages/1/sleep')).toBe('{')
  })

  it('are those of the last value if a name occurs twice', () => {
    expect(marked('/limit')).toBe('2')
  })

  it('are found in a document that is being typed, or is empty', () => {
    expect(marked('/a', '{"a": 1, "b": ')).toBe('1')
    expect(marked('/b', '{"a": 1, "b": ')).toBe('{')
    expect(marked('/a', '')).toBe('')
    expect(marked('no pointer', '{"a": 1}')).toBe('{"a": 1}')
    expect(marked('/01', '[1, 2]')).toBe('[')
  })

  it('count characters as the editor does', () => {
    expect(marked('/b', '{"ä𝄞": "🎞", "b": 7}')).toBe('7')
    expect(marked('/x"y', '{"x\\"y": 8}')).toBe('8')
  })
})

describe('the pointer of a place in the text', () => {
  const at = (piece: string, of = text) => {
    const found = pointerAt(jsonLanguage.parser.parse(of), of, of.indexOf(piece) + 1)
    return `${found.pointer}${found.key ? ' key' : ''}`
  }

  it('names the innermost value, or the key', () => {
    expect(at('900')).toBe('/stages/0/fetch/concurrency')
    expect(at('"module"')).toBe('/stages/1/wasm/module key')
    expect(at('-2.5')).toBe('/stages/1/wasm/params/m~0n/2')
    expect(at('"a/b"')).toBe('/stages/1/wasm/params/a~1b key')
  })

  it('leads back to the same characters', () => {
    for (const pointer of ['/name', '/source/list/store', '/stages/1/wasm/module', '/stages/1/wasm/params/m~0n/0']) {
      expect(pointerAt(tree, text, rangeOf(tree, text, pointer).from + 1).pointer).toBe(pointer)
    }
  })
})

it('splits and joins pointers', () => {
  expect(segmentsOf('/a~1b/m~01/0')).toEqual(['a/b', 'm~1', '0'])
  expect(pointerOf(['a/b', 'm~1', 0])).toBe('/a~1b/m~01/0')
  expect(segmentsOf('')).toEqual([])
  expect(segmentsOf('a')).toBeNull()
  expect([isUnder('/stages/1/wasm', '/stages/1'), isUnder('/stages/10', '/stages/1'), isUnder('/stages/1', '/stages/1')]).toEqual([true, false, true])
})
