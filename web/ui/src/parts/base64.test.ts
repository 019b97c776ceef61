import { expect, it } from 'vitest'

import { fromBase64, toBase64 } from './base64'

it('writes and reads any bytes', () => {
  expect(toBase64(Uint8Array.of(0, 255, 128))).toBe('AP+A')
  expect([...fromBase64('AP+A')]).toEqual([0, 255, 128])
  const many = Uint8Array.from({ length: 100_001 }, (_, at) => (at * 7) % 256)
  expect(fromBase64(toBase64(many))).toEqual(many)
})
