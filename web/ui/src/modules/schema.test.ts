import { expect, it } from 'vitest'

import { defaultParams, paramRows } from './schema'

const schema = {
  type: 'object',
  properties: {
    size: { type: 'integer', minimum: 1, maximum: 8192, default: 224, description: 'Height and width.' },
    mode: { type: 'string', enum: ['crop', 'stretch'], default: 'crop' },
    mean: { type: 'array', items: { type: 'number' }, minItems: 3 },
    scale: { type: ['number', 'null'], exclusiveMinimum: 0, default: null },
  },
  required: ['mean'],
}

it('tells of each parameter what it takes', () => {
  expect(paramRows(schema)).toEqual([
    { name: 'size', kind: 'integer', range: '1 to 8192', required: false, default: '224', about: 'Height and width.' },
    { name: 'mode', kind: 'one of crop, stretch', range: '', required: false, default: '"crop"', about: '' },
    { name: 'mean', kind: 'array of number', range: 'at least 3', required: true, default: null, about: '' },
    { name: 'scale', kind: 'number or null', range: 'above 0', required: false, default: 'null', about: '' },
  ])
})

it('prefills what has a default, be it null, and nothing else', () => {
  expect(defaultParams(schema)).toEqual({ size: 224, mode: 'crop', scale: null })
})

it('takes any stranger\'s schema without falling over', () => {
  for (const odd of [null, true, 'x', [], { properties: [] }, { properties: { a: true, b: null } }]) {
    expect(() => [paramRows(odd), defaultParams(odd)]).not.toThrow()
  }
  expect(paramRows({ properties: { a: true } })[0]?.kind).toBe('any')
})
