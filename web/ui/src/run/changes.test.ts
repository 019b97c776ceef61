import { expect, test } from 'vitest'

import type { SettingChange } from '../api/types'
import { broughtBy, flagsOf, heldBy } from './changes'

const change = (pointer: string, to: number, outcome: SettingChange['outcome'], before: number | null, measured: number | null): SettingChange =>
  ({ at_s: 1, until_s: null, pointer, from: 1, to, evidence: '', before, predicted: null, measured, outcome })

test('what changes brought is the rate before the first and after the last of those that hold', () => {
  expect(broughtBy([])).toBeNull()
  expect(broughtBy([change('/a', 2, 'undone', 10, 9)])).toBeNull()
  const changes = [change('/a', 2, 'undone', 10, 9), change('/a', 4, 'kept', 11, 20), change('/b', 3, 'kept', 20, 44), change('/b', 9, 'trying', 44, null)]
  expect(broughtBy(changes)).toEqual({ count: 2, before: 11, measured: 44 })
  expect(broughtBy([change('/a', 4, 'set', null, null), ...changes])).toEqual({ count: 2, before: 11, measured: 44 })
})

test('the last changes that hold are those of a run with the same settings', () => {
  const changes = [change('/a', 2, 'set', null, null), change('/a', 4, 'kept', 2, 3), change('/b', 8, 'undone', 3, 2), change('/c', 6, 'suggested', 3, null)]
  expect(heldBy(changes)).toEqual({ '/a': 4 })
})

test('flags are those of the last changes that hold or would help', () => {
  const changes = [change('/a', 2, 'kept', 1, 2), change('/a', 4, 'kept', 2, 3), change('/b', 8, 'undone', 3, 2), change('/c', 6, 'suggested', 3, null)]
  expect(flagsOf(changes)).toBe('--set /a=4 --set /c=6')
  expect(flagsOf([])).toBe('')
})
