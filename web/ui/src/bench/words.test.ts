import { expect, it } from 'vitest'

import { load, report } from './sample'
import { gainText, isSound, verdictOf } from './words'

it('figures that cannot be relied on come before how it ended', () => {
  expect(verdictOf({ state: 'failed', balanced: false, is_sound: false })).toBe('void')
  expect(verdictOf({ state: 'stopped', balanced: true, is_sound: false })).toBe('stopped')
  expect(verdictOf({ state: 'completed', balanced: true, is_sound: false })).toBe('incomplete')
  expect(verdictOf({ state: 'completed', balanced: true, is_sound: true })).toBe('completed')
})

it('a report with failures is not sound', () => {
  const failures = [{ what: 'storage', message: '`…` is not there', count: 1, keys: ['a'] }]
  expect(isSound(report([load('sync', 2, 100)]))).toBe(true)
  expect(isSound(report([load('sync', 2, 100, { failures })]))).toBe(false)
})

it('gains are told as a share, large ones as a multiple', () => {
  expect([0.0127, 0.4, -0.05, 1.5, 13.37].map((gain) => gainText(gain).replaceAll('\u202f', ' '))).toEqual(['+1.3 %', '+40 %', '−5.0 %', '2.5× as fast', '14× as fast'])
})
