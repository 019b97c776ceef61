// The steps of a pipeline: source, stages and sink, each with the queue at its exit.

import type { QueueRecord, RunSnapshot, RunState, StageRecord } from '../api/types'

/** States of a run that is not over, in order. */
export const ALIVE: RunState[] = ['queued', 'running', 'draining']
/** Final states of a run. */
export const ENDED: RunState[] = ['completed', 'failed', 'stopped', 'interrupted']

export function isOver(state: RunState): boolean {
  return ENDED.includes(state)
}

export interface Step {
  /** Position and name, e.g. `2:fetch`. */
  id: string
  name: string
  kind: string
  /** `null` for source and sink, which run no tasks. */
  stage: StageRecord | null
  queue: QueueRecord
}

const QUEUE = '_queue'

export function queueOf(stageId: string): string {
  return stageId + QUEUE
}

/** Id of the step that puts items into a queue. */
export function stageOf(id: string): string {
  return id.endsWith(QUEUE) ? id.slice(0, -QUEUE.length) : id
}

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

/** A step of the graph. The join of a route has the lanes of its paths, each from its gate to its last stage. */
export interface GraphNode {
  step: Step
  lanes: GraphNode[][]
}

/** Puts the steps of each route into lanes: the list has each path with its gate before its stages, and the join behind all paths. */
export function graphOf(steps: Step[]): GraphNode[] {
  const open: { route: string; before: GraphNode[]; lanes: GraphNode[][] }[] = []
  let line: GraphNode[] = []
  for (const step of steps) {
    const lanes: GraphNode[][] = []
    // The gate of a path has its name behind the id of the route; behind it follow the stages of the path, with positions.
    if (step.id.split('/').length % 2 === 0) {
      const route = step.id.slice(0, step.id.lastIndexOf('/'))
      if (open.at(-1)?.route !== route) open.push({ route, before: line, lanes: [] })
      line = []
      open.at(-1)!.lanes.push(line)
    } else if (open.at(-1)?.route === step.id) {
      const route = open.pop()!
      line = route.before
      lanes.push(...route.lanes)
    }
    line.push({ step, lanes })
  }
  return open[0]?.before ?? line
}

/** Steps whose queues a step reads, and steps that read its queue: the gates of a route read one queue, and its join reads one of each path. */
export function besideOf(steps: Step[], id: string): { before: Step[]; after: Step[] } {
  const before = new Map<string, Step[]>()
  const walk = (line: GraphNode[], first: Step[]): Step[] =>
    line.reduce((last, { step, lanes }) => {
      before.set(step.id, lanes.length > 0 ? lanes.flatMap((lane) => walk(lane, last)) : last)
      return [step]
    }, first)
  walk(graphOf(steps), [])
  return { before: before.get(id) ?? [], after: steps.filter((step) => before.get(step.id)?.some((each) => each.id === id)) }
}

/** Names of the steps by id; two steps with the same name are shown with their ids. */
export function labelsOf(steps: Step[]): Map<string, string> {
  const times = new Map<string, number>()
  for (const { name } of steps) times.set(name, (times.get(name) ?? 0) + 1)
  return new Map(steps.map(({ id, name }) => [id, (times.get(name) ?? 0) > 1 ? id : name]))
}

/** States of the slots of a stage, with labels and colours. */
export const SLOTS = [
  { state: 'busy', head: 'Busy', name: 'busy', what: 'tasks ran', color: 'var(--accent)' },
  { state: 'thread_wait', head: 'Thread wait', name: 'waiting for a thread', what: 'tasks waited for a worker thread', color: 'var(--warn)' },
  { state: 'permit_wait', head: 'Permit wait', name: 'waiting for a permit', what: 'tasks waited for permits of the store they read', color: 'color-mix(in srgb, var(--warn) 50%, var(--text))' },
  { state: 'blocked', head: 'Blocked', name: 'blocked', what: 'results waited for room in the next queue', color: 'var(--line-strong)' },
  { state: 'order_wait', head: 'Order wait', name: 'waiting for earlier results', what: 'results waited for their turn in the input order', color: 'color-mix(in srgb, var(--line-strong) 50%, var(--accent))' },
  { state: 'idle', head: 'Idle', name: 'idle', what: 'there was no task', color: 'var(--idle-wash)' },
] as const
