import { describe, expect, it } from 'vitest'

import { curlOf, groupsOf, matches, typeOf, typesOf, type Operation, type Piece } from './openapi'

const document = {
  openapi: '3.1.0',
  paths: {
    '/api/v1/runs/{id}': {
      parameters: [{ name: 'id', in: 'path', required: true, schema: { type: 'string' }, description: 'UUIDv7.' }],
      get: { tags: ['runs'], operationId: 'run', summary: 'One run.', responses: { 200: { description: 'It.', content: { 'application/json': { schema: { $ref: '#/components/schemas/Run' } } } }, 404: { $ref: '#/components/responses/Missing' } } },
      delete: { tags: ['runs'], summary: 'Forgets a run.', responses: { 204: { description: 'Gone.' } } },
    },
    '/api/v1/modules': {
      post: { tags: ['modules'], summary: 'Uploads.', requestBody: { content: { 'application/wasm': { schema: { type: 'string', format: 'binary' } } } }, responses: {} },
    },
  },
  components: {
    responses: { Missing: { description: 'There is none.', content: { 'application/problem+json': { schema: { $ref: '#/components/schemas/Problem' } } } } },
    schemas: {
      Run: { type: 'object', required: ['id'], properties: { id: { type: 'string' }, qps: { type: ['number', 'null'], description: 'Items per second.' } } },
      Problem: { allOf: [{ $ref: '#/components/schemas/Run' }, { type: 'object', properties: { title: { type: 'string' } } }] },
      State: { type: 'string', enum: ['queued', 'running'] },
    },
  },
}

const said = (pieces: Piece[]) => pieces.map(({ text, ref }) => (ref ? `<${text}>` : text)).join('')

describe('operations', () => {
  it('are grouped, with shared parameters and responses put in', () => {
    const [runs, modules] = groupsOf(document)
    expect([runs?.tag, modules?.tag]).toEqual(['runs', 'modules'])
    const [get, remove] = runs?.operations as [Operation, Operation]
    expect(get.parameters).toEqual([{ name: 'id', in: 'path', type: [{ text: 'string' }], about: 'UUIDv7.', required: true }])
    expect(get.responses.map(({ status, about, bodies }) => [status, about, ...bodies.map(({ type }) => said(type))])).toEqual([
      ['200', 'It.', '<Run>'],
      ['404', 'There is none.', '<Problem>'],
    ])
    expect([remove.method, remove.id]).toEqual(['DELETE', 'delete-/api/v1/runs/{id}'])
  })

  it('become commands for a shell', () => {
    const [runs, modules] = groupsOf(document)
    expect(curlOf(runs?.operations[1] as Operation, 'http://h')).toBe("curl -sS -X DELETE 'http://h/api/v1/runs/{id}'")
    expect(curlOf(modules?.operations[0] as Operation, 'http://h')).toContain("-H 'content-type: application/wasm' --data-binary @FILE")
  })

  it('are found by all the words of a search', () => {
    const get = groupsOf(document)[0]?.operations[0] as Operation
    expect([matches(get, 'get RUNS'), matches(get, ''), matches(get, 'delete runs')]).toEqual([true, true, false])
  })
})

describe('types', () => {
  it('list members, and say what all else is', () => {
    const types = typesOf(document)
    expect(types.map(({ name }) => name)).toEqual(['Problem', 'Run', 'State'])
    expect(types[1]?.members.map(({ name, type, required, about }) => [name, said(type), required, about])).toEqual([
      ['id', 'string', true, ''],
      ['qps', 'number | null', false, 'Items per second.'],
    ])
    expect(said(types[2]?.type ?? [])).toBe('"queued" | "running"')
  })

  it('are written as TypeScript would', () => {
    expect(said(typeOf({ type: 'array', items: { $ref: '#/components/schemas/Run' } }))).toBe('<Run>[]')
    expect(said(typeOf({ type: 'array', items: { oneOf: [{ type: 'null' }, { $ref: 'x/Run' }] } }))).toBe('(null | <Run>)[]')
    expect(said(typeOf({ type: 'object', additionalProperties: { type: 'integer' } }))).toBe('{ [name]: integer }')
    expect(said(typeOf({ type: 'object', properties: { a: { const: 1 }, b: {} }, required: ['a'] }))).toBe('{ a: 1, b?: any }')
    expect(said(typeOf(undefined))).toBe('any')
  })
})

it('reads a document that is none as an empty one', () => {
  expect([groupsOf({}), typesOf({ components: [] })]).toEqual([[], []])
})
