import { expect, it } from 'vitest'

import { loadsOf, type Load } from './loads'
import { partSheet, stackOf } from './parts'
import { load, report, spread } from './sample'

function only(more: Parameters<typeof load>[3]): Load {
  return loadsOf(report([load('async', 2, 100, more)]))[0] as Load
}

const parts = [
  { name: 'permit', time: spread(0.5), share: 0.9 },
  { name: 'body', time: spread(0.0003), share: 0.3 },
  { name: 'connect', time: spread(0.002, 10), share: 0.2 },
  { name: 'stage:decode', time: spread(0.004), share: 0.4 },
  { name: 'stage:collate', time: spread(0.05, 2), share: 0.1 },
]

it('parts lie behind each other in the order of a read, and what is left is told', () => {
  const { segments, mean_s } = stackOf(only({ parts }))
  expect(segments.map(({ name }) => name)).toEqual(['connect', 'body', 'else'])
  // Ten of a hundred reads opened a connection: that is a tenth of its time for each.
  expect(segments.map(({ mean_s }) => Number(mean_s.toPrecision(6)))).toEqual([0.0002, 0.0003, 0.0005])
  expect(segments.map(({ from_s }) => Number(from_s.toPrecision(6)))).toEqual([0, 0.0002, 0.0005])
  expect(mean_s).toBe(0.001)
})

it('waiting for a permit and stages are no parts of a read', () => {
  const stack = stackOf(only({ parts }))
  expect(stack.permit_s).toBe(0.5)
  expect(stack.stages.map(({ name, mean_s }) => [name, Number(mean_s.toPrecision(6))])).toEqual([['decode', 0.004], ['collate', 0.001]])
  const rows = partSheet([stack]).rows.map(([, part, , share]) => [part, share === null ? null : Number((share as number).toPrecision(3))])
  expect(rows).toEqual([['connect', 0.2], ['body', 0.3], ['else', 0.5], ['permit, before the read', null], ['stage decode, per item', null], ['stage collate, per item', null]])
})

it('a load that read nothing has no parts', () => {
  const levels = { getitem: null, fetch: null, worker_loop: null, load_all: null, benchmark: null }
  expect(stackOf(only({ parts: [], levels, items: 0 }))).toMatchObject({ mean_s: 0, segments: [], permit_s: null, stages: [] })
})
