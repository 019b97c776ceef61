import { expect, it } from 'vitest'

import type { BenchReport, LoadReport, Spread } from '../api/types'
import { sheetCsv } from '../charts/sheet'
import { levelSheet, passRange, quantilesOf, rateSheet } from './levels'
import { chosen, fastestOf, gridsOf, loadAt, loadsOf, violations } from './loads'
import { partSheet } from './parts'
import { gainText, isSound, verdictOf } from './words'

function spread(mean_s: number, n = 100, more: Partial<Spread> = {}): Spread {
  return { n, sum_s: mean_s * n, mean_s, median_s: mean_s, min_s: mean_s / 2, max_s: mean_s * 4, stdev_s: 0, p90_s: mean_s * 2, p99_s: mean_s * 3, p999_s: mean_s * 4, ...more }
}

function load(mode: LoadReport['mode'], workers: number, items_per_s: number, more: Partial<LoadReport> = {}): LoadReport {
  const none = { getitem: 0, fetch: 0, worker_loop: 0, load_all: 0, benchmark: 0 }
  const pass = { elapsed_s: 100 / items_per_s, items_per_s, mb_per_s: items_per_s / 50, median_s: 0.001, p99_s: 0.003, cached: null }
  return {
    mode,
    workers,
    in_flight: mode === 'sync' ? 1 : 8,
    permits: mode === 'sync' ? workers : workers * 8,
    items_per_read: 1,
    batch_size: 50,
    prefetch: 2,
    assignment: 'static',
    persistent: false,
    counts: { getitem: 100, fetch: 2, worker_loop: workers, load_all: 1, benchmark: 1 },
    warm_up: none,
    levels: { getitem: spread(0.001), fetch: spread(0.05, 2), worker_loop: spread(0.1, workers), load_all: spread(0.1, 1), benchmark: spread(0.2, 1) },
    parts: [],
    mean_read: { mean_s: 0.001, parts: [], permit_s: null, stages: [] },
    refused: 0,
    items: 100,
    bytes: 2_000_000,
    elapsed_s: 100 / items_per_s,
    items_per_s,
    mb_per_s: items_per_s / 50,
    mib_per_s: items_per_s / 52,
    mbit_per_s: items_per_s / 6.25,
    passes: [{ ...pass, items_per_s: items_per_s * 0.8 }, { ...pass, items_per_s: items_per_s * 1.2 }],
    little: { in_flight: 1.5, most: 2, used: 0.75, by_law: 1.5 },
    busy: 0.9,
    latencies: [{ from_s: 0.00099, to_s: 0.00101, count: 100 }],
    latency_bins: [{ from_s: 0.00095, to_s: 0.00105, count: 100, share: 1 }],
    over_time: [],
    requests: { made: 100, retries: 0, connections: 0, per_item: 1, retried: 0 },
    failures: [],
    ceiling: null,
    books: { balanced: true, checks: [{ identity: 'once', says: 'every item is read once', holds: true, found: null }] },
    ...more,
  }
}

function report(...grids: LoadReport[][]): BenchReport {
  return {
    version: 1,
    name: 'sample',
    started_at: '2026-11-22T01:24:52.945Z',
    elapsed_s: 12,
    state: 'completed',
    reason: null,
    balanced: true,
    findings: [],
    program: 'penstock 0.1.0',
    machine: { cores: 2, memory_bytes: null },
    document: { cache: 'warm' },
    objects: { store: 'memory', kind: 'memory', count: 100, bytes: 2_000_000, min_bytes: 20_000, median_bytes: 20_000, max_bytes: 20_000, index_s: 0, survey_s: null, warmed_s: null },
    actions: grids.map((whole_set) => ({ whole_set })),
    accelerators: null,
    counterfactuals: [],
  } as unknown as BenchReport
}

/** The load with a failed consistency check. */
function voided(of: LoadReport): LoadReport {
  return { ...of, books: { balanced: false, checks: [{ identity: 'bytes', says: 'the length of every body is the size of its object', holds: false, found: '3 are shorter' }] } }
}

it('selects the fastest load without failed checks, unless the address names another load', () => {
  const loads = loadsOf(report([load('sync', 2, 100), load('async', 2, 300), voided(load('async', 4, 900))]))
  expect(loads.map(({ id }) => id)).toEqual(['sync 2', 'async 2x8', 'async 4x8'])
  expect(chosen(loads, null)?.id).toBe('async 2x8')
  expect(chosen(loads, 'sync 2')?.id).toBe('sync 2')
  expect(chosen(loads, 'async 64x8')?.id).toBe('async 2x8')
  expect(violations(loads).map(({ load, identity, found }) => [load.id, identity, found])).toEqual([['async 4x8', 'bytes', '3 are shorter']])
})

it('selects the fastest load if all loads are void, and none without loads', () => {
  expect(fastestOf(loadsOf(report([voided(load('sync', 2, 100)), voided(load('sync', 4, 200))])))?.id).toBe('sync 4')
  expect(chosen(loadsOf(report()), null)).toBeNull()
})

it('gives loads of several grids different ids and labels', () => {
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

it('the table of levels has a line for each load and level, and marks void loads', () => {
  const levels = { getitem: spread(0.001), fetch: null, worker_loop: null, load_all: null, benchmark: null }
  const csv = sheetCsv(levelSheet(loadsOf(report([load('sync', 2, 100, { levels }), voided(load('async', 4, 100))]))))
  const lines = csv.trim().split('\r\n')
  expect(lines[0]).toBe('load,mode,workers,in_flight,batch_size,level,n,mean_s,median_s,min_s,max_s,stdev_s,p90_s,p99_s,p999_s,sum_s,checks')
  expect(lines).toHaveLength(11)
  expect(lines[1]).toBe('sync 2,sync,2,1,50,getitem,100,0.001,0.001,0.0005,0.004,0,0.002,0.003,0.004,0.1,passed')
  expect(lines[2]).toBe('sync 2,sync,2,1,50,fetch,0,,,,,,,,,,passed')
  expect(lines[6]).toMatch(/^async 4x8,async,4,8,50,getitem,100,.*,VOID$/)
})

it('the table of rates has the slowest and fastest pass and the limit by the client', () => {
  const ceiling = { against: 'memory' as const, items_per_s: 110, mb_per_s: 2, reached: 0.9, is_client_bound: true }
  const loads = loadsOf(report([load('sync', 2, 100, { ceiling }), load('sync', 4, 100, { passes: [] })]))
  expect(passRange(loads[0]!, 'items_per_s')).toEqual({ min: 80, max: 120 })
  expect(passRange(loads[1]!, 'items_per_s')).toBeNull()
  expect(rateSheet(loads).rows.map((row) => row.slice(-3))).toEqual([[110, 'yes', 'passed'], [null, 'not measured', 'passed']])
})

it('names percentiles', () => {
  expect(quantilesOf(spread(0.001)).map(({ name, at_s }) => [name, at_s])).toEqual([['p50', 0.001], ['p90', 0.002], ['p99', 0.003], ['p99.9', 0.004]])
  expect(quantilesOf(null)).toEqual([])
})

it('the table of parts has the shares of the report and the number of reads with each part', () => {
  const parts = [
    { name: 'permit', time: spread(0.5), share: 0.9 },
    { name: 'connect', time: spread(0.002, 10), share: 0.2 },
    { name: 'between', time: spread(0.01, 2), share: 0.1 },
    { name: 'stage:decode', time: spread(0.004), share: 0.4 },
  ]
  const mean_read = {
    mean_s: 0.001,
    parts: [{ name: 'connect', mean_s: 0.0002, share: 0.2 }, { name: 'else', mean_s: 0.0008, share: 0.8 }],
    permit_s: 0.5,
    stages: [{ name: 'decode', mean_s: 0.004, share: null }],
  }
  const { rows } = partSheet(loadsOf(report([load('async', 2, 100, { parts, mean_read })])))
  expect(rows.map(([, part, mean_s, share, n]) => [part, mean_s, share, n])).toEqual([
    ['connect', 0.0002, 0.2, 10],
    ['else', 0.0008, 0.8, null],
    ['between reads, per batch', 0.01, null, 2],
    ['wait for a permit, before the read', 0.5, null, 100],
    ['stage decode, per item', 0.004, null, 100],
  ])
})

it('a load without reads has no parts', () => {
  expect(partSheet(loadsOf(report([load('async', 2, 100)]))).rows).toEqual([])
})

it('a failed consistency check takes precedence over the state', () => {
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

it('shows gains as percentages, and large gains as multiples', () => {
  expect([0.0127, 0.4, -0.05, 1.5, 13.37].map((gain) => gainText(gain).replaceAll('\u202f', ' '))).toEqual(['+1.3 %', '+40 %', '−5.0 %', '2.5× as fast', '14× as fast'])
})
