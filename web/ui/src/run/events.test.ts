import { expect, it } from 'vitest'

import type { TimelineEvent, VerdictSpan } from '../api/types'
import type { NamedChange } from './changes'
import { clustersOf, countedEvents, eventsOf, signOf, type RunEvent } from './events'

const event = (from_s: number, kind: RunEvent['kind'], to_s = from_s): RunEvent => ({ from_s, to_s, kind, text: `${kind} at ${from_s}` })

const events = [event(0, 'failure_burst', 12), event(14, 'limit_moved'), event(15, 'instance_replaced'), event(40, 'limit_moved'), event(99, 'limit_moved')]

it('merges marks that would overlap', () => {
  const found = clustersOf(events, { from_s: 0, to_s: 50 }, (time_s) => time_s * 2, 12)
  expect(found.map(({ x, events }) => [x, events.length])).toEqual([[0, 1], [28, 2], [80, 1]])
  expect(found.map(({ events }) => signOf(events).sign)).toEqual(['✕', '↻', '⇄'])
})

it('shows an event that started before the range at the edge of the range', () => {
  const found = clustersOf(events, { from_s: 10, to_s: 20 }, (time_s) => (time_s - 10) * 100, 12)
  expect(found.map(({ x }) => x)).toEqual([0, 400, 500])
})

it('counts events by kind', () => {
  expect(countedEvents(events, 'No events')).toBe('1 failure burst, 1 replaced module instance, 3 changes of the limit')
  expect(countedEvents([], 'No events')).toBe('No events')
})

it('derives changes of the limit from the spans of the verdict', () => {
  const span = (from_s: number, kind: VerdictSpan['kind'], stage: string | null): VerdictSpan => ({ from_s, to_s: from_s + 10, kind, stage, sentence: '' })
  const timeline = [event(12, 'failure_burst') as TimelineEvent]
  const found = eventsOf(timeline, [span(0, 'too_little', null), span(10, 'consumer', null), span(20, 'stage', '1:nap')], [], () => 'nap')
  expect(found.map(({ text }) => text)).toEqual(['Limit changed from not known yet to the consumer', 'failure_burst at 12', 'Limit changed from the consumer to nap'])
})

it('has the changes of settings, with their outcome and gain', () => {
  const change: NamedChange = { at_s: 30, until_s: 40, pointer: '/stages/0/sleep/concurrency', setting: 'Concurrency of nap', from: 1, to: 8, evidence: '', before: 20, predicted: 65, measured: 62, outcome: 'kept' }
  const byHand: NamedChange = { ...change, at_s: 5, until_s: null, before: null, predicted: null, measured: null, outcome: 'set' }
  const found = eventsOf([], [], [change, { ...change, outcome: 'suggested' }, byHand], () => null)
  expect(found).toEqual([
    { from_s: 5, to_s: 5, kind: 'setting_changed', text: 'Concurrency of nap 1 → 8: set' },
    { from_s: 30, to_s: 40, kind: 'setting_changed', text: 'Concurrency of nap 1 → 8: kept, +210\u202f%' },
  ])
  expect(signOf(found).sign).toBe('⚙')
  expect(countedEvents(found, 'No events')).toBe('2 changes of settings')
})
