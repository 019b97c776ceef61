import { expect, it } from 'vitest'

import { withSettings } from './document'

const text = '{ "seed": 18446744073709551615, "stages": [{ "sleep": { "mean_ms": 4.0 } }, { "sleep": { "mean_ms": 25, "concurrency": 1 } }] }'

it('sets values, and keeps every digit of the others', () => {
  expect(withSettings(text, { '/stages/1/sleep/concurrency': 4, '/stages/0/sleep/queue': 8, '/sink/queue': 3, '/threads': 2 })).toBe(
    '{ "seed": 18446744073709551615, "stages": [{ "sleep": { "mean_ms": 4.0, "queue": 8 } }, { "sleep": { "mean_ms": 25, "concurrency": 4 } }], "sink": { "queue": 3 }, "threads": 2 }',
  )
})

it('returns null for a place that cannot be set', () => {
  expect(withSettings(text, { '/stages/7/sleep/queue': 1 })).toBeNull()
})
