import { describe, expect, it } from 'vitest'

import type { LiveSample, RunSnapshot } from '../api/types'
import { batchWeights, consumerWaits, labelsOf, recentMean, stepsOf } from './pipeline'

function snapshot(stages: [string, string, string][], queues: string[]): RunSnapshot {
  return {
    stages: stages.map(([id, name, kind]) => ({ id, name, kind })),
    queues: queues.map((id) => ({ id })),
  } as unknown as RunSnapshot
}

describe('stepsOf', () => {
  it('has one step per queue; source and sink are there without a stage', () => {
    const steps = stepsOf(snapshot([['1:fetch', 'fetch', 'fetch'], ['2:clean', 'clean', 'wasm']], ['0:source_queue', '1:fetch_queue', '2:clean_queue', '3:sink_queue']))
    expect(steps.map(({ id, name, kind, stage }) => [id, name, kind, stage !== null])).toEqual([
      ['0:source', 'source', 'source', false],
      ['1:fetch', 'fetch', 'fetch', true],
      ['2:clean', 'clean', 'wasm', true],
      ['3:sink', 'sink', 'sink', false],
    ])
  })

  it('tells stages of one name apart by their place', () => {
    const steps = stepsOf(snapshot([], ['0:source_queue', '1:aggregate_queue', '2:fetch_queue', '3:aggregate_queue']))
    expect([...labelsOf(steps).values()]).toEqual(['source', '1:aggregate', 'fetch', '3:aggregate'])
  })
})

it('calls no consumer busy that never had anything', () => {
  const run = (num_items: number, starved: number | null) => ({ queues: [{ starved: 0.9 }, { num_items, starved }] }) as unknown as RunSnapshot
  expect([run(5, 0.25), run(5, 0), run(0, 1), run(0, 0), run(0, null), null].map(consumerWaits)).toEqual([0.25, 0, 1, null, null, null])
})

describe('batchWeights', () => {
  const run = (items: number[], samples: number[]): RunSnapshot => {
    const ids = ['0:source_queue', '1:fetch_queue', '2:aggregate_queue', '3:sink_queue']
    return {
      stages: [{ id: '1:fetch' }, { id: '2:aggregate' }],
      queues: ids.map((id, place) => ({ id, num_items: items[place] })),
      ledger: { queues: ids.map((id, place) => ({ id, taken: samples[place] })) },
    } as unknown as RunSnapshot
  }

  it('are the parts of a batch that items are, and tasks by the items they take', () => {
    expect([...batchWeights(run([84, 80, 20, 19], [84, 80, 80, 76]))]).toEqual([
      ['0:source_queue', 0.25],
      ['1:fetch_queue', 0.25],
      ['1:fetch', 0.25],
      ['2:aggregate_queue', 1],
      ['2:aggregate', 0.25],
      ['3:sink_queue', 1],
    ])
  })

  it('are none where there is nothing to set right, or nothing known yet', () => {
    expect(batchWeights(run([84, 80, 80, 79], [84, 80, 80, 79])).size).toBe(0)
    expect(batchWeights(run([4, 3, 0, 0], [4, 3, 0, 0])).size).toBe(0)
  })
})

describe('recentMean', () => {
  const sample = (t0_s: number, t1_s: number, readiness: number | null): LiveSample =>
    ({ t0_s, t1_s, values: { q: { readiness } } }) as unknown as LiveSample

  it('weighs samples by their length and leaves out what was not measured', () => {
    expect(recentMean([sample(0, 1, 1), sample(1, 1.5, 0), sample(1.5, 2, null)], 'q', 'readiness')).toBeCloseTo(2 / 3)
  })

  it('is null when nothing was measured', () => {
    expect(recentMean([sample(0, 1, null)], 'q', 'readiness')).toBeNull()
    expect(recentMean([], 'q', 'readiness')).toBeNull()
  })
})
