import { expect, test } from 'vitest'

import type { Profile, StageProfile } from '../api/types'
import { doublings, mostAtATime, profileSheet, speedUp } from './profile'

const point = (at_a_time: number, samples_per_s: number) => ({ at_a_time, samples_per_s, ops: 10, failed_samples: 0, op_s: 0.01, cpu_s: 0.009, cores: 1, slowdown: 1 })
const stage = (id: string, rates: number[]): StageProfile => ({
  id,
  name: id,
  kind: 'wasm',
  computes: true,
  inputs: { items: 1, samples: 1, bytes: 1, is_full: false },
  points: rates.map((rate, power) => point(2 ** power, rate)),
  knee: 1,
  company: null,
  cpu_s_per_1000: 9,
  bytes_in_per_1000: 1,
  bytes_out_per_1000: 1,
  memory_bytes: null,
})
const profile = (stages: StageProfile[]): Profile => ({ name: 'p', cores: 4, threads: 2, recorded_s: 1, stages, without_inputs: [] })

test('speed-ups are relative to one op at a time', () => {
  const decode = stage('1:decode', [100, 190, 300])
  expect(decode.points.map((point) => speedUp(decode, point))).toEqual([1, 1.9, 3])
  const none = stage('2:none', [0, 10])
  expect(none.points.map((point) => speedUp(none, point))).toEqual([0, 0])
})

test('the axis has all doublings up to the largest number', () => {
  expect(doublings(mostAtATime(profile([stage('a', [1, 2]), stage('b', [1, 2, 3])])))).toEqual([1, 2, 4])
  expect(doublings(6)).toEqual([1, 2, 4, 6])
  expect(doublings(mostAtATime(profile([])))).toEqual([1])
})

test('the table has a row for each point', () => {
  const { columns, rows } = profileSheet(profile([stage('a', [10, 20]), stage('b', [5])]))
  expect(rows.map(([stage, at, rate]) => [stage, at, rate])).toEqual([['a', 1, 10], ['a', 2, 20], ['b', 1, 5]])
  expect(rows.every((row) => row.length === columns.length)).toBe(true)
})
