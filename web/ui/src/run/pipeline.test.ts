import { describe, expect, it } from 'vitest'

import type { RunSnapshot } from '../api/types'
import { labelsOf, stepsOf } from './pipeline'

function snapshot(stages: [string, string, string][], queues: string[]): RunSnapshot {
  return {
    stages: stages.map(([id, name, kind]) => ({ id, name, kind })),
    queues: queues.map((id) => ({ id })),
  } as unknown as RunSnapshot
}

describe('stepsOf', () => {
  it('returns one step per queue, with source and sink as steps without a stage', () => {
    const steps = stepsOf(snapshot([['1:fetch', 'fetch', 'fetch'], ['2:clean', 'clean', 'wasm']], ['0:source_queue', '1:fetch_queue', '2:clean_queue', '3:sink_queue']))
    expect(steps.map(({ id, name, kind, stage }) => [id, name, kind, stage !== null])).toEqual([
      ['0:source', 'source', 'source', false],
      ['1:fetch', 'fetch', 'fetch', true],
      ['2:clean', 'clean', 'wasm', true],
      ['3:sink', 'sink', 'sink', false],
    ])
  })

  it('distinguishes stages with the same name by their position', () => {
    const steps = stepsOf(snapshot([], ['0:source_queue', '1:aggregate_queue', '2:fetch_queue', '3:aggregate_queue']))
    expect([...labelsOf(steps).values()]).toEqual(['source', '1:aggregate', 'fetch', '3:aggregate'])
  })
})
