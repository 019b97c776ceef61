import { expect, it } from 'vitest'

import type { Manifest, ModuleReport } from '../api/types'
import { changes } from './changes'

function report(manifest: Partial<Manifest> = {}, more: Partial<ModuleReport> = {}): ModuleReport {
  return {
    digest: 'sha256:00',
    size_bytes: 1,
    kind: 'core',
    imports: ['penstock:stage/host@0.1.0'],
    exports: ['penstock:stage/transform@0.1.0'],
    functions: 1,
    code_bytes: 1,
    manifest: { name: 'm', version: '0.1.0', doc: '', mode: 'sample', params: null, wants: ['bytes'], makes: [], removes: null, fan_out: null, reads: null, counters: [], ...manifest },
    ...more,
  }
}

it('finds no changes between equal interfaces', () => {
  expect(changes(report(), report({ doc: 'Better words.' }, { size_bytes: 2, digest: 'sha256:01' }))).toEqual([])
})

it('names added and removed entries', () => {
  const after = report({ wants: null, counters: ['pixels'] }, { exports: ['penstock:stage/transform@0.2.0'] })
  expect(changes(report(), after)).toEqual([
    { what: 'exports', added: ['penstock:stage/transform@0.2.0'], removed: ['penstock:stage/transform@0.1.0'] },
    { what: 'wants', added: ['all fields'], removed: ['bytes'] },
    { what: 'counters', added: ['pixels'], removed: [] },
  ])
})

it('reports changed bounds of a parameter and ignores its description', () => {
  const with_ = (size: object) => report({ params: { properties: { size } } })
  expect(changes(with_({ maximum: 10, description: 'a' }), with_({ maximum: 10, description: 'b' }))).toEqual([])
  expect(changes(with_({ maximum: 10 }), with_({ maximum: 20 }))).toEqual([
    { what: 'params', added: ['size {"maximum":20}'], removed: ['size {"maximum":10}'] },
  ])
})
