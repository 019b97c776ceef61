// Types of the HTTP API, from its OpenAPI description (`npm run api`). Times are RFC 3339 in UTC, names of durations end in their unit,
// and `null` is "not measured" or "missing", never 0.

import type { components, operations } from './schema'

type Schemas = components['schemas']

/** Type of an answer. The description marks nullable members as optional, but the server always sends them. */
type Written<T> = T extends readonly (infer Item)[] ? Written<Item>[] : T extends object ? { [Name in keyof T]-?: Written<T[Name]> } : T

type Answer<Name extends keyof Schemas> = Written<Schemas[Name]>

export type Problem = Schemas['Problem']
export type Fault = Schemas['DocumentFault']

/** Page of a list. `next` is the cursor of the next page, `null` on the last page. */
export type Page<T> = Omit<Answer<'PageOfRunSummary'>, 'items'> & { items: T[] }

export type QueryOf<Name extends keyof operations> = operations[Name] extends { parameters: { query?: infer Query } }
  ? { [Parameter in keyof NonNullable<Query>]?: NonNullable<Query>[Parameter] | null }
  : never

export type AuditEntry = Answer<'AuditEntry'>
export type Session = Answer<'Session'>

/** Pipeline document. Only the server checks it. */
export type PipelineDocument = Record<string, unknown>

export type SampleOffer = Answer<'SampleOffer'> & { document: PipelineDocument }
export type System = Answer<'System'> & { samples: SampleOffer }

export type RunBook = Answer<'RunBook'>
export type SourceBook = Answer<'SourceBook'>
export type ModuleSummary = Answer<'ModuleSummary'>
export type ModuleDetail = Answer<'ModuleDetail'>
export type ModuleVersion = Answer<'ModuleVersion'>
export type ModuleReport = Answer<'ModuleReport'>
export type ModuleUpload = Answer<'ModuleUpload'>
export type Manifest = Answer<'Manifest'>

export type TrySample = Partial<Schemas['TrySample']>
export type TryRequest = Partial<Omit<Schemas['TryRequest'], 'samples'>> & { samples?: TrySample[] }

export type TrialReport = Answer<'TrialReport'>
export type SampleTrial = Answer<'SampleTrial'>
export type MadeField = Answer<'MadeField'>

export type Store = Answer<'StoreSummary'>
export type StoreKeys = Answer<'StoreKeys'>

export type RunState = Schemas['RunState']
export type RunSummary = Answer<'RunSummary'>
export type RunDetail = Answer<'RunDetail'>
export type RunTags = Answer<'RunTags'>
export type RunSnapshot = Answer<'RunSnapshot'>
export type StageRecord = Answer<'StageRecord'>
export type QueueRecord = Answer<'QueueRecord'>
export type RunFigures = Answer<'RunFigures'>
export type FigureWindow = Answer<'FigureWindow'>
export type StageMovement = Answer<'StageMovement'>
export type FailureClass = Schemas['FailureClass']
export type FailureGroup = Answer<'FailureGroup'>
export type RunSpec = Answer<'RunSpec'> & { document: PipelineDocument }
export type Validation = Answer<'Validation'>
export type RunError = Answer<'RunError'>
export type LogLevel = Schemas['LogLevel']
export type LogEntry = Answer<'LogEntry'>
export type TaskTimes = Answer<'TaskTimes'>
export type DeadLetters = Answer<'DeadLetters'>
export type ReplayReport = Answer<'ReplayReport'>

export type VerdictKind = Schemas['VerdictKind']
export type VerdictAnswer = Schemas['Answer']
export type Verdict = Answer<'Verdict'>
export type VerdictSpan = Answer<'VerdictSpan'>
export type Advice = Answer<'Advice'>

export type PredictRequest = Partial<Schemas['PredictRequest']>
/** Prediction, with a verdict on the predicted run if the server returns one. */
export type Predicted = Answer<'Predicted'> & { verdict?: Verdict | null }
export type Proposal = Answer<'Proposal'>

export type StartBenchmark = Schemas['StartBenchmark']
export type BenchmarkProgress = Answer<'BenchmarkProgress'>
export type CurrentBenchmark = Answer<'CurrentBenchmark'>
export type BenchmarkSummary = Answer<'BenchmarkSummary'>
export type BenchmarkComparison = Answer<'BenchmarkComparison'>
export type BenchReport = Answer<'BenchReport'>
export type LoadReport = Answer<'LoadReport'>
export type LevelCounts = Answer<'LevelCounts'>
export type Spread = Answer<'Spread'>
export type LoadMoment = Answer<'LoadMoment'>
export type ReadFailures = Answer<'ReadFailures'>
export type AcceleratorReport = Answer<'AcceleratorReport'>
export type Counterfactual = Answer<'Counterfactual'>

export type Metric = Schemas['Metric']

/** Buckets of equal width with a common x column. `mean` is exact for the bucket; `min` and `max` are those of its rows of 250 ms. */
export type Series = Answer<'Series'>
export type Timeline = Answer<'Timeline'>
export type TimelineEvent = Answer<'TimelineEvent'>

export type LiveEvent = Answer<'LiveEvent'>
export type LiveSample = Answer<'LiveSample'>
