import { describe, expect, it } from 'vitest'

import type { Series } from '../api/types'
import { bucketFor, columnKey, csv, joined, summaryOf, tableOf, weighed, wholeBuckets, withoutParts, within } from './series'

/** One queue with a readiness per bucket. */
function series(from_s: number, bucket_s: number, readiness: (number | null)[]): Series {
  const t_s = readiness.map((_, place) => from_s + (place + 1) * bucket_s)
  const column = { id: '1:a_queue', metric: 'readiness' as const, mean: readiness, min: readiness, max: readiness }
  return { from_s, to_s: t_s.at(-1) ?? from_s, bucket_s, t_s, columns: [column], last: 'e-1' }
}

const readiness = columnKey('readiness', '1:a_queue')

it('cuts the last bucket at the end of the run', () => {
  const table = tableOf(series(0, 1, [1, 1, 0]), 2.5)
  expect([table.t_s, table.to_s]).toEqual([[1, 2, 2.5], 2.5])
  expect(summaryOf(table, 'readiness', '1:a_queue', 0, 2.5).mean).toBeCloseTo(0.8)
})

it('multiplies one metric by the weights of ids, and keeps null', () => {
  const table = tableOf(series(0, 1, [0.5, null]))
  expect(weighed(table, 'readiness', new Map([['1:a_queue', 0.5]])).columns.get(readiness)?.mean).toEqual([0.25, null])
  expect(weighed(table, 'readiness', new Map()).columns.get(readiness)?.max).toEqual([0.5, null])
  expect(weighed(table, 'qps', new Map()).columns.size).toBe(0)
  expect(table.columns.get(readiness)?.mean).toEqual([0.5, null])
})

describe('withoutParts', () => {
  const rates = (metric: 'qps' | 'readiness', mean: (number | null)[], end_s?: number) => {
    const of = series(0, 1, mean)
    of.columns[0] = { id: '1:a_queue', metric, mean, min: mean, max: mean }
    const { mean: shown, max } = withoutParts(tableOf(of, end_s)).columns.get(columnKey(metric, '1:a_queue')) ?? {}
    expect(max).toEqual(shown)
    return shown
  }

  it('draws no rate of the moment before the end', () => {
    // The run ends 20 ms after the start of its last bucket, and the queue within its third one.
    expect(rates('qps', [40, 40, 50], 2.02)).toEqual([40, 40, null])
    expect(rates('qps', [40, 40, 900, null, null])).toEqual([40, 40, null, null, null])
  })

  it('keeps whole buckets, the only one, and what is no rate', () => {
    expect(rates('qps', [null, 40, 50], 3)).toEqual([null, 40, 50])
    expect(rates('qps', [40, 40, 50])).toEqual([40, 40, 50])
    expect(rates('qps', [null, 40, null], 2.5)).toEqual([null, 40, null])
    expect(rates('readiness', [1, 0.5], 1.5)).toEqual([1, 0.5])
    expect(rates('qps', [])).toEqual([])
  })
})

describe('joined', () => {
  const table = tableOf(series(0, 1, [0.1, 0.2, 0.3]))

  it('appends new buckets and removes old ones', () => {
    const next = joined(table, tableOf(series(3, 1, [0.4, 0.5])), 2)
    expect(next?.t_s).toEqual([3, 4, 5])
    expect(next?.columns.get(readiness)?.mean).toEqual([0.3, 0.4, 0.5])
    expect([next?.from_s, next?.to_s]).toEqual([2, 5])
  })

  it('ignores buckets that are already present', () => {
    const next = joined(table, tableOf(series(1, 1, [0.9, 0.9, 0.4])), 0)
    expect(next?.columns.get(readiness)?.mean).toEqual([0.1, 0.2, 0.3, 0.4])
  })

  it('returns null for a gap or a different width', () => {
    expect(joined(table, tableOf(series(4, 1, [0.4])), 0)).toBeNull()
    expect(joined(table, tableOf(series(3, 0.5, [0.4])), 0)).toBeNull()
  })

  it('fills new and missing columns with null', () => {
    const tail = series(3, 1, [0.4])
    tail.columns[0] = { id: '2:b_queue', metric: 'readiness', mean: [0.7], min: [0.7], max: [0.7] }
    const next = joined(table, tableOf(tail), 0)
    expect(next?.columns.get(readiness)?.mean).toEqual([0.1, 0.2, 0.3, null])
    expect(next?.columns.get(columnKey('readiness', '2:b_queue'))?.mean).toEqual([null, null, null, 0.7])
  })

  it('does not change its arguments', () => {
    joined(table, tableOf(series(3, 1, [0.4])), 2)
    expect(table.t_s).toEqual([1, 2, 3])
  })
})

describe('buckets', () => {
  it('are at least 0.25 s wide', () => {
    expect(bucketFor(10, 400)).toBe(0.25)
    expect(bucketFor(300, 400)).toBe(1)
    expect(bucketFor(300, 400, 2)).toBe(2)
    expect(bucketFor(7200, 400)).toBe(32)
    expect(bucketFor(400 * 4096 * 30, 400)).toBe(4096 * 30)
  })

  it('are multiples of the widest server rows that fit', () => {
    for (let span_s = 1; span_s < 5e6; span_s *= 1.3) {
      const width = bucketFor(span_s, 400)
      const row = [64, 4, 0.25].find((row) => row <= width) as number
      expect(width % row, `${span_s} s`).toBe(0)
      expect(span_s / width).toBeLessThanOrEqual(400)
    }
  })

  it('are requested only after they are complete', () => {
    expect(wholeBuckets(5, 7.9, 1)).toEqual({ from_s: 5, to_s: 7, points: 2 })
    expect(wholeBuckets(5, 5.9, 1).points).toBe(0)
    expect(wholeBuckets(2.5, 3, 0.25)).toEqual({ from_s: 2.5, to_s: 3, points: 2 })
  })

  it('belong to a range that overlaps them', () => {
    const table = tableOf(series(0, 1, [1, 1, 1, 1]))
    expect(within(table, 1, 3)).toEqual([1, 3])
    expect(within(table, 1.5, 2.5)).toEqual([1, 3])
    expect(within(table, 0, 3.2)).toEqual([0, 4])
    expect(within(table, 9, 12)).toEqual([4, 4])
  })
})

describe('summaryOf', () => {
  it('does not count null as zero', () => {
    const table = tableOf(series(0, 1, [null, 0.5, 1, null]))
    expect(summaryOf(table, 'readiness', '1:a_queue', 0, 4)).toEqual({ current: null, min: 0.5, mean: 0.75, max: 1 })
    expect(summaryOf(table, 'qps', '1:a_queue', 0, 4)).toEqual({ current: null, min: null, mean: null, max: null })
  })

  it('weighs a shorter last bucket by its length', () => {
    const short = series(0, 1, [1, 0])
    short.t_s[1] = 1.25
    expect(summaryOf(tableOf(short), 'readiness', '1:a_queue', 0, 2).mean).toBeCloseTo(0.8)
  })

  it('weighs task times by successful tasks', () => {
    const both = series(0, 1, [null, null])
    const column = (metric: 'ave_time_s' | 'tasks_per_s' | 'failures_per_s', mean: number[]) => ({ id: '1:a', metric, mean, min: mean, max: mean })
    both.columns = [column('ave_time_s', [0.01, 0.04]), column('tasks_per_s', [90, 20]), column('failures_per_s', [0, 10])]
    // 90 tasks of 10 ms and 10 of 40 ms.
    expect(summaryOf(tableOf(both), 'ave_time_s', '1:a', 0, 2).mean).toBeCloseTo(0.013)
  })
})

describe('csv', () => {
  it('writes null as an empty field, and quotes names with separators', () => {
    const odd = series(0, 1, [0.5, null])
    const table = tableOf(odd)
    const column = { ...(odd.columns[0] as (typeof odd.columns)[0]), id: 'a,b' }
    expect(csv(table, [column])).toBe('t_s,"a,b readiness mean","a,b readiness min","a,b readiness max"\r\n1,0.5,0.5,0.5\r\n2,,,\r\n')
  })
})
