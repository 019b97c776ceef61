import { expect, it } from 'vitest'

import { aliasFault, pageOf } from './reference'

it('leads from a module to its page', () => {
  expect(pageOf('normalize@2')).toBe('/modules/normalize/2')
  expect(pageOf('normalize@1.0+x')).toBe('/modules/normalize/1.0%2Bx')
})

it('refuses an alias that reads as a version', () => {
  expect(aliasFault('stable')).toBeNull()
  expect(aliasFault('v2')).toBeNull()
  for (const alias of ['3', 'latest', '', '-a', 'a b', 'a@b', '../a']) expect(aliasFault(alias), alias).not.toBeNull()
})
