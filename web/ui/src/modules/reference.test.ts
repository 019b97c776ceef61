import { describe, expect, it } from 'vitest'

import { aliasFault, pageOf, parseReference } from './reference'

const DIGEST = `sha256:${'0a'.repeat(32)}`

describe('a reference to a module', () => {
  it('names the newest version, a version, an alias or a digest', () => {
    expect(parseReference('decode-resize')).toEqual({ name: 'decode-resize', version: null })
    expect(parseReference('decode-resize@3')).toEqual({ name: 'decode-resize', version: '3' })
    expect(parseReference('a.b_c@stable')).toEqual({ name: 'a.b_c', version: 'stable' })
    expect(parseReference(DIGEST)).toEqual({ digest: DIGEST })
  })

  it('is refused when it could be read in two ways, or in none', () => {
    for (const text of ['', '@3', 'a@', 'a@1@2', '-a', '../a', 'a b', `${DIGEST}0`, 'sha256:xyz@']) {
      expect(parseReference(text), text).toBeNull()
    }
  })

  it('leads to the page of the version, or of the module when it means the newest', () => {
    expect(pageOf('normalize@2')).toBe('/modules/normalize/2')
    expect(pageOf('normalize@latest')).toBe('/modules/normalize')
    expect(pageOf('normalize')).toBe('/modules/normalize')
    expect(pageOf('normalize@1.0+x')).toBe('/modules/normalize/1.0%2Bx')
    expect(pageOf(DIGEST)).toBeNull()
  })
})

describe('an alias', () => {
  it('may not pass for a version', () => {
    expect(aliasFault('stable')).toBeNull()
    expect(aliasFault('v2')).toBeNull()
    for (const alias of ['3', 'latest', '', 'a b', 'a@b']) expect(aliasFault(alias), alias).not.toBeNull()
  })
})
