// Every resource of the API that a page uses, by its name.

import { get, post, remove } from './client'
import type {
  DeadLetters,
  LogEntry,
  Metric,
  ModuleSummary,
  Page,
  PipelineDocument,
  Predicted,
  PredictRequest,
  ReplayReport,
  RunDetail,
  RunError,
  RunSpec,
  RunSummary,
  Series,
  System,
  TaskTimes,
} from './types'

export interface ListQuery {
  cursor?: string | null
  limit?: number
}

export interface RunsQuery extends ListQuery {
  state?: string
  name?: string
  module?: string
  q?: string
  sort?: string
}

export interface SeriesQuery {
  from_s?: number
  to_s?: number
  points?: number
  metrics?: Metric[]
}

const run = (id: string) => `/runs/${encodeURIComponent(id)}`

export const api = {
  system: (signal?: AbortSignal) => get<System>('/system', {}, signal),
  modules: (query: ListQuery & { q?: string } = {}, signal?: AbortSignal) =>
    get<Page<ModuleSummary>>('/modules', { ...query }, signal),

  runs: (query: RunsQuery = {}, signal?: AbortSignal) => get<Page<RunSummary>>('/runs', { ...query }, signal),
  run: (id: string, signal?: AbortSignal) => get<RunDetail>(run(id), {}, signal),
  /** `key` makes a second try of the same submission harmless: see `newKey`. */
  submit: (document: PipelineDocument, key: string) =>
    post<RunDetail>('/runs', document, {}, { 'idempotency-key': key }),
  stop: (id: string) => post<RunDetail>(`${run(id)}/stop`),
  clone: (id: string) => post<RunDetail>(`${run(id)}/clone`),
  deleteRun: (id: string) => remove(run(id)),
  spec: (id: string, signal?: AbortSignal) => get<RunSpec>(`${run(id)}/spec`, {}, signal),
  series: (id: string, query: SeriesQuery, signal?: AbortSignal) =>
    get<Series>(`${run(id)}/series`, { ...query, metrics: query.metrics?.join(',') }, signal),
  errors: (id: string, query: ListQuery & { stage?: string; class?: string; q?: string }, signal?: AbortSignal) =>
    get<Page<RunError>>(`${run(id)}/errors`, { ...query }, signal),
  logs: (id: string, query: ListQuery & { stage?: string; level?: string; q?: string }, signal?: AbortSignal) =>
    get<Page<LogEntry>>(`${run(id)}/logs`, { ...query }, signal),
  times: (id: string, stage: string, signal?: AbortSignal) =>
    get<TaskTimes>(`${run(id)}/stages/${encodeURIComponent(stage)}/times`, {}, signal),
  deadLetters: (id: string, signal?: AbortSignal) => get<DeadLetters>(`${run(id)}/dead-letters`, {}, signal),
  /** What the run would do with other settings. */
  predict: (id: string, request: PredictRequest, signal?: AbortSignal) => post<Predicted>(`${run(id)}/predict`, request, {}, {}, signal),
  replay: (id: string, modules: Record<string, string>) => post<ReplayReport>(`${run(id)}/replay`, { modules }),
}
