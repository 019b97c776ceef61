import { beforeEach, describe, expect, it, vi } from 'vitest'

import { columnKey } from '../charts/series'
import type { Listener } from '../api/events'
import type { LiveSample, Metric, Series } from '../api/types'
import type { Window } from '../charts/window'
import type { RunFeed } from './feed.svelte'
import { RunSeries } from './series.svelte'

const server = vi.hoisted(() => ({
  asked: [] as { from_s: number; to_s: number; points: number; metrics: string[]; ids?: string[]; spreads?: boolean }[],
  /** Factor by which the server widens the requested buckets. */
  wider: 1,
  down: false,
}))

vi.mock('../api/endpoints', () => ({
  api: {
    series: async (_: string, query: (typeof server.asked)[0]): Promise<Series> => {
      server.asked.push(query)
      if (server.down) throw new Error('down')
      const bucket_s = ((query.to_s - query.from_s) / query.points) * server.wider
      const t_s: number[] = []
      for (let end = query.from_s + bucket_s; end < query.to_s + bucket_s - 1e-9; end += bucket_s) t_s.push(end)
      const mean = t_s.map(() => 0.5)
      const spreads = query.spreads === false ? { min: [], max: [] } : { min: mean, max: mean }
      const columns = query.metrics.map((metric) => ({ id: '1:a_queue', metric: metric as Metric, mean, ...spreads }))
      return { from_s: query.from_s, to_s: t_s.at(-1) ?? query.from_s, bucket_s, t_s, columns, last: 'e-1' }
    },
    timeline: async () => ({ items: [], left_out: 0 }),
  },
}))

/** Run feed whose length and live samples the test sets. */
class FakeFeed {
  id = 'run'
  over = false
  length_s = 0
  #hear: (sample: LiveSample) => void = () => {}

  elapsed = () => this.length_s
  listen = ({ sample }: Listener) => {
    this.#hear = (heard) => sample?.(heard)
    return () => {}
  }

  /** Sends a live sample at this time and waits for the requests that follow. */
  async reaches(length_s: number): Promise<void> {
    this.length_s = length_s
    this.#hear({ t1_s: length_s } as LiveSample)
    await new Promise((done) => setTimeout(done, 0))
  }
}

const FIVE_MINUTES: Window = { follow: true, span_s: 300 }
vi.stubGlobal('innerWidth', 1280)
let feed: FakeFeed
let series: RunSeries

/** Requests for the window's series; requests for the overview have a single metric. */
const asked = () => server.asked.filter(({ metrics }) => metrics.length > 1).map(({ from_s, to_s, points }) => [from_s, to_s, points])

beforeEach(() => {
  server.asked = []
  server.wider = 1
  server.down = false
  feed = new FakeFeed()
  series = new RunSeries(feed as unknown as RunFeed)
  series.start()
  series.want('charts', { metrics: ['readiness', 'qps'], points: 400 })
})

describe('following a run', () => {
  it('requests the window once, then only new complete buckets', async () => {
    feed.length_s = 400.6
    await series.load(FIVE_MINUTES)
    for (const length_s of [400.75, 401.1, 401.35, 401.6, 403.2]) await feed.reaches(length_s)
    expect(asked()).toEqual([[100, 400, 300], [400, 401, 1], [401, 403, 2]])
    expect([series.table?.t_s[0], series.table?.t_s.at(-1)]).toEqual([104, 403])
  })

  it('starts after the first complete bucket', async () => {
    await series.load(FIVE_MINUTES)
    await feed.reaches(0.5)
    expect(asked()).toEqual([])
    await feed.reaches(1.25)
    expect(asked()).toEqual([[0, 1, 1]])
    expect(series.table?.t_s).toEqual([1])
  })

  it('does not fetch the whole window with every sample if the server widens the buckets', async () => {
    server.wider = 2
    feed.length_s = 400
    await series.load(FIVE_MINUTES)
    for (let quarter = 1; quarter <= 40; quarter++) await feed.reaches(400 + quarter / 4)
    expect(asked().length).toBeLessThanOrEqual(11)
  })

  it('fetches wider buckets when the run no longer fits', async () => {
    feed.length_s = 399
    await series.load({ follow: true, span_s: null })
    expect(series.table?.bucket_s).toBe(1)
    await feed.reaches(402.5)
    expect(series.table?.bucket_s).toBe(2)
    expect(series.table?.t_s.at(-1)).toBe(402)
  })
})

describe('a fixed window', () => {
  it('is fetched once', async () => {
    feed.length_s = 400
    await series.load({ follow: false, from_s: 10, to_s: 20 })
    for (const length_s of [401, 402, 403]) await feed.reaches(length_s)
    expect(asked()).toEqual([[10, 20, 40]])
  })

  it('is fetched to its end', async () => {
    feed.length_s = 400.1
    await series.load({ follow: false, from_s: 10.2, to_s: 20.1 })
    await series.load({ follow: false, from_s: 390.2, to_s: 400.1 })
    expect(asked()).toEqual([[10, 20.25, 41], [390, 400, 40]])
  })

  it('includes the incomplete last bucket of a run that is over', async () => {
    feed.over = true
    feed.length_s = 310.4
    await series.load({ follow: true, span_s: null })
    expect(asked()).toEqual([[0, 311, 311]])
    expect(series.table?.t_s.slice(-2)).toEqual([310, 310.4])
  })

  it('has buckets as narrow as measured for a short run', async () => {
    feed.over = true
    feed.length_s = 1.1
    await series.load({ follow: true, span_s: null })
    await series.loadOverview()
    expect(asked()).toEqual([[0, 1.25, 5]])
    expect(series.overview?.t_s).toEqual([0.25, 0.5, 0.75, 1, 1.1])
  })
})

describe('wanted figures', () => {
  const queries = () => server.asked.map(({ points, metrics, ids, spreads }) => ({ points, metrics, ids, spreads }))

  it('are requested for all parts of the page at once, in as many buckets as the widest plot shows', async () => {
    feed.over = true
    feed.length_s = 800
    series.want('graph', { metrics: ['readiness', 'busy'], points: 1 })
    await series.load({ follow: true, span_s: null })
    expect(queries()).toEqual([{ points: 400, metrics: ['readiness', 'qps', 'busy'], ids: undefined, spreads: false }])
    series.want('charts', { metrics: ['qps'], points: 900 })
    expect(queries()[1]).toEqual({ points: 800, metrics: ['qps', 'readiness', 'busy'], ids: undefined, spreads: false })
  })

  it('are added to the present buckets when further charts become visible', async () => {
    feed.over = true
    feed.length_s = 310.4
    await series.load({ follow: true, span_s: null })
    series.want('charts', { metrics: ['readiness', 'qps', 'starved'], points: 400 })
    await new Promise((done) => setTimeout(done, 0))
    expect(asked()).toEqual([[0, 311, 311]])
    expect(server.asked[1]).toMatchObject({ from_s: 0, to_s: 311, points: 311, metrics: ['starved'] })
    expect(['readiness', 'qps', 'starved'].map((metric) => series.table?.columns.get(columnKey(metric as Metric, '1:a_queue'))?.mean.length)).toEqual([311, 311, 311])
    expect(series.table?.t_s.at(-1)).toBe(310.4)
  })

  it('include minima, maxima and percentiles for a selected line, or for all lines of a table', async () => {
    feed.over = true
    feed.length_s = 100
    series.want('charts', { metrics: ['readiness', 'ave_get_time_s'], points: 400, detailed: ['1:a_queue'] })
    await series.load({ follow: true, span_s: null })
    const detailed = ['readiness', 'ave_get_time_s', 'p50_get_time_s', 'p99_get_time_s']
    expect(queries()).toEqual([
      { points: 100, metrics: ['readiness', 'ave_get_time_s'], ids: undefined, spreads: false },
      { points: 100, metrics: detailed, ids: ['1:a_queue'], spreads: undefined },
    ])
    expect(series.table?.columns.get(columnKey('readiness', '1:a_queue'))?.min?.length).toBe(100)
    expect(series.table?.columns.has(columnKey('p99_get_time_s', '1:a_queue'))).toBe(true)
    server.asked = []
    series.want('charts', { metrics: ['readiness'], points: 400, detailed: null })
    expect(queries()).toEqual([{ points: 100, metrics: ['readiness'], ids: undefined, spreads: undefined }])
  })

  it('are fetched neither without a change nor before a part of the page wants any', async () => {
    feed.length_s = 400
    series = new RunSeries(feed as unknown as RunFeed)
    await series.load(FIVE_MINUTES)
    expect(queries()).toEqual([])
    series.want('charts', { metrics: ['qps'], points: 400 })
    series.want('charts', { metrics: ['qps'], points: 400 })
    expect(queries().length).toBe(1)
  })
})

it('fetches the overview again if the run ended during the request', async () => {
  feed.length_s = 100
  const read = series.loadOverview()
  feed.over = true
  feed.length_s = 101.5
  void series.loadOverview()
  await read
  expect([series.overview?.to_s, server.asked.length]).toEqual([101.5, 2])
})

it('keeps the series and shows a problem when the server does not answer', async () => {
  feed.length_s = 400
  await series.load(FIVE_MINUTES)
  server.down = true
  await feed.reaches(401.2)
  expect(series.problem?.detail).toBe('down')
  expect(series.table?.t_s.at(-1)).toBe(400)
  server.down = false
  await feed.reaches(402.2)
  expect(series.problem).toBeNull()
  expect(series.table?.t_s.at(-1)).toBe(402)
})
