import { expect, it } from 'vitest'

import { aboutOf, fieldsAt, startOf } from './schema'

// A cut of the served schema, with every construct it uses.
const schema = {
  type: 'object',
  properties: {
    name: { type: 'string', description: 'What the pipeline is called.', default: 'pipeline' },
    source: { $ref: '#/$defs/Source', description: 'Where samples come from.' },
    stages: { type: 'array', items: { $ref: '#/$defs/Stage' }, default: [] },
    limit: { anyOf: [{ $ref: '#/$defs/Limit' }, { type: 'null' }], description: 'How many are too many.' },
  },
  required: ['source'],
  $defs: {
    Source: { oneOf: [{ type: 'object', properties: { range: { $ref: '#/$defs/Range' } }, required: ['range'], description: 'Numbers.' }] },
    Range: { type: 'object', properties: { count: { type: 'integer', minimum: 1 } }, required: ['count'] },
    Stage: {
      oneOf: [
        { type: 'object', properties: { wasm: { $ref: '#/$defs/Wasm' } }, required: ['wasm'], description: 'Runs an uploaded module.' },
        { type: 'object', properties: { collate: { $ref: '#/$defs/Collate' } }, required: ['collate'], description: 'Stacks.' },
      ],
    },
    Wasm: {
      type: 'object',
      properties: {
        module: { type: 'string', description: 'The module.' },
        memory_mib: { type: 'integer', minimum: 1, maximum: 4096, default: 256 },
        order: { $ref: '#/$defs/Order', default: 'completion' },
        params: { type: 'object', additionalProperties: true, default: {} },
        assets: { type: 'object', patternProperties: { '^.+$': { $ref: '#/$defs/Range' } } },
      },
      required: ['module'],
    },
    Collate: { type: 'object', properties: {} },
    Order: { oneOf: [{ type: 'string', const: 'completion' }, { type: 'string', const: 'input' }] },
    Limit: { oneOf: [{ type: 'object', properties: { count: { type: 'integer' } } }, { type: 'object', properties: { rate: { type: 'number' } } }] },
  },
}

const names = (...segments: string[]) => fieldsAt(schema, segments).map(({ name }) => name)

it('knows what may stand at a place', () => {
  expect(names()).toEqual(['name', 'source', 'stages', 'limit'])
  expect(names('stages', '3')).toEqual(['wasm', 'collate'])
  expect(names('stages', '0', 'wasm')).toEqual(['module', 'memory_mib', 'order', 'params', 'assets'])
  expect(names('stages', '0', 'wasm', 'assets', 'any')).toEqual(['count'])
  expect(names('limit')).toEqual(['count', 'rate'])
  expect(names('stages', '0', 'wasm', 'params')).toEqual([])
  expect(names('nothing', 'here')).toEqual([])
})

it('tells of a field what it takes, in the words nearest to it', () => {
  expect(aboutOf(schema, ['stages', '0', 'wasm', 'memory_mib'])).toMatchObject({ kind: 'integer', range: '1 to 4096', default: 256, input: 'number' })
  expect(aboutOf(schema, ['stages', '0', 'wasm', 'order'])).toMatchObject({ choices: ['completion', 'input'], input: 'choice' })
  expect(aboutOf(schema, ['stages', '0', 'wasm'])?.about).toBe('Runs an uploaded module.')
  expect(aboutOf(schema, ['source'])?.about).toBe('Where samples come from.')
  expect(aboutOf(schema, [])).toBeNull()
})

it('begins a value with what must be there', () => {
  expect(startOf(schema, ['stages', '0', 'wasm'])).toEqual({ module: '' })
  expect(startOf(schema, ['stages', '0', 'collate'])).toEqual({})
  expect(startOf(schema, ['source', 'range'])).toEqual({ count: 1 })
  expect(startOf(schema, ['source'])).toEqual({ range: { count: 1 } })
})

it('ends on a schema that refers to itself', () => {
  expect(fieldsAt({ $ref: '#/$defs/A', $defs: { A: { anyOf: [{ $ref: '#/$defs/A' }] } } }, [])).toEqual([])
})
