import { expect, it } from 'vitest'

import { loadsOf } from './loads'
import { partSheet } from './parts'
import { load, report, spread } from './sample'

it('the table of parts has their shares as the report tells them, and how often a part came', () => {
  const parts = [
    { name: 'permit', time: spread(0.5), share: 0.9 },
    { name: 'connect', time: spread(0.002, 10), share: 0.2 },
    { name: 'between', time: spread(0.01, 2), share: 0.1 },
    { name: 'stage:decode', time: spread(0.004), share: 0.4 },
  ]
  const mean_read = {
    mean_s: 0.001,
    parts: [{ name: 'connect', mean_s: 0.0002, share: 0.2 }, { name: 'else', mean_s: 0.0008, share: 0.8 }],
    permit_s: 0.5,
    stages: [{ name: 'decode', mean_s: 0.004, share: null }],
  }
  const { rows } = partSheet(loadsOf(report([load('async', 2, 100, { parts, mean_read })])))
  expect(rows.map(([, part, mean_s, share, n]) => [part, mean_s, share, n])).toEqual([
    ['connect', 0.0002, 0.2, 10],
    ['else', 0.0008, 0.8, null],
    ['between reads, per batch', 0.01, null, 2],
    ['permit, before the read', 0.5, null, 100],
    ['stage decode, per item', 0.004, null, 100],
  ])
})

it('a load that read nothing has no parts', () => {
  expect(partSheet(loadsOf(report([load('async', 2, 100)]))).rows).toEqual([])
})
