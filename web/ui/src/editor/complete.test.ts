import { CompletionContext } from '@codemirror/autocomplete'
import { json, jsonLanguage } from '@codemirror/lang-json'
import { EditorState } from '@codemirror/state'
import { describe, expect, it } from 'vitest'

import { complete } from './complete'
import { rooted } from './schema'

const schema = {
  type: 'object',
  properties: {
    name: { type: 'string' },
    threads: { type: 'integer', minimum: 1, default: 4, description: 'Worker threads.' },
    source: { type: 'object', properties: { store: { type: 'string' }, shuffle: { type: 'boolean', default: false } }, required: ['store'] },
    order: { type: 'string', enum: ['completion', 'input'] },
    stages: { type: 'array', items: { type: 'object', properties: { wasm: { type: 'object', properties: { module: { type: 'string' } }, required: ['module'] } } } },
  },
}

/** Completions at the position of `|`. */
function offered(marked: string, explicit = false) {
  const position = marked.indexOf('|')
  const doc = marked.replace('|', '')
  const state = EditorState.create({ doc, extensions: [json()] })
  const names = (path: string[]) => (path.at(-1) === 'module' ? ['mixup@2'] : [])
  const result = complete(new CompletionContext(state, position, explicit), jsonLanguage.parser.parse(doc), rooted(schema), names)
  return result && { replaces: doc.slice(result.from, result.to), options: result.options }
}

const labels = (marked: string, explicit = false) => offered(marked, explicit)?.options.map(({ label }) => label) ?? null

describe('completion', () => {
  it('offers missing names with a first value', () => {
    const found = offered('{ "name": "x", "t|" }')
    expect(found?.replaces).toBe('"t"')
    expect(found?.options.map(({ label }) => label)).toEqual(['"threads"', '"source"', '"order"', '"stages"'])
    expect(found?.options[0]).toMatchObject({ apply: '"threads": 4', info: 'Worker threads.' })
    expect(found?.options[1]).toMatchObject({ apply: '"source": { "store": "" }' })
  })

  it('keeps the value of a name that has one', () => {
    expect(offered('{ "thr|": 8 }')?.options.find(({ label }) => label === '"threads"')?.apply).toBe('"threads"')
  })

  it('completes in objects within arrays', () => {
    expect(labels('{ "stages": [{ "wasm": {} }, { "wasm": { "m|" } }] }')).toEqual(['"module"'])
    expect(labels('{ "source": { | } }', true)).toEqual(['"store"', '"shuffle"'])
  })

  it('offers the values of a choice or a switch, defaults, and names of the server', () => {
    expect(offered('{ "order": "in|" }')).toMatchObject({ replaces: '"in"', options: [{ label: '"completion"' }, { label: '"input"' }] })
    expect(labels('{ "stages": [{ "wasm": { "module": "|" } }] }')).toEqual(['"mixup@2"'])
    expect(labels('{ "source": { "shuffle": | } }', true)).toEqual(['true', 'false'])
    expect(labels('{ "threads": | }', true)).toEqual(['4'])
  })

  it('offers nothing without a request', () => {
    expect(labels('{ "name": "x", | }')).toBeNull()
    expect(labels('{ "name": "x|" }')).toBeNull()
    expect(labels('[1, 2|]', true)).toBeNull()
  })
})
