import { expect, it } from 'vitest'

import { chosen, fastestOf, gridsOf, loadAt, loadsOf, violations } from './loads'
import { load, report, voided } from './sample'

it('the fastest load whose books balance is chosen, unless the address says another', () => {
  const loads = loadsOf(report([load('sync', 2, 100), load('async', 2, 300), voided(load('async', 4, 900))]))
  expect(loads.map(({ id }) => id)).toEqual(['sync 2', 'async 2x8', 'async 4x8'])
  expect(chosen(loads, null)?.id).toBe('async 2x8')
  expect(chosen(loads, 'sync 2')?.id).toBe('sync 2')
  expect(chosen(loads, 'async 64x8')?.id).toBe('async 2x8')
  expect(violations(loads).map(({ load, identity, found }) => [load.id, identity, found])).toEqual([['async 4x8', 'bytes', '3 are shorter']])
})

it('where no books balance there is still something to look at, and of nothing nothing', () => {
  expect(fastestOf(loadsOf(report([voided(load('sync', 2, 100)), voided(load('sync', 4, 200))])))?.id).toBe('sync 4')
  expect(chosen(loadsOf(report()), null)).toBeNull()
})

it('loads of several grids are told apart', () => {
  const loads = loadsOf(report([load('sync', 4, 100), load('sync', 2, 90)], [load('sync', 4, 80, { batch_size: 256 })]))
  expect(loads.map(({ id, label }) => [id, label])).toEqual([
    ['sync 4', 'sync 4, batch 50'],
    ['sync 2', 'sync 2, batch 50'],
    ['sync 4 #2', 'sync 4, batch 256 #2'],
  ])
  const [first, second] = gridsOf(loads)
  expect(first?.workers).toEqual([2, 4])
  expect(first && loadAt(first, 'async', 2)).toBeNull()
  expect(second && loadAt(second, 'sync', 4)?.id).toBe('sync 4 #2')
})
