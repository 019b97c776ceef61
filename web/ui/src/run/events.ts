// Events of a run on its time axis.

import type { TimelineEvent, VerdictSpan } from '../api/types'
import type { Tone } from '../parts/Badge.svelte'
import { inShort } from './verdict'

type Kind = TimelineEvent['kind'] | 'limit_moved'
/** An event of the server's timeline, or a limit that moved. */
export type RunEvent = Pick<TimelineEvent, 'from_s' | 'to_s' | 'text'> & { kind: Kind }

/** Signs, most urgent first: a mark of several events shows the first of them. */
export const EVENTS: Record<Kind, { sign: string; tone: Tone; words: [one: string, more: string] }> = {
  failure_burst: { sign: '✕', tone: 'bad', words: ['failure burst', 'failure bursts'] },
  instance_replaced: { sign: '↻', tone: 'warn', words: ['replacement of worker instances', 'replacements of worker instances'] },
  limit_moved: { sign: '⇄', tone: 'idle', words: ['move of the limit', 'moves of the limit'] },
}

export interface Cluster {
  /** Middle of the mark, in pixels. */
  x: number
  events: RunEvent[]
}

/** Events in order; a limit moves where a span of the verdict begins, except the first. */
export function eventsOf(timeline: readonly TimelineEvent[], spans: readonly VerdictSpan[], name: (id: string | null) => string | null): RunEvent[] {
  const words = ({ kind, stage }: VerdictSpan) => inShort(kind, name(stage))
  const moves = spans.slice(1).map((span, place): RunEvent => ({ from_s: span.from_s, to_s: span.from_s, kind: 'limit_moved', text: `Limit moved from ${words(spans[place] as VerdictSpan)} to ${words(span)}` }))
  return [...timeline, ...moves].sort((one, other) => one.from_s - other.from_s)
}

/** Marks of events that begin in a range or reach into it; those nearer than `apart` pixels to each other are one. `at` gives the place of a moment. */
export function clustersOf(events: readonly RunEvent[], range: { from_s: number; to_s: number }, at: (time_s: number) => number, apart: number): Cluster[] {
  const found: Cluster[] = []
  for (const event of events) {
    if (event.to_s < range.from_s || event.from_s > range.to_s) continue
    const x = at(Math.max(event.from_s, range.from_s))
    const last = found.at(-1)
    if (last && x - last.x < apart) last.events.push(event)
    else found.push({ x, events: [event] })
  }
  return found
}

/** The sign of a mark. */
export function signOf(events: readonly RunEvent[]): { sign: string; tone: Tone } {
  const kinds = Object.keys(EVENTS) as Kind[]
  return EVENTS[kinds.find((kind) => events.some((event) => event.kind === kind)) ?? 'limit_moved']
}

/** `2 failure bursts, 1 move of the limit`, or words for none. */
export function countedEvents(events: readonly RunEvent[], none: string): string {
  const parts = Object.entries(EVENTS).flatMap(([kind, { words: [one, more] }]) => {
    const count = events.filter((event) => event.kind === kind).length
    return count > 0 ? [`${count} ${count === 1 ? one : more}`] : []
  })
  return parts.join(', ') || none
}
