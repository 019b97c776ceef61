import { describe, expect, it } from 'vitest'

import type { RunSnapshot } from '../api/types'
import { besideOf, graphOf, labelsOf, stepsOf, type GraphNode } from './pipeline'

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

describe('graphOf', () => {
  const stages: [string, string, string][] = [
    ['1:fetch', 'fetch', 'fetch'],
    ['2:route/a', 'a', 'path'],
    ['2:route/a/1:route/x', 'x', 'path'],
    ['2:route/a/1:route/x/1:decode', 'decode', 'wasm'],
    ['2:route/a/1:route/else', 'else', 'path'],
    ['2:route/a/1:route', 'route', 'route'],
    ['2:route/a/2:sleep', 'sleep', 'sleep'],
    ['2:route/b', 'b', 'path'],
    ['2:route', 'route', 'route'],
    ['3:route/c', 'c', 'path'],
    ['3:route', 'route', 'route'],
  ]
  const names = (nodes: GraphNode[]): unknown[] =>
    nodes.map(({ step, lanes }) => (lanes.length ? [step.name, ...lanes.map(names)] : step.name))

  it('puts the paths of a route before its join, and nested routes into their paths', () => {
    const queues = ['0:src', ...stages.map(([id]) => id), '4:sink'].map((id) => `${id}_queue`)
    const steps = stepsOf(snapshot(stages, queues))
    expect(names(graphOf(steps))).toEqual([
      'src',
      'fetch',
      ['route', ['a', ['route', ['x', 'decode'], ['else']], 'sleep'], ['b']],
      ['route', ['c']],
      'sink',
    ])
  })

  it('is empty without steps', () => {
    expect(graphOf([])).toEqual([])
  })

  it('has the steps before and after each step by the queues that they read', () => {
    const steps = stepsOf(snapshot(stages, ['0:src', ...stages.map(([id]) => id), '4:sink'].map((id) => `${id}_queue`)))
    const beside = (id: string) => Object.values(besideOf(steps, id)).map((found: { id: string }[]) => found.map(({ id }) => id))
    expect(beside('1:fetch')).toEqual([['0:src'], ['2:route/a', '2:route/b']])
    expect(beside('2:route/b')).toEqual([['1:fetch'], ['2:route']])
    expect(beside('2:route/a/1:route/else')).toEqual([['2:route/a'], ['2:route/a/1:route']])
    expect(beside('2:route/a/1:route')).toEqual([['2:route/a/1:route/x/1:decode', '2:route/a/1:route/else'], ['2:route/a/2:sleep']])
    expect(beside('2:route')).toEqual([['2:route/a/2:sleep', '2:route/b'], ['3:route/c']])
    expect(beside('none')).toEqual([[], []])
  })
})
