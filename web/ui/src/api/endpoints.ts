// Requests to the API by the name of the resource.

import { get, post, postText, put, remove } from './client'
import type {
  AuditEntry, BenchmarkComparison, BenchmarkProgress, BenchmarkSummary, BenchReport, CurrentBenchmark, DeadLetters, LogEntry, Metric, ModuleSummary, Page,
  PipelineDocument, Predicted, PredictRequest, QueryOf, ReplayReport, RunDetail, RunError, RunFigures, RunSpec, RunSummary, RunTags, Series, StartBenchmark,
  System, TaskTimes, Timeline,
} from './types'

type SeriesQuery = Omit<QueryOf<'show_series'>, 'metrics' | 'ids'> & { metrics?: Metric[]; ids?: string[] }

const run = (id: string) => `/runs/${encodeURIComponent(id)}`
const benchmark = (id: string) => `/benchmarks/${encodeURIComponent(id)}`

export const api = {
  system: (signal?: AbortSignal) => get<System>('/system', {}, signal),
  audit: (query: QueryOf<'list_audit'> = {}, signal?: AbortSignal) => get<Page<AuditEntry>>('/audit', { ...query }, signal),
  modules: (query: QueryOf<'list_modules'> = {}, signal?: AbortSignal) => get<Page<ModuleSummary>>('/modules', { ...query }, signal),

  runs: (query: QueryOf<'list_runs'> = {}, signal?: AbortSignal) => get<Page<RunSummary>>('/runs', { ...query }, signal),
  run: (id: string, signal?: AbortSignal) => get<RunDetail>(run(id), {}, signal),
  /** `key` makes the submission safe to send again: see `newKey`. */
  submit: (document: PipelineDocument, key: string) => post<RunDetail>('/runs', document, { headers: { 'idempotency-key': key } }),
  stop: (id: string) => post<RunDetail>(`${run(id)}/stop`),
  clone: (id: string) => post<RunDetail>(`${run(id)}/clone`),
  resume: (id: string, force: boolean) => post<RunDetail>(`${run(id)}/resume`, undefined, { query: { force } }),
  deleteRun: (id: string) => remove(run(id)),
  setTags: (id: string, tags: string[]) => put<RunTags>(`${run(id)}/tags`, { tags }),
  spec: (id: string, signal?: AbortSignal) => get<RunSpec>(`${run(id)}/spec`, {}, signal),
  figures: (id: string, query: QueryOf<'show_figures'>, signal?: AbortSignal) => get<RunFigures>(`${run(id)}/figures`, { ...query }, signal),
  series: (id: string, query: SeriesQuery, signal?: AbortSignal) =>
    get<Series>(`${run(id)}/series`, { ...query, metrics: query.metrics?.join(','), ids: query.ids?.join(','), spreads: query.spreads === false ? 'false' : null }, signal),
  timeline: (id: string, signal?: AbortSignal) => get<Timeline>(`${run(id)}/timeline`, {}, signal),
  errors: (id: string, query: QueryOf<'list_errors'>, signal?: AbortSignal) => get<Page<RunError>>(`${run(id)}/errors`, { ...query }, signal),
  logs: (id: string, query: QueryOf<'list_logs'>, signal?: AbortSignal) => get<Page<LogEntry>>(`${run(id)}/logs`, { ...query }, signal),
  times: (id: string, stage: string, signal?: AbortSignal) => get<TaskTimes>(`${run(id)}/stages/${encodeURIComponent(stage)}/times`, {}, signal),
  deadLetters: (id: string, signal?: AbortSignal) => get<DeadLetters>(`${run(id)}/dead-letters`, {}, signal),
  predict: (id: string, request: PredictRequest, signal?: AbortSignal) => post<Predicted>(`${run(id)}/predict`, request, { signal }),
  replay: (id: string, modules: Record<string, string>) => post<ReplayReport>(`${run(id)}/replay`, { modules }),
}

export const benchmarks = {
  list: (query: QueryOf<'list_benchmarks'>, signal?: AbortSignal) => get<Page<BenchmarkSummary>>('/benchmarks', { ...query }, signal),
  compare: (id: string, base: string, signal?: AbortSignal) => get<BenchmarkComparison>(`${benchmark(id)}/comparison`, { base }, signal),
  report: (id: string, signal?: AbortSignal) => get<BenchReport>(benchmark(id), {}, signal),
  delete: (id: string) => remove(benchmark(id)),
  start: (request: StartBenchmark) => post<BenchmarkProgress>('/benchmarks/start', request),
  current: (signal?: AbortSignal) => get<CurrentBenchmark>('/benchmarks/current', {}, signal),
  stop: (id: string) => post<BenchmarkProgress>(`${benchmark(id)}/stop`),
  /** Stores a report on the server, unchanged. */
  keep: (report: Blob) => postText<BenchmarkSummary>('/benchmarks', report),
}
