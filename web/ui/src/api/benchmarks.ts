// Reports of storage benchmarks that the server keeps.

import { get, postText, remove } from './client'
import type { BenchmarkSummary, BenchReport, Page } from './types'

const of = (id: string) => `/benchmarks/${encodeURIComponent(id)}`

export const benchmarks = {
  list: (cursor: string | null, signal?: AbortSignal) => get<Page<BenchmarkSummary>>('/benchmarks', { cursor }, signal),
  report: (id: string, signal?: AbortSignal) => get<BenchReport>(of(id), {}, signal),
  delete: (id: string) => remove(of(id)),
  /** Lets the server keep a report. It goes as it is: the server is its only judge. */
  keep: (report: Blob) => postText<BenchmarkSummary>('/benchmarks', report),
}
