// Settings of a run's document that can be tried: those with a slider, and sets of values.

import { SETTINGS } from '../api/kinds'
import type { DocumentFault, PipelineDocument, Proposal } from '../api/types'
import { roundStep } from '../charts/scale'
import { isUnder, pointerOf, segmentsOf } from '../editor/pointer'
import { record } from '../parts/json'
import type { Step } from '../run/pipeline'

/** Changed values by JSON pointer into the document. */
export type Settings = Readonly<Record<string, unknown>>

/** A number of the document that a slider sets. */
export interface Knob {
  pointer: string
  /** Name of the setting and of its owner, such as `concurrency` of `decode`. */
  what: string
  of: string
  now: number
  least: number
  /** End of the slider; the number field accepts greater values. */
  most: number
  step: number
}

export interface KnobRow {
  step: Step
  label: string
  concurrency: Knob | null
  queue: Knob | null
}

/** End of a slider: a multiple of the run's value, and a minimum. */
const [FURTHER, LEAST_MOST] = [4, 8]

/** Place of a stage in the document: `2:route/a/1:decode` is the first stage in the path `a` of the second stage. */
function placeOf(id: string): (string | number)[] {
  const parts = id.split('/').map((part, number) => {
    if (number % 2 === 0) return [Number.parseInt(part, 10) - 1]
    return part === 'else' ? ['route', 'else'] : ['route', 'paths', part]
  })
  return ['stages', ...parts.flat()]
}

/** Id of the step that has the setting at a pointer; `null` for settings of the whole run. `ids` are those of all steps in order. */
export function ownerOf(pointer: string, ids: readonly string[]): string | null {
  if (isUnder(pointer, '/source')) return ids[0] ?? null
  if (isUnder(pointer, '/sink')) return ids.at(-1) ?? null
  const depthOf = (id: string) => pointerOf(placeOf(id)).length
  const around = ids.filter((id) => isUnder(pointer, pointerOf(placeOf(id))))
  const deepest = Math.max(...around.map(depthOf))
  const found = around.filter((id) => depthOf(id) === deepest)
  // The module of a route is a step in front of it, with the same place.
  return (pointer.startsWith('/route/by/', deepest) ? found[0] : found.at(-1)) ?? null
}

function valueAt(document: unknown, place: readonly (string | number)[]): unknown {
  return place.reduce<unknown>((value, key) => (Array.isArray(value) ? (value as unknown[])[Number(key)] : record(value)?.[key]), document)
}

/** A row for each step. The source and the gates of a route have no settings, the sink only its queue. */
export function rowsOf(document: PipelineDocument, steps: readonly Step[], labels: ReadonlyMap<string, string>): KnobRow[] {
  return steps.map((step, number) => {
    const label = labels.get(step.id) ?? step.id
    const place = placeOf(step.id)
    const isSink = number === steps.length - 1
    const kind = Object.keys(record(valueAt(document, place)) ?? {})[0]
    // The module of a route is a step in front of it, with the same place.
    const at = kind === undefined || kind !== step.kind ? null : pointerOf([...place, kind])
    const queueAt = isSink ? pointerOf(['sink']) : at
    return {
      step,
      label,
      concurrency:
        at !== null && step.stage && SETTINGS[step.kind]?.includes('concurrency')
          ? whole(`${at}/concurrency`, 'concurrency', label, step.stage.concurrency)
          : null,
      queue: queueAt === null ? null : whole(`${queueAt}/queue`, 'queue', label, step.queue.capacity),
    }
  })
}

/** Settings of the whole run: worker threads, and the time per item of a simulated consumer. */
export function knobsOfRun(document: PipelineDocument, threads: number, budget: number | null): { threads: Knob; step: Knob | null } {
  const [kind = '', consumer] = Object.entries(record(document.consumer) ?? {})[0] ?? []
  const step_ms = record(consumer)?.step_ms
  return {
    threads: { ...whole('/threads', 'threads', 'the run', threads), ...(budget === null ? {} : { most: Math.max(threads, budget) }) },
    step: typeof step_ms === 'number' ? stepKnob(pointerOf(['consumer', kind, 'step_ms']), step_ms) : null,
  }
}

function stepKnob(pointer: string, now: number): Knob {
  const most = now > 0 ? FURTHER * now : 100
  return { pointer, what: 'step', of: 'the consumer', now, least: 0, most, step: Number(roundStep(most / 200).toPrecision(1)) }
}

function whole(pointer: string, what: string, of: string, now: number): Knob {
  return { pointer, what, of, now, least: 1, most: Math.max(LEAST_MOST, FURTHER * now), step: 1 }
}

/** `settings` with a further value; a value equal to the run's is removed. */
export function withValue(settings: Settings, knob: Pick<Knob, 'pointer' | 'now'>, value: number): Settings {
  const { [knob.pointer]: _, ...rest } = settings
  return value === knob.now ? rest : { ...rest, [knob.pointer]: value }
}

export function valueOf(settings: Settings, knob: Knob): number {
  const value = settings[knob.pointer]
  return typeof value === 'number' ? value : knob.now
}

export function settingsOf({ changes }: Proposal): Settings {
  return Object.fromEntries(changes.map(({ pointer, to }) => [pointer, to]))
}

export function areSame(one: Settings, other: Settings): boolean {
  const names = Object.keys(one)
  return names.length === Object.keys(other).length && names.every((name) => JSON.stringify(one[name]) === JSON.stringify(other[name]))
}

/** Settings for a request: a value includes the parents that the document lacks. */
export function asSet(document: PipelineDocument, settings: Settings): Record<string, unknown> {
  const set: Record<string, unknown> = {}
  for (const [pointer, value] of Object.entries(settings)) {
    const segments = segmentsOf(pointer) ?? []
    const isLacking = (depth: number) => typeof (valueAt(document, segments.slice(0, depth + 1)) ?? '') !== 'object'
    const depth = segments.findIndex((_, depth) => depth === segments.length - 1 || isLacking(depth))
    set[pointerOf(segments.slice(0, depth + 1))] = segments.slice(depth + 1).reduceRight<unknown>((inner, name) => ({ [name]: inner }), value)
  }
  return set
}

/** Faults of a value, including faults inside the value and faults of its parents. */
export function faultsAt(faults: readonly DocumentFault[], pointer: string): DocumentFault[] {
  return faults.filter((fault) => isUnder(fault.pointer, pointer) || (fault.pointer !== '' && isUnder(pointer, fault.pointer)))
}

/** Settings as text for an address; `null` if there are none. */
export function written(settings: Settings): string | null {
  return Object.keys(settings).length === 0 ? null : JSON.stringify(settings)
}

/** Settings from the text of `written`; any other text has no settings. */
export function readSettings(text: string | null): Settings {
  if (text === null) return {}
  try {
    const value: unknown = JSON.parse(text)
    return Object.fromEntries(Object.entries(record(value) ?? {}).filter(([pointer]) => pointer.startsWith('/')))
  } catch {
    return {}
  }
}

/** Name of a setting for readers, such as `decode: concurrency` or `threads`. */
export function nameOf(pointer: string, rows: readonly KnobRow[]): string {
  for (const { label, concurrency, queue } of rows) {
    if (concurrency?.pointer === pointer) return `${label}: concurrency`
    if (queue?.pointer === pointer) return `${label}: queue capacity`
  }
  const segments = segmentsOf(pointer) ?? []
  const row = segments[0] === 'stages' ? rows[Number(segments[1]) + 1] : undefined
  return row ? `${row.label}: ${segments.slice(3).join(' ')}` : segments.join(' ')
}
