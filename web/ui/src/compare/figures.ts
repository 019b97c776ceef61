// Figures of several runs, measured over each whole run, in groups of rows.

import type { RunDetail, StageRecord } from '../api/types'
import type { Quantity } from '../parts/format'
import type { Better } from './delta'
import { inOrder, namesOfIds } from './specs'

export interface FigureRow {
  label: string
  quantity: Quantity | 'count'
  better: Better
  values: (number | null)[]
  /** Samples in one item or task of each run; missing for figures that do not depend on them. */
  per?: (number | null)[]
}

/** Greatest ratio of the samples per item of two runs that are compared, since last batches may not be full. */
const ALIKE = 1.1

/** True unless the figures of two runs are of items with different numbers of samples. */
export function isComparable({ per }: Pick<FigureRow, 'per'>, base: number, at: number): boolean {
  const [one, other] = [per?.[base] ?? null, per?.[at] ?? null]
  return one === null || other === null || Math.max(one, other) <= ALIKE * Math.min(one, other)
}

export function figureGroups(runs: readonly RunDetail[]): { title: string; rows: FigureRow[] }[] {
  const row = (label: string, quantity: FigureRow['quantity'], better: Better, of: (run: RunDetail) => number | null): FigureRow => ({ label, quantity, better, values: runs.map(of) })
  const ofItems = (row: FigureRow): FigureRow => ({ ...row, per: runs.map(samplesPerItem) })
  const perTask = new Map(byName(runs, (run) => (run.snapshot?.stages ?? []).map((stage) => ({ id: stage.id, per: samplesPerTask(run, stage) })), ({ per }) => per))
  const taskTime = (title: string, of: (task: StageRecord['task']) => number | null) => {
    const rows = byName(runs, (run) => run.snapshot?.stages ?? [], ({ task }) => of(task))
    return { title, rows: rows.map(([label, values]): FigureRow => ({ label, quantity: 'time', better: 'less', values, per: perTask.get(label) ?? [] })) }
  }
  return [
    {
      title: 'Whole run',
      rows: [
        row('Throughput, samples/s', 'rate', 'more', (run) => run.samples_per_s),
        ofItems(row('Items at the sink per second', 'rate', 'more', (run) => run.qps)),
        ofItems(row('Mean wait of the consumer for an item', 'time', 'less', (run) => run.wait_s)),
        row('Sink queue readiness', 'share', 'more', (run) => run.readiness),
        row('Share of time the consumer waited', 'share', 'less', (run) => run.snapshot?.consumer_waited ?? null),
        row('Duration', 'time', null, (run) => run.elapsed_s),
        row('Samples', 'count', null, (run) => run.samples),
        row('Failed samples', 'count', 'less', (run) => run.failed_samples),
        row('Worker threads', 'count', null, (run) => run.threads),
        row('Memory, MiB', 'count', null, (run) => run.memory_mib),
      ],
    },
    taskTime('Task time of a stage, mean', ({ ave_time_s }) => ave_time_s),
    taskTime('Task time of a stage, 99th percentile', ({ p99_time_s }) => p99_time_s),
    {
      title: 'Readiness of each queue',
      // An empty queue before an aggregate or a fast stage is not a bottleneck, so only the sink's queue counts as better or worse.
      rows: byName(runs, (run) => run.snapshot?.queues ?? [], ({ readiness }) => readiness).map(
        ([label, values]): FigureRow => ({ label, quantity: 'share', better: label === 'sink' ? 'more' : null, values }),
      ),
    },
  ]
    .map(({ title, rows }) => ({ title, rows: rows.filter(({ values }) => values.some((value) => value !== null)) }))
    .filter(({ rows }) => rows.length > 0)
}

const ratio = (samples: number | undefined, items: number | undefined) => (samples && items ? samples / items : null)

/** Samples in one item that the consumer takes. */
const samplesPerItem = ({ snapshot }: RunDetail) => ratio(snapshot?.ledger?.total.delivered, snapshot?.queues.at(-1)?.num_items)

/** Samples that one task of a stage takes. */
const samplesPerTask = ({ snapshot }: RunDetail, { id, task }: StageRecord) => ratio(snapshot?.ledger?.stages.find((stage) => stage.id === id)?.in, task.num_tasks)

/** Values of all runs for each name in any run, in the order of the pipelines. */
function byName<T extends { id: string }>(runs: readonly RunDetail[], parts: (run: RunDetail) => T[], of: (part: T) => number | null): [string, (number | null)[]][] {
  const columns = runs.map((run) => {
    const all = parts(run)
    const names = namesOfIds(all.map(({ id }) => id))
    return new Map(all.map((part, place) => [names[place] as string, of(part)]))
  })
  return inOrder(columns.map((column) => [...column.keys()])).map((name) => [name, columns.map((column) => column.get(name) ?? null)])
}
