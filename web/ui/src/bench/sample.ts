// Reports for tests.

import type { BenchReport, LoadReport, Spread } from '../api/types'

export function spread(mean_s: number, n = 100, more: Partial<Spread> = {}): Spread {
  return { n, sum_s: mean_s * n, mean_s, median_s: mean_s, min_s: mean_s / 2, max_s: mean_s * 4, stdev_s: 0, p90_s: mean_s * 2, p99_s: mean_s * 3, p999_s: mean_s * 4, ...more }
}

export function load(mode: LoadReport['mode'], workers: number, items_per_s: number, more: Partial<LoadReport> = {}): LoadReport {
  const none = { getitem: 0, fetch: 0, worker_loop: 0, load_all: 0, benchmark: 0 }
  const pass = { elapsed_s: 100 / items_per_s, items_per_s, mb_per_s: items_per_s / 50, median_s: 0.001, p99_s: 0.003, cached: null }
  return {
    mode,
    workers,
    in_flight: mode === 'sync' ? 1 : 8,
    permits: mode === 'sync' ? workers : workers * 8,
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

export function report(...grids: LoadReport[][]): BenchReport {
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

/** A load whose books do not balance. */
export function voided(of: LoadReport): LoadReport {
  return { ...of, books: { balanced: false, checks: [{ identity: 'bytes', says: 'the length of every body is the size of its object', holds: false, found: '3 are shorter' }] } }
}
