// Events of a run on its time axis.

import type { TimelineEvent, VerdictSpan } from '../api/types'
import type { Tone } from '../parts/Badge.svelte'
import { gainOf, type NamedChange } from './changes'
import { inShort } from './verdict'

type Kind = TimelineEvent['kind'] | 'limit_moved' | 'setting_changed'
/** An event of the server's timeline, or a change of the run's limit or of a setting. */
export type RunEvent = Pick<TimelineEvent, 'from_s' | 'to_s' | 'text'> & { kind: Kind }

/** Kinds of events, most urgent first: a mark of several events shows the sign of the first kind. */
export const EVENTS: Record<Kind, { sign: string; tone: Tone; words: [one: string, more: string] }> = {
  failure_burst: { sign: '✕', tone: 'bad', words: ['failure burst', 'failure bursts'] },
  instance_replaced: { sign: '↻', tone: 'warn', words: ['replaced module instance', 'replaced module instances'] },
  setting_changed: { sign: '⚙', tone: 'idle', words: ['change of a setting', 'changes of settings'] },
  limit_moved: { sign: '⇄', tone: 'idle', words: ['change of the limit', 'changes of the limit'] },
}

/** Events in order of time. Each span of the limit after the first starts with a change of the limit. Changes that are only suggested are no events. */
export function eventsOf(timeline: readonly TimelineEvent[], spans: readonly VerdictSpan[], changes: readonly NamedChange[], name: (id: string | null) => string | null): RunEvent[] {
  const words = ({ kind, stage }: VerdictSpan) => inShort(kind, name(stage))
  const moves = spans.slice(1).map((span, place): RunEvent => ({ from_s: span.from_s, to_s: span.from_s, kind: 'limit_moved', text: `Limit changed from ${words(spans[place] as VerdictSpan)} to ${words(span)}` }))
  const made = changes.filter(({ outcome }) => outcome !== 'suggested').map((change): RunEvent => ({ from_s: change.at_s, to_s: change.until_s ?? change.at_s, kind: 'setting_changed', text: inWords(change) }))
  return [...timeline, ...moves, ...made].sort((one, other) => one.from_s - other.from_s)
}

/** A change such as `Concurrency of decode 1 → 8: kept, +210 %`. */
function inWords(change: NamedChange): string {
  const gain = gainOf(change)
  return `${change.setting} ${change.from} → ${change.to}: ${change.outcome}${gain === null ? '' : `, ${gain}`}`
}

/** Marks of the events in a range, with their middles in pixels; events less than `apart` pixels apart share a mark. `at` converts a time to pixels. */
export function clustersOf(events: readonly RunEvent[], range: { from_s: number; to_s: number }, at: (time_s: number) => number, apart: number): { x: number; events: RunEvent[] }[] {
  const found: ReturnType<typeof clustersOf> = []
  for (const event of events) {
    if (event.to_s < range.from_s || event.from_s > range.to_s) continue
    const x = at(Math.max(event.from_s, range.from_s))
    const last = found.at(-1)
    if (last && x - last.x < apart) last.events.push(event)
    else found.push({ x, events: [event] })
  }
  return found
}

export function signOf(events: readonly RunEvent[]): { sign: string; tone: Tone } {
  const kinds = Object.keys(EVENTS) as Kind[]
  return EVENTS[kinds.find((kind) => events.some((event) => event.kind === kind)) ?? 'limit_moved']
}

/** Numbers of events by kind, such as `2 failure bursts, 1 change of the limit`; `none` if there are none. */
export function countedEvents(events: readonly RunEvent[], none: string): string {
  const parts = Object.entries(EVENTS).flatMap(([kind, { words: [one, more] }]) => {
    const count = events.filter((event) => event.kind === kind).length
    return count > 0 ? [`${count} ${count === 1 ? one : more}`] : []
  })
  return parts.join(', ') || none
}
