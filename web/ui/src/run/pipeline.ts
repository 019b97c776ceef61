// A pipeline as people look at it: source, stages and sink in a row, each with the queue at its exit.

import type { LiveSample, Metric, QueueRecord, RunSnapshot, RunState, StageRecord } from '../api/types'

/** States of a run that waits or goes on, first to last. */
export const ALIVE: RunState[] = ['queued', 'running', 'draining']
/** States that a run never leaves. */
export const ENDED: RunState[] = ['completed', 'failed', 'stopped', 'interrupted']

export function isOver(state: RunState): boolean {
  return ENDED.includes(state)
}

export interface Step {
  /** `2:fetch`. */
  id: string
  name: string
  kind: string
  /** `null` for source and sink, which do no work of their own. */
  stage: StageRecord | null
  queue: QueueRecord
}

const QUEUE = '_queue'

export function queueOf(stageId: string): string {
  return stageId + QUEUE
}

/** The stage that a queue belongs to: the one at whose exit it stands. */
export function stageOf(id: string): string {
  return id.endsWith(QUEUE) ? id.slice(0, -QUEUE.length) : id
}

/** The steps of a snapshot, first to last: one per queue. */
export function stepsOf(snapshot: RunSnapshot): Step[] {
  const stages = new Map(snapshot.stages.map((stage) => [stage.id, stage]))
  return snapshot.queues.map((queue, place) => {
    const id = stageOf(queue.id)
    const stage = stages.get(id) ?? null
    const name = stage?.name ?? id.replace(/^\d+:/, '')
    const kind = stage?.kind ?? (place === 0 ? 'source' : place === snapshot.queues.length - 1 ? 'sink' : name)
    return { id, name, kind, stage, queue }
  })
}

/** Names that tell the steps apart: the id where two steps have one name. */
export function labelsOf(steps: Step[]): Map<string, string> {
  const times = new Map<string, number>()
  for (const { name } of steps) times.set(name, (times.get(name) ?? 0) + 1)
  return new Map(steps.map(({ id, name }) => [id, (times.get(name) ?? 0) > 1 ? id : name]))
}

/**
 * Share of its time in which the consumer waited for the sink. `null` before there is a figure, and when nothing came to the end:
 * waiting for an end is no waiting for data.
 */
export function consumerWaits(snapshot: RunSnapshot | null): number | null {
  const sink = snapshot?.queues.at(-1)
  return !sink || (sink.num_items === 0 && sink.starved === 0) ? null : sink.starved
}

/**
 * How many of the sink's items a task of each stage and an item of each queue stand for, by the samples in them so far. Empty as
 * long as the sink has had none, and when an item is the same everywhere.
 */
export function batchWeights({ stages, queues, ledger }: RunSnapshot): Map<string, number> {
  const taken = new Map(ledger.queues.map((book) => [book.id, book.taken]))
  const samples = queues.map(({ id, num_items }) => (num_items > 0 ? (taken.get(id) ?? 0) / num_items : 0))
  const ofSink = samples.at(-1) ?? 0
  const weights = new Map<string, number>()
  if (ofSink === 0 || samples.every((each) => Math.abs(each - ofSink) < 0.01 * ofSink)) return weights
  for (const [place, { id }] of queues.entries()) {
    weights.set(id, (samples[place] as number) / ofSink)
    // A task takes an item of the queue before its stage.
    if (place > 0 && stages.some((stage) => stage.id === stageOf(id))) weights.set(stageOf(id), (samples[place - 1] as number) / ofSink)
  }
  return weights
}

/** The mean of a share of time or a rate over live samples, each weighed by its length; `null` if none measured it. */
export function recentMean(samples: LiveSample[], id: string, metric: Metric): number | null {
  let [sum, length] = [0, 0]
  for (const { values, t0_s, t1_s } of samples) {
    const value = values[id]?.[metric]
    if (value === null || value === undefined) continue
    sum += value * (t1_s - t0_s)
    length += t1_s - t0_s
  }
  return length > 0 ? sum / length : null
}
