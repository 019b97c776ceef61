import { expect, it } from 'vitest'

import { compact, exactly } from './json'

it('keeps every digit of a seed', () => {
  const json = '{ "seed": 18446744073709551615, "less": [-9007199254740993, 9007199254740991], "text": "18446744073709551615 \\"12345678901234567890", "1e400": 2.5e-3 }'
  expect(exactly(json)).toEqual({
    seed: 18446744073709551615n,
    less: [-9007199254740993n, 9007199254740991],
    text: '18446744073709551615 "12345678901234567890',
    '1e400': 0.0025,
  })
  expect(compact(exactly(json))).toBe(json.replace('2.5e-3', '0.0025'))
})

it('refuses text that is not JSON', () => {
  for (const text of ['', '{"a": 012345678901234567890}', '{"a": 1', '{"a: 99999999999999999999}']) expect(() => exactly(text)).toThrow()
})

it('writes JSON on one line', () => {
  const value = { a: [1, 'x"y', null, true], b: {}, 'c/d': { e: [] } }
  expect(compact(value)).toBe('{ "a": [1, "x\\"y", null, true], "b": {}, "c/d": { "e": [] } }')
  expect(JSON.parse(compact(value))).toEqual(value)
})
