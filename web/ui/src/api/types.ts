// The shapes of the HTTP API as the pages use them. Times are RFC 3339 in UTC, durations carry their unit in the name, and
// `null` is "not measured" or "not there", never 0.

export interface Problem {
  type: string
  title: string
  status: number
  detail: string
  errors?: Fault[]
}

export interface Fault {
  /** RFC 6901 pointer into the document that was sent. */
  pointer: string
  detail: string
}

export interface Page<T> {
  items: T[]
  next: string | null
}

export interface Session {
  token_required: boolean
  signed_in: boolean
}

// System

export interface System {
  version: string
  started_at: string
  uptime_s: number
  /** Changes with every start of the server. */
  epoch: string
  budget: {
    threads: number
    memory_mib: number
    threads_used: number
    memory_mib_used: number
    runs_alive: number
    runs_queued: number
  }
  limits: {
    upload_mib: number
    document_kib: number
    module_memory_mib: number
    deadline_ms: number
    runs_queued: number
  }
  storage: { data_dir_bytes: number; modules: number; runs: number; free_bytes: number }
  process: { cpu_s: number; rss_bytes: number; open_files: number }
  /** `null` when its module or its store is missing. */
  samples: SampleOffer | null
}

export interface SampleOffer {
  name: string
  document: PipelineDocument
  about: string
}

/** A pipeline document: the server is its only judge. */
export type PipelineDocument = Record<string, unknown>

// Modules

export interface ModuleSummary {
  name: string
  versions: number
  latest: ModuleVersion
  aliases: Record<string, number>
  runs: number
}

export interface ModuleDetail {
  name: string
  aliases: Record<string, number>
  /** Newest first. */
  versions: ModuleVersion[]
}

export interface ModuleVersion {
  name: string
  version: number
  aliases: string[]
  uploaded_at: string
  runs: number
  /** Ids of runs that use it and are not over. */
  in_use: string[]
  report: ModuleReport
}

export interface ModuleReport {
  digest: string
  size_bytes: number
  kind: 'core' | 'component'
  imports: string[]
  exports: string[]
  functions: number
  code_bytes: number
  manifest: Manifest
}

export interface Manifest {
  name: string
  version: string
  doc: string
  mode: 'sample' | 'batch' | 'stateful'
  /** JSON Schema of the stage's `params`. */
  params: Record<string, unknown> | null
  /** `null`: all fields cross into the module. */
  wants: string[] | null
  makes: string[]
  counters: string[]
  assets?: string[]
}

export interface ModuleUpload extends ModuleVersion {
  created: boolean
  /** Digest of the version before. */
  previous: string | null
}

export interface TryRequest {
  params?: Record<string, unknown>
  deadline_ms?: number
  memory_mib?: number
  seed?: number
  repeat?: number
  samples?: TrySample[]
  from?: { store: string; keys: string[] }
}

export interface TrySample {
  key: string
  text?: string
  base64?: string
  field?: string
  fields?: Record<string, unknown>
}

export interface TrialReport {
  module: string
  version: string
  digest: string
  mode: string
  params: Record<string, unknown>
  limits: { deadline_ms: number; memory_mib: number }
  repeat: number
  start: { cpu_s: number; wall_s: number; memory_bytes: number }
  calls: CallTrial[]
  finish: CallTrial | null
  counters: Record<string, number>
  logs: { level: LogLevel; message: string }[]
  logs_dropped: number
  missing_fields: string[]
  input_fields: string[]
  differences: { key: string; cause: 'state' | 'chance'; what: string; fresh: string; other: string }[] | null
  suggested: { deadline_ms: number; memory_mib: number; longest_cpu_s: number; most_memory_bytes: number }
}

export interface CallTrial {
  samples: SampleTrial[]
  cpu_s: number
  wall_s: number
  memory_bytes: number
}

export interface SampleTrial {
  key: string
  outcome: 'kept' | 'dropped' | 'many' | 'held' | 'failed'
  failure: { class: FailureClass; message: string; held_lost: number } | null
  bytes_in: number
  bytes_out: number
  made: { key: string; fields: MadeField[] }[]
}

export interface MadeField {
  name: string
  type: 'blob' | 'text' | 'int' | 'real' | 'tensor'
  bytes: number
  digest: string
  [more: string]: unknown
}

// Stores

export interface Store {
  name: string
  kind: 'folder' | 's3'
}

export interface StoreKeys {
  items: string[]
  more: boolean
}

// Runs

export type RunState = 'queued' | 'running' | 'draining' | 'completed' | 'failed' | 'stopped' | 'interrupted'

export interface RunSummary {
  id: string
  name: string
  state: RunState
  error: string | null
  submitted_at: string
  started_at: string | null
  ended_at: string | null
  elapsed_s: number | null
  threads: number
  memory_mib: number
  /** Taken by the consumer. */
  samples: number | null
  expected: number | null
  failed_samples: number
  /** Of the sink queue, over the whole run. */
  readiness: number | null
  /** Mean time one get of the sink queue waited. */
  wait_s: number | null
  /** Items per second at the sink. */
  qps: number | null
  /** `name@version` as resolved, in stage order. */
  modules: string[]
}

export interface RunDetail extends RunSummary {
  /** While queued: what it waits for. */
  waiting: string | null
  snapshot: RunSnapshot | null
  cloned_from: string | null
  /** Why what is kept of it over time is not whole. */
  history: string | null
  /** Failed samples that are counted and not kept one by one. */
  errors_left_out: number
  /** Log lines that are not kept any more. */
  logs_left_out: number
}

export interface RunSnapshot {
  id: string
  name: string
  state: RunState
  error: string | null
  started_at: string
  elapsed_s: number
  expected: number | null
  threads: number
  modules: Record<string, string>
  counters: Record<string, Record<string, number>>
  files: { written: number; already_there: number } | null
  stages: StageRecord[]
  queues: QueueRecord[]
  ledger: Ledger
  failures: FailureGroup[]
  failures_not_listed: number
}

export interface StageRecord {
  /** Position and name: `2:download`. */
  id: string
  name: string
  kind: string
  /** As people see it: `[2:download[12]]`. */
  label: string
  concurrency: number
  task: TaskFigures
}

export interface TaskFigures {
  num_tasks: number
  num_failures: number
  failed_samples: number
  elapsed_s: number
  ave_time_s: number | null
  p50_time_s: number | null
  p90_time_s: number | null
  p99_time_s: number | null
  max_time_s: number | null
  ave_thread_wait_s: number | null
  // Slot-seconds. The five add up to concurrency x elapsed.
  busy_s: number
  thread_wait_s: number
  blocked_s: number
  order_wait_s: number
  idle_s: number
  instances: number
}

export interface QueueRecord {
  /** The stage at whose exit it stands and `_queue`: `2:download_queue`. */
  id: string
  label: string
  capacity: number
  num_items: number
  elapsed_s: number
  qps: number | null
  ave_put_time_s: number | null
  ave_get_time_s: number | null
  p90_put_time_s: number | null
  p99_put_time_s: number | null
  p90_get_time_s: number | null
  p99_get_time_s: number | null
  readiness: number | null
  starved: number | null
}

export interface Window {
  t0_s: number
  t1_s: number
  stages: StageRecord[]
  queues: QueueRecord[]
}

export interface Ledger {
  stages: StageBook[]
  queues: { id: string; put: number; taken: number; left: number }[]
  total: {
    made: number
    delivered: number
    dropped: number
    skipped: number
    dead_lettered: number
    discarded: number
    left: number
  }
  balanced: boolean
}

export interface StageBook {
  id: string
  in: number
  made: number
  out: number
  dropped: number
  skipped: number
  dead_lettered: number
  discarded: number
  left: number
}

export type FailureClass = 'data' | 'bug' | 'contract' | 'storage'

export interface FailureGroup {
  stage: string
  class: FailureClass
  message: string
  count: number
  first_keys: string[]
}

export interface RunSpec {
  document: PipelineDocument
  /** Digest of the module that each WASM stage runs, by stage id. */
  modules: Record<string, string>
}

export interface Validation {
  stages: { id: string; label: string; kind: string; concurrency: number; takes: string; gives: string }[]
  queues: { id: string; label: string; capacity: number }[]
  threads: number
  memory_mib: number
  modules: Record<string, string>
  would_wait: string | null
}

export interface RunError {
  number: number
  stage: string
  key: string
  epoch: number
  index: number
  class: FailureClass
  message: string
  disposition: 'skipped' | 'dead_lettered'
  at_s: number
  /** The head of the input. */
  payload: PayloadField[] | null
}

export interface PayloadField {
  name: string
  /** `bytes`, `text`, `tensor uint8 [3, 224, 224]`. */
  kind: string
  size_bytes: number
  /** Of a text the text; of all others the first 64 bytes in hexadecimal. */
  head: string
}

export type LogLevel = 'debug' | 'info' | 'warn' | 'error'

export interface LogEntry {
  number: number
  stage: string
  level: LogLevel
  message: string
  at_s: number
}

export interface TaskTimes {
  buckets: { from_s: number; to_s: number; count: number }[]
  p50_s: number | null
  p90_s: number | null
  p99_s: number | null
  max_s: number | null
}

export interface DeadLetters {
  stages: { stage: string; letters: number; module: string | null }[]
  unreadable: number
}

export interface ReplayReport {
  stages: {
    stage: string
    letters: number
    mended: number
    still_failing: number
    left: number
    failed_in: string[]
    ran_in: string | null
    failures: FailureGroup[]
  }[]
}

// Series

export type StageMetric = 'ave_time_s' | 'tasks_per_s' | 'failures_per_s' | 'busy' | 'thread_wait' | 'blocked'
export type QueueMetric = 'readiness' | 'qps' | 'ave_get_time_s' | 'ave_put_time_s' | 'starved'
export type Metric = StageMetric | QueueMetric

/** Buckets of equal width with one x column for all. `mean` is exact for the bucket; `min` and `max` are over its 250 ms rows. */
export interface Series {
  from_s: number
  to_s: number
  bucket_s: number
  /** End of each bucket. */
  t_s: number[]
  columns: SeriesColumn[]
  last: string
}

export interface SeriesColumn {
  /** `2:decode` or `2:decode_queue`. */
  id: string
  metric: Metric
  mean: (number | null)[]
  min: (number | null)[]
  max: (number | null)[]
}

// Events

export interface LiveSample {
  run: string
  t0_s: number
  t1_s: number
  state: RunState
  /** By stage or queue id. */
  values: Record<string, Partial<Record<Metric, number | null>>>
  samples: number
  failed_samples: number
  expected: number | null
  /** Items in each queue now, by its id. */
  occupancy: Record<string, number>
}

export interface Hello {
  epoch: string
  hz: number
}
