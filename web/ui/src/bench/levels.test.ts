import { expect, it } from 'vitest'

import { sheetCsv } from '../charts/sheet'
import { levelSheet, passRange, quantilesOf, rateSheet } from './levels'
import { loadsOf } from './loads'
import { load, report, spread, voided } from './sample'

it('the table of levels has a line for each load and level, and says which are void', () => {
  const levels = { getitem: spread(0.001), fetch: null, worker_loop: null, load_all: null, benchmark: null }
  const csv = sheetCsv(levelSheet(loadsOf(report([load('sync', 2, 100, { levels }), voided(load('async', 4, 100))]))))
  const lines = csv.trim().split('\r\n')
  expect(lines[0]).toBe('load,mode,workers,in_flight,batch_size,level,n,mean_s,median_s,min_s,max_s,stdev_s,p90_s,p99_s,p999_s,sum_s,books')
  expect(lines).toHaveLength(11)
  expect(lines[1]).toBe('sync 2,sync,2,1,50,getitem,100,0.001,0.001,0.0005,0.004,0,0.002,0.003,0.004,0.1,balanced')
  expect(lines[2]).toBe('sync 2,sync,2,1,50,fetch,0,,,,,,,,,,balanced')
  expect(lines[6]).toMatch(/^async 4x8,async,4,8,50,getitem,100,.*,VOID$/)
})

it('rates come with their slowest and fastest pass, and say whether the client is the limit', () => {
  const ceiling = { against: 'memory' as const, items_per_s: 110, mb_per_s: 2, reached: 0.9, is_client_bound: true }
  const loads = loadsOf(report([load('sync', 2, 100, { ceiling }), load('sync', 4, 100, { passes: [] })]))
  expect(passRange(loads[0]!, 'items_per_s')).toEqual({ min: 80, max: 120 })
  expect(passRange(loads[1]!, 'items_per_s')).toBeNull()
  expect(rateSheet(loads).rows.map((row) => row.slice(-3))).toEqual([[110, 'client-bound', 'balanced'], [null, 'not measured', 'balanced']])
})

it('percentiles have their names', () => {
  expect(quantilesOf(spread(0.001)).map(({ name, at_s }) => [name, at_s])).toEqual([['p50', 0.001], ['p90', 0.002], ['p99', 0.003], ['p99.9', 0.004]])
  expect(quantilesOf(null)).toEqual([])
})
