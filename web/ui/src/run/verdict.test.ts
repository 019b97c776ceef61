import { expect, it } from 'vitest'

import type { VerdictKind, VerdictSpan } from '../api/types'
import { ANSWERS, inShort, lookOf, spansNow } from './verdict'

const span = (from_s: number, to_s: number, kind: VerdictKind = 'stage', stage: string | null = '2:decode'): VerdictSpan => ({ from_s, to_s, kind, stage, sentence: '' })
const KINDS: VerdictKind[] = ['consumer', 'variance', 'stage', 'storage', 'source', 'threads', 'permits', 'failures', 'nothing_waits', 'too_little']

it('has a different sign for each kind', () => {
  expect(new Set(KINDS.map((kind) => lookOf(kind).sign)).size).toBe(KINDS.length)
})

it('shows an unknown kind of a newer server', () => {
  expect(lookOf('moon' as VerdictKind)).toEqual({ sign: '?', tone: 'idle' })
  expect(inShort('moon' as VerdictKind, null)).toBe('moon')
})

it('returns a short name for each limit', () => {
  expect(KINDS.map((kind) => inShort(kind, 'decode'))).toEqual([
    'the consumer',
    'bursts at decode',
    'decode',
    'storage at decode',
    'decode',
    'worker threads',
    'permits for decode',
    'failures at decode',
    'nothing',
    'not known yet',
  ])
  expect([ANSWERS.yes, ANSWERS.no, ANSWERS.nothing_waits]).toEqual(['Yes', 'No', 'No'])
})

it('extends the last span to the live sample', () => {
  const spans = [span(0, 4, 'consumer', null), span(4, 9)]
  expect(spansNow(spans, null)).toEqual(spans)
  expect(spansNow(spans, span(4, 10))).toEqual([spans[0], span(4, 10)])
})

it('adds a span that started after the snapshot, and ends the span before it', () => {
  const spans = [span(0, 4, 'consumer', null), span(4, 9)]
  const next = span(8, 10, 'threads', null)
  expect(spansNow(spans, next)).toEqual([spans[0], span(4, 8), next])
  expect(spansNow([], next)).toEqual([next])
})

it('ignores a sample older than the snapshot', () => {
  const spans = [span(0, 4, 'consumer', null), span(4, 9)]
  expect(spansNow(spans, span(0, 3, 'consumer', null))).toEqual(spans)
})
