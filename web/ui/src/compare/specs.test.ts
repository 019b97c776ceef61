import { describe, expect, it } from 'vitest'

import type { RunSpec } from '../api/types'
import { exactly } from '../parts/json'
import { namesOfIds, specRows, stageNames } from './specs'

const spec = (document: object, modules: Record<string, string> = {}): RunSpec => ({ document: { ...document }, modules })
const different = (...specs: RunSpec[]) =>
  specRows(specs)
    .filter(({ differs }) => differs)
    .map(({ label, values }) => `${label.replaceAll(' › ', '.')}: ${values.join(' | ')}`)

const wasm = (concurrency: number, module = 'decode@1') => ({ wasm: { module, concurrency } })

describe('rows of documents', () => {
  it('mark different and missing values', () => {
    expect(different(spec({ name: 'a', seed: 1 }), spec({ name: 'b', seed: 1 }), spec({ name: 'a' }))).toEqual([
      'name: "a" | "b" | "a"',
      'seed: 1 | 1 | ',
    ])
  })

  it('match stages by name: an inserted stage changes no other row', () => {
    const short = spec({ stages: [{ fetch: { concurrency: 2 } }, wasm(4)] })
    const long = spec({ stages: [{ fetch: { concurrency: 2 } }, { aggregate: { size: 8 } }, wasm(8)] })
    expect(different(short, long)).toEqual([
      'stages.order: "fetch → decode" | "fetch → aggregate → decode"',
      'stages.aggregate.aggregate.size:  | 8',
      'stages.decode.wasm.concurrency: 4 | 8',
    ])
  })

  it('mark different modules of the same name', () => {
    const of = (digest: string) => spec({ stages: [wasm(4, 'decode')] }, { '1:decode': digest })
    expect(different(of('sha256:a'), of('sha256:b'))).toEqual(['module that ran.decode: "sha256:a" | "sha256:b"'])
  })

  it('mark seeds that differ in the last digit', () => {
    const of = (seed: string) => exactly(`{ "document": { "seed": ${seed} }, "modules": {} }`) as RunSpec
    expect(different(of('18446744073709551615'), of('18446744073709551614'))).toEqual(['seed: 18446744073709551615 | 18446744073709551614'])
  })

  it('show empty objects and arrays as values', () => {
    expect(specRows([spec({ consumer: { discard: {} }, list: [1, { a: 2 }] })]).map(({ label, values }) => [label.replaceAll(' › ', '.'), values[0]])).toEqual([
      ['consumer.discard', '{}'],
      ['list', '[1, { "a": 2 }]'],
      ['stages.order', '""'],
    ])
  })
})

it('numbers stages that share a name', () => {
  expect(stageNames([{ aggregate: {} }, { wasm: { module: 'mixup@3' } }, { aggregate: { name: 'batch' } }, { aggregate: {} }, null])).toEqual([
    'aggregate',
    'mixup',
    'batch',
    'aggregate 2',
    '?',
  ])
  expect(namesOfIds(['1:aggregate_queue', '5:aggregate_queue', '10:sink_queue'])).toEqual(['aggregate', 'aggregate 2', 'sink'])
})
