// Reports of storage benchmarks that the server keeps.

import { get, postText, remove } from './client'
import type { BenchmarkComparison, BenchmarkSummary, BenchReport, Page, QueryOf } from './types'

const of = (id: string) => `/benchmarks/${encodeURIComponent(id)}`

export const benchmarks = {
  list: (query: QueryOf<'list_benchmarks'>, signal?: AbortSignal) => get<Page<BenchmarkSummary>>('/benchmarks', { ...query }, signal),
  compare: (id: string, base: string, signal?: AbortSignal) => get<BenchmarkComparison>(`${of(id)}/comparison`, { base }, signal),
  report: (id: string, signal?: AbortSignal) => get<BenchReport>(of(id), {}, signal),
  delete: (id: string) => remove(of(id)),
  /** Lets the server keep a report. It goes as it is: the server is its only judge. */
  keep: (report: Blob) => postText<BenchmarkSummary>('/benchmarks', report),
}
