// Requests to the API by the name of the resource.

import { address, ApiError, get, patch, post, postText, problem, put, readProblem, remove, send } from './client'
import type {
  AuditEntry, BenchReport, BenchmarkComparison, BenchmarkProgress, BenchmarkSummary, CurrentBenchmark, DeadLetters, LogEntry, Metric, ModuleDetail,
  ModuleSummary, ModuleUpload, Page, PipelineDocument, PredictRequest, Predicted, Profile, QueryOf, ReplayReport, RunDetail, RunError, RunFigures, RunSettings,
  RunSpec, RunSummary, RunTags, Series, Session, StartBenchmark, StoreKeys, StoreSummary, System, TaskTimes, Timeline, TrialReport, TryRequest, Validation,
} from './types'

type SeriesQuery = Omit<QueryOf<'show_series'>, 'metrics' | 'ids'> & { metrics?: Metric[]; ids?: string[] }

const run = (id: string) => `/runs/${encodeURIComponent(id)}`
const benchmark = (id: string) => `/benchmarks/${encodeURIComponent(id)}`
const ofName = (name: string) => `/modules/${encodeURIComponent(name)}`
const ofVersion = (name: string, version: number | string) => `${ofName(name)}/versions/${encodeURIComponent(String(version))}`
const ofAlias = (name: string, alias: string) => `${ofName(name)}/aliases/${encodeURIComponent(alias)}`

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
  settings: (id: string, signal?: AbortSignal) => get<RunSettings>(`${run(id)}/settings`, {}, signal),
  /** Changes settings while the run goes on: all of them or none. */
  setSettings: (id: string, set: Record<string, number>) => patch<RunSettings>(`${run(id)}/settings`, { set }),
  profile: (id: string, signal?: AbortSignal) => get<Profile>(`${run(id)}/profile`, {}, signal),
  /** Measures each stage alone, which takes some seconds for each. */
  measureProfile: (id: string) => post<Profile>(`${run(id)}/profile`),
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

export const registry = {
  /** The module with all its versions, read page by page. */
  module: async (name: string, signal?: AbortSignal): Promise<ModuleDetail> => {
    const page = (cursor: string | null) => get<ModuleDetail>(ofName(name), { cursor, limit: 200 }, signal)
    const all = await page(null)
    while (all.next) {
      const { versions, next } = await page(all.next)
      all.versions.push(...versions)
      all.next = next ?? null
    }
    return all
  },
  contentAddress: (name: string, version: number) => address(`${ofVersion(name, version)}/content`),
  deleteVersion: (name: string, version: number) => remove(ofVersion(name, version)),
  setAlias: (name: string, alias: string, version: number) => put<ModuleDetail>(ofAlias(name, alias), { version }),
  deleteAlias: (name: string, alias: string) => remove(ofAlias(name, alias)),
  tryOut: (name: string, version: number, request: TryRequest) => post<TrialReport>(`${ofVersion(name, version)}/try`, request),

  stores: (signal?: AbortSignal) => get<{ items: StoreSummary[] }>('/stores', {}, signal),
  keys: (store: string, prefix: string, limit: number, signal?: AbortSignal) => get<StoreKeys>(`/stores/${encodeURIComponent(store)}/keys`, { prefix, limit }, signal),
}

/** Pipeline documents. The text is sent as typed: parsing would lose digits of large numbers and merge duplicate keys. */
export const documents = {
  schema: (signal?: AbortSignal) => get<Record<string, unknown>>('/schema/pipeline', {}, signal),
  specText: async (run: string, signal?: AbortSignal): Promise<string> =>
    (await send(address(`/runs/${encodeURIComponent(run)}/spec`), { signal: signal ?? null })).text(),
  validate: (text: string, signal?: AbortSignal) => postText<Validation>('/runs', text, { query: { validate_only: true }, signal }),
  submit: (text: string, key: string, for_s: number | null) => postText<RunDetail>('/runs', text, { query: { for_s }, headers: { 'idempotency-key': key } }),
}

export const sessions = {
  session: () => get<Session>('/session'),
  /** Sends the token in the body; the server answers with a cookie that scripts cannot read. */
  signIn: (token: string) => post<void>('/session', { token }),
  useCode: (code: string) => post<void>('/session', { code }),
  signOut: () => remove('/session'),
}

/** Uploads a module. `progress` receives the share of bytes sent, from 0 to 1; `fetch` does not report this share. */
export function upload(file: File, progress: (share: number) => void, signal: AbortSignal): Promise<ModuleUpload> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest()
    request.open('POST', address('/modules'))
    request.setRequestHeader('content-type', 'application/wasm')
    request.responseType = 'text'
    request.upload.onprogress = (event) => {
      if (event.lengthComputable) progress(event.loaded / event.total)
    }
    request.onload = () => {
      const type = request.getResponseHeader('content-type') ?? ''
      const response = new Response(request.responseText, { status: request.status, statusText: request.statusText, headers: { 'content-type': type } })
      if (response.ok) response.json().then((made) => resolve(made as ModuleUpload), reject)
      else readProblem(response).then((problem) => reject(new ApiError(problem)), reject)
    }
    // A server that refuses a large body early may close the connection before all of it was read.
    request.onerror = () => reject(new ApiError(cutOff))
    request.onabort = () => reject(new DOMException('The upload was cancelled', 'AbortError'))
    signal.addEventListener('abort', () => request.abort(), { once: true })
    request.send(file)
  })
}

const cutOff = problem('The upload was interrupted', 'The connection ended before the server answered: the server has stopped, or the file exceeds the size limit.')
