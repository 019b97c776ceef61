// Requests for storage benchmarks and their reports on the server.

import { get, post, postText, remove } from './client'
import type { BenchmarkComparison, BenchmarkProgress, BenchmarkSummary, BenchReport, CurrentBenchmark, Page, QueryOf, StartBenchmark } from './types'

const of = (id: string) => `/benchmarks/${encodeURIComponent(id)}`

export const benchmarks = {
  list: (query: QueryOf<'list_benchmarks'>, signal?: AbortSignal) => get<Page<BenchmarkSummary>>('/benchmarks', { ...query }, signal),
  compare: (id: string, base: string, signal?: AbortSignal) => get<BenchmarkComparison>(`${of(id)}/comparison`, { base }, signal),
  report: (id: string, signal?: AbortSignal) => get<BenchReport>(of(id), {}, signal),
  delete: (id: string) => remove(of(id)),
  start: (request: StartBenchmark) => post<BenchmarkProgress>('/benchmarks/start', request),
  current: (signal?: AbortSignal) => get<CurrentBenchmark>('/benchmarks/current', {}, signal),
  stop: (id: string) => post<BenchmarkProgress>(`${of(id)}/stop`),
  /** Stores a report on the server, unchanged. */
  keep: (report: Blob) => postText<BenchmarkSummary>('/benchmarks', report),
}
