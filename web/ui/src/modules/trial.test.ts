import { describe, expect, it } from 'vitest'

import { fieldFor, neededFields, readParams, recordSamples, withParam } from './trial'

it('puts content into the field that the module wants', () => {
  expect(fieldFor(['audio'], 'file')).toBe('audio')
  expect(fieldFor(null, 'text')).toBe('text')
  expect(fieldFor(['caption', 'bytes'], 'file')).toBe('bytes')
  expect(fieldFor(['caption', 'image'], 'file')).toBe('caption')
  expect(fieldFor([], 'file')).toBe('bytes')
})

it('finds the needed fields of a module', () => {
  expect(neededFields(['image', '$field', '$more', '$none', 'mask?'], { field: 'text', more: ['a', 'b'] })).toEqual(['image', 'text', 'a', 'b'])
  expect(neededFields(null, {})).toBe(null)
})

describe('records', () => {
  it('are lines with a key and fields', () => {
    expect(recordSamples('{"key":"a","n":1}\n\n{"text":"x"}\n')).toEqual([
      { key: 'a', fields: { n: 1 } },
      { key: 'line 3', fields: { text: 'x' } },
    ])
  })

  it('report the line of a fault', () => {
    expect(() => recordSamples('{}\n[1]')).toThrow('line 2: not an object')
    expect(() => recordSamples('{"a"')).toThrow(/^line 1: /)
  })
})

it('accepts only an object as parameters', () => {
  expect(readParams(' ')).toEqual({ params: {} })
  expect(readParams('{"size": 4}')).toEqual({ params: { size: 4 } })
  expect(readParams('[]')).toHaveProperty('fault')
  expect(readParams('{"size": }')).toHaveProperty('fault')
})

it('sets, adds and removes parameters at any depth', () => {
  const params = { size: 3, crop: { top: 1 } }
  expect(withParam(params, ['size'], 5)).toEqual({ size: 5, crop: { top: 1 } })
  expect(withParam(params, ['crop', 'left'], 2)).toEqual({ size: 3, crop: { top: 1, left: 2 } })
  expect(withParam(params, ['new', 'deep'], 'x')).toEqual({ ...params, new: { deep: 'x' } })
  expect(withParam({ ops: [{ Flip: {} }, { Resize: { size: 1 } }] }, ['ops', '1', 'Resize', 'size'], 8)).toEqual({ ops: [{ Flip: {} }, { Resize: { size: 8 } }] })
  expect(withParam(params, ['crop', 'top'], undefined)).toEqual({ size: 3, crop: {} })
  expect(params).toEqual({ size: 3, crop: { top: 1 } })
})
