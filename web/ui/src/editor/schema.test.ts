import { expect, it } from 'vitest'

import { aboutOf, defaultParams, documentSchema, fieldsAt, formAt, rooted, startOf } from './schema'

// Part of the pipeline schema, with all constructs that it uses.
const pipeline = {
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

const schema = rooted(pipeline)
const names = (...segments: string[]) => fieldsAt(schema, segments).map(({ name }) => name)

it('lists the members of an object at each place', () => {
  expect(names()).toEqual(['name', 'source', 'stages', 'limit'])
  expect(names('stages', '3')).toEqual(['wasm', 'collate'])
  expect(names('stages', '0', 'wasm')).toEqual(['module', 'memory_mib', 'order', 'params', 'assets'])
  expect(names('stages', '0', 'wasm', 'assets', 'any')).toEqual(['count'])
  expect(names('limit')).toEqual(['count', 'rate'])
  expect(names('stages', '0', 'wasm', 'params')).toEqual([])
  expect(names('nothing', 'here')).toEqual([])
})

it('describes a field by its type, its range and the nearest description', () => {
  expect(aboutOf(schema, ['stages', '0', 'wasm', 'memory_mib'])).toMatchObject({ kind: 'integer', range: '1 to 4096', default: 256, input: 'number' })
  expect(aboutOf(schema, ['stages', '0', 'wasm', 'order'])).toMatchObject({ choices: ['completion', 'input'], input: 'choice' })
  expect(aboutOf(schema, ['stages', '0', 'wasm'])?.about).toBe('Runs an uploaded module.')
  expect(aboutOf(schema, ['source'])?.about).toBe('Where samples come from.')
  expect(aboutOf(schema, [])).toBeNull()
})

it('starts a value with its required members', () => {
  expect(startOf(schema, ['stages', '0', 'wasm'])).toEqual({ module: '' })
  expect(startOf(schema, ['stages', '0', 'collate'])).toEqual({})
  expect(startOf(schema, ['source', 'range'])).toEqual({ count: 1 })
  expect(startOf(schema, ['source'])).toEqual({ range: { count: 1 } })
  const sides = { anyOf: [{ type: 'integer', minimum: 1 }, { type: 'array', items: { type: 'integer' } }] }
  const properties = { size: { ...sides, examples: [224] }, most: { ...sides, default: null, examples: [[9, 9]] }, mean: { type: 'array', items: { type: 'number' } }, seed: { type: 'integer', default: 0 } }
  expect(startOf(rooted({ type: 'object', properties, required: ['size', 'mean'] }), [])).toEqual({ size: 224, most: [9, 9], mean: [] })
})

it('ends on a schema that refers to itself', () => {
  expect(fieldsAt(rooted({ $ref: '#/$defs/A', $defs: { A: { anyOf: [{ $ref: '#/$defs/A' }] } } }), [])).toEqual([])
})

const params = {
  type: 'object',
  properties: {
    size: { type: 'integer', minimum: 1, maximum: 8192, default: 224, description: 'Height and width.' },
    mode: { type: 'string', enum: ['crop', 'stretch'], default: 'crop' },
    mean: { type: 'array', items: { type: 'number' }, minItems: 3 },
    scale: { type: ['number', 'null'], exclusiveMinimum: 0, default: null },
    crop: { type: 'object', properties: { top: { $ref: '#/$defs/Pixels' } } },
  },
  required: ['mean'],
  $defs: { Pixels: { type: 'integer', minimum: 0 } },
}

it('describes each parameter of a module', () => {
  const told = fieldsAt(rooted(params), []).map(({ name, kind, range, required }) => [name, kind, range, required])
  expect(told).toEqual([
    ['size', 'integer', '1 to 8192', false],
    ['mode', 'one of crop, stretch', '', false],
    ['mean', 'array of number', 'at least 3', true],
    ['scale', 'number or null', 'above 0', false],
    ['crop', 'object', '', false],
  ])
  expect(defaultParams(params)).toEqual({ size: 224, mode: 'crop', scale: null })
})

it('reads any JSON as a schema without an error', () => {
  for (const odd of [null, true, 'x', [], { properties: [] }, { properties: { a: true, b: null } }, { type: 'array', items: { items: 3 } }]) {
    expect(() => [fieldsAt(rooted(odd), []), defaultParams(odd), formAt(rooted(odd), ['a']), formAt(rooted(odd), [])]).not.toThrow()
  }
  expect(fieldsAt(rooted({ properties: { a: true } }), [])[0]?.kind).toBe('any')
})

it('chooses a form by the shape of a value', () => {
  const form = (...segments: string[]) => formAt(schema, segments)
  expect(formAt(rooted(params), ['mean'])).toMatchObject({ input: 'number', required: true })
  expect(formAt(rooted(params), ['crop'])).toBe('object')
  expect(form('stages', '0', 'wasm', 'assets')).toBe('map')
  expect([form('source', 'range'), form('stages'), form('limit'), form('stages', '0', 'wasm', 'params')]).toEqual(['object', null, null, null])
})

it('reads the schema of a module in `params` of its stage', () => {
  const document = { stages: [{ wasm: { module: 'resize@2' } }, { wasm: { module: 'other' } }] }
  const joined = documentSchema(pipeline, document, (module) => (module === 'resize@2' ? params : null))
  const place = (stage: number, ...rest: string[]) => ['stages', String(stage), 'wasm', 'params', ...rest]
  expect(fieldsAt(joined, place(0)).map(({ name }) => name)).toEqual(['size', 'mode', 'mean', 'scale', 'crop'])
  expect(aboutOf(joined, place(0, 'crop', 'top'))).toMatchObject({ kind: 'integer', range: 'at least 0' })
  expect([formAt(joined, place(0)), formAt(joined, place(1))]).toEqual(['object', null])
  expect(fieldsAt(joined, ['stages', '0', 'wasm']).map(({ name }) => name)).toContain('module')
})
