import { expect, it } from 'vitest'

import type { RunDetail } from '../api/types'
import { figureGroups, isComparable, type FigureRow } from './figures'

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

it('compares no figures of items with different numbers of samples', () => {
  const of = (num_items: number, stage: number) =>
    ({ ...run(100, [['1:decode', 0.2]]), qps: 1, snapshot: { ...run(1, [['1:decode', 0.2]]).snapshot, stages: [{ id: '1:decode', task: { ave_time_s: 0.2, p99_time_s: null, num_tasks: stage } }], queues: [{ id: '2:sink_queue', num_items, readiness: 1 }], ledger: { total: { delivered: 800 }, stages: [{ id: '1:decode', in: 800 }] } } }) as unknown as RunDetail
  // Single samples; batches of 8; batches of 8, of which the last is not full.
  const runs = [of(800, 800), of(100, 100), of(101, 800)]
  const [items] = group(runs, 'Whole run').filter(({ label }) => label.startsWith('Items'))
  const [task] = group(runs, 'Task time of a stage, mean')
  const comparable = (row: FigureRow | undefined) => [[0, 1], [1, 2], [0, 2]].map(([base, at]) => isComparable(row ?? {}, base ?? 0, at ?? 0))
  expect(comparable(items)).toEqual([false, true, false])
  expect(comparable(task)).toEqual([false, false, true])
  expect(comparable(group(runs, 'Whole run')[0])).toEqual([true, true, true])
})

it('omits rows without values, and rates the readiness of the sink queue only', () => {
  const runs = [run(1, [['1:aggregate', null]]), run(1, [['1:aggregate', null]])]
  expect(group(runs, 'Task time of a stage, mean')).toEqual([])
  expect(group(runs, 'Readiness').map(({ label, better }) => [label, better])).toEqual([['sink', 'more']])
})
