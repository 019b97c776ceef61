import { describe, expect, it } from 'vitest'

import type { QueueRecord, StageRecord } from '../api/types'
import type { Step } from '../run/pipeline'
import { areSame, asSet, faultsAt, knobsOfRun, nameOf, ownerOf, readSettings, rowsOf, settingsOf, valueOf, withValue, written, type Knob } from './settings'

const kinds: Record<string, string> = { '1:fetch': 'fetch', '2:aggregate': 'aggregate', '3:decode': 'wasm' }
const step = (id: string, capacity: number, concurrency: number | null = null): Step => ({
  id,
  name: id.slice(2),
  kind: kinds[id] ?? '',
  stage: concurrency === null ? null : ({ id, concurrency } as StageRecord),
  queue: { id: `${id}_queue`, capacity } as QueueRecord,
})
const document = {
  name: 'photos',
  stages: [{ fetch: { concurrency: 12 } }, { aggregate: { size: 4 } }, { wasm: { module: 'decode', queue: 5 } }],
  consumer: { simulate: { step_ms: 30 } },
}
const steps = [step('0:src', 2), step('1:fetch', 2, 12), step('2:aggregate', 3, 1), step('3:decode', 5, 4), step('4:sink', 3)]
const rows = rowsOf(document, steps, new Map(steps.map(({ id, name }) => [id, name])))

describe('sliders', () => {
  it('show the settings of the document with the values of the run', () => {
    const seen = rows.map(({ label, concurrency, queue }) => [label, concurrency && [concurrency.pointer, concurrency.now], queue && [queue.pointer, queue.now]])
    expect(seen).toEqual([
      ['src', null, null],
      ['fetch', ['/stages/0/fetch/concurrency', 12], ['/stages/0/fetch/queue', 2]],
      ['aggregate', null, ['/stages/1/aggregate/queue', 3]],
      ['decode', ['/stages/2/wasm/concurrency', 4], ['/stages/2/wasm/queue', 5]],
      ['sink', null, ['/sink/queue', 3]],
    ])
  })

  it('of stages in the paths of a route are at their places in the document', () => {
    const stages = [{ fetch: {} }, { route: { by: { module: { module: 'm' } }, paths: { a: [{ sleep: { mean_ms: 1 } }] }, else: [{ wasm: { module: 'n' } }] } }]
    const of = (id: string, kind: string): Step => ({ ...step(id, 2, 1), kind })
    const routed = [
      of('2:route.by', 'wasm'), of('2:route/a', 'path'), of('2:route/a/1:sleep', 'sleep'), of('2:route/else', 'path'), of('2:route/else/1:n', 'wasm'),
      of('2:route', 'route'), step('3:sink', 3),
    ]
    const seen = rowsOf({ stages }, routed, new Map()).map(({ concurrency, queue }) => [concurrency?.pointer ?? null, queue?.pointer ?? null])
    const inPath = '/stages/1/route/paths/a/0/sleep'
    const inElse = '/stages/1/route/else/0/wasm'
    expect(seen).toEqual([
      [null, null],
      [null, null],
      [`${inPath}/concurrency`, `${inPath}/queue`],
      [null, null],
      [`${inElse}/concurrency`, `${inElse}/queue`],
      [null, '/stages/1/route/queue'],
      [null, '/sink/queue'],
    ])
  })

  it('extend beyond the value of the run', () => {
    expect(rows[1]?.concurrency).toMatchObject({ least: 1, most: 48, step: 1 })
    expect(rows[1]?.queue).toMatchObject({ most: 8 })
  })

  it('include worker threads and the step of a simulated consumer', () => {
    expect(knobsOfRun(document, 4, 32)).toMatchObject({ threads: { now: 4, most: 32 }, step: { now: 30, least: 0, most: 120, step: 1 } })
    expect(knobsOfRun(document, 4, null).threads.most).toBe(16)
    expect(knobsOfRun({ ...document, consumer: { discard: {} } }, 4, 2)).toMatchObject({ threads: { most: 4 }, step: null })
    expect(knobsOfRun({ consumer: { simulate: { step_ms: 0.5 } } }, 1, 1).step).toMatchObject({ most: 2, step: 0.01 })
  })
})

describe('settings', () => {
  const knob = rows[1]?.concurrency as Knob

  it('hold only changed values', () => {
    const four = withValue({}, knob, 4)
    expect(four).toEqual({ '/stages/0/fetch/concurrency': 4 })
    expect(valueOf(four, knob)).toBe(4)
    expect(withValue(four, knob, 12)).toEqual({})
    expect(valueOf({}, knob)).toBe(12)
  })

  it('of a proposal are its new values', () => {
    const changes = [{ pointer: '/threads', from: 2, to: 4 }]
    expect(settingsOf({ changes, rate: 1, gain: 1, threads: 4, memory_mib: 0 })).toEqual({ '/threads': 4 })
  })

  it('are the same in any order', () => {
    expect(areSame({ '/a': 1, '/b': 2 }, { '/b': 2, '/a': 1 })).toBe(true)
    expect(areSame({ '/a': 1 }, { '/a': 1, '/b': 2 })).toBe(false)
    expect(areSame({ '/a': 1 }, { '/a': 2 })).toBe(false)
  })

  it('come with the parents that the document lacks', () => {
    expect(asSet(document, { '/sink/queue': 8, '/threads': 2, '/stages/1/aggregate/queue': 4 })).toEqual({
      '/sink': { queue: 8 },
      '/threads': 2,
      '/stages/1/aggregate/queue': 4,
    })
    expect(asSet({ ...document, sink: { queue: 3 } }, { '/sink/queue': 8 })).toEqual({ '/sink/queue': 8 })
  })

  it('are restored from an address, and other texts are ignored', () => {
    const settings = { '/threads': 4, '/stages/0/fetch/order': 'completion' }
    expect(readSettings(written(settings))).toEqual(settings)
    expect(written({})).toBeNull()
    for (const text of [null, '', 'x', '[1]', '{"threads": 4}', '3', 'null']) expect(readSettings(text)).toEqual({})
  })
})

describe('names and faults', () => {
  it('name a setting by its stage', () => {
    expect(nameOf('/stages/2/wasm/concurrency', rows)).toBe('decode: concurrency')
    expect(nameOf('/stages/0/fetch/order', rows)).toBe('fetch: order')
    expect(nameOf('/sink/queue', rows)).toBe('sink: queue capacity')
    expect(nameOf('/threads', rows)).toBe('threads')
    expect(nameOf('/stages/9/wasm/queue', rows)).toBe('stages 9 wasm queue')
  })

  it('find the step of a setting by its pointer alone', () => {
    const ids = ['0:src', '1:fetch', '2:media.by', '2:media/a', '2:media/a/1:nap', '2:media/else', '2:media/else/1:n', '2:media', '3:sink']
    const owner = (pointer: string) => ownerOf(pointer, ids)
    expect(['/source/range/queue', '/stages/0/fetch/concurrency', '/sink/queue', '/threads', '/stages/9/wasm/queue'].map(owner)).toEqual(['0:src', '1:fetch', '3:sink', null, null])
    expect(['by/module/concurrency', 'paths/a/0/sleep/queue', 'else/0/wasm/queue', 'queue'].map((rest) => owner(`/stages/1/route/${rest}`))).toEqual(['2:media.by', '2:media/a/1:nap', '2:media/else/1:n', '2:media'])
  })

  it('are found for a value and for its parents', () => {
    const faults = ['/sink', '/stages/0/fetch/concurrency', ''].map((pointer) => ({ pointer, detail: pointer }))
    expect(faultsAt(faults, '/sink/queue').map(({ pointer }) => pointer)).toEqual(['/sink'])
    expect(faultsAt(faults, '/stages/0/fetch/concurrency')).toHaveLength(1)
    expect(faultsAt(faults, '/stages/0/fetch/queue')).toEqual([])
  })
})
