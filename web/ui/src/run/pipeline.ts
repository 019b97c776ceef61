// A pipeline as people look at it: source, stages and sink in a row, each with the queue at its exit.

import type { QueueRecord, RunSnapshot, RunState, StageRecord } from '../api/types'

/** States of a run that waits or goes on, first to last. */
export const ALIVE: RunState[] = ['queued', 'running', 'draining']
/** States that a run never leaves. */
export const ENDED: RunState[] = ['completed', 'failed', 'stopped', 'interrupted']

export function isOver(state: RunState): boolean {
  return ENDED.includes(state)
}

export interface Step {
  /** Position and name, e.g. `2:fetch`. */
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

/** The steps of a run, first to last: one per queue. */
export function stepsOf(run: Pick<RunSnapshot, 'stages' | 'queues'>): Step[] {
  const stages = new Map(run.stages.map((stage) => [stage.id, stage]))
  return run.queues.map((queue, place) => {
    const id = stageOf(queue.id)
    const stage = stages.get(id) ?? null
    const name = stage?.name ?? id.replace(/^\d+:/, '')
    const kind = stage?.kind ?? (place === 0 ? 'source' : place === run.queues.length - 1 ? 'sink' : name)
    return { id, name, kind, stage, queue }
  })
}

/** Names of the steps: the id where two steps have one name. */
export function labelsOf(steps: Step[]): Map<string, string> {
  const times = new Map<string, number>()
  for (const { name } of steps) times.set(name, (times.get(name) ?? 0) + 1)
  return new Map(steps.map(({ id, name }) => [id, (times.get(name) ?? 0) > 1 ? id : name]))
}
