import { expect, it } from 'vitest'

import type { RunDetail } from '../api/types'
import { figureGroups } from './figures'

function run(samples_per_s: number | null, stages: [string, number | null][]): RunDetail {
  const records = stages.map(([id, ave_time_s]) => ({ id, task: { ave_time_s, p99_time_s: null } }))
  const snapshot = { stages: records, queues: [{ id: '9:sink_queue', readiness: 0.5 }], consumer_waited: 0.25 }
  return { samples: 1, elapsed_s: 1, samples_per_s, qps: null, wait_s: null, readiness: null, failed_samples: 0, threads: 1, memory_mib: 1, snapshot } as unknown as RunDetail
}

const group = (runs: RunDetail[], title: string) => figureGroups(runs).find((each) => each.title.startsWith(title))?.rows ?? []

it('puts stages of one name into one row, at any position', () => {
  const rows = group([run(1, [['1:fetch', 0.1], ['2:decode', 0.2]]), run(1, [['1:fetch', 0.3], ['2:aggregate', 0.4], ['3:decode', 0.5]])], 'Task time of a stage, mean')
  expect(rows.map(({ label, values }) => [label, ...values])).toEqual([
    ['fetch', 0.1, 0.3],
    ['aggregate', null, 0.4],
    ['decode', 0.2, 0.5],
  ])
})

it('distinguishes missing values from 0', () => {
  const rows = group([run(25, []), run(null, []), run(null, [])], 'Whole run')
  expect(rows.find(({ label }) => label === 'Throughput, samples/s')?.values).toEqual([25, null, null])
  expect(rows.find(({ label }) => label === 'Share of time the consumer waited')?.values).toEqual([0.25, 0.25, 0.25])
})

it('omits rows without values, and rates the readiness of the sink queue only', () => {
  const runs = [run(1, [['1:aggregate', null]]), run(1, [['1:aggregate', null]])]
  expect(group(runs, 'Task time of a stage, mean')).toEqual([])
  expect(group(runs, 'Readiness').map(({ label, better }) => [label, better])).toEqual([['sink', 'more']])
})
