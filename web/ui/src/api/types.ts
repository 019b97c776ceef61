// Types of the HTTP API, generated from its OpenAPI description, and those that the description leaves open. Times are RFC 3339 in UTC, names
// of durations end in their unit, and `null` is "not measured" or "missing", never 0.

import type * as schema from './schema'

export type * from './schema'

export type Problem = Omit<schema.Problem, 'errors'> & Partial<Pick<schema.Problem, 'errors'>>

/** Page of a list. `next` is the cursor of the next page, `null` on the last page. */
export type Page<T> = Omit<schema.PageOfRunSummary, 'items'> & { items: T[] }

export type QueryOf<Name extends keyof schema.operations> = schema.operations[Name] extends { parameters: { query?: infer Query } }
  ? { [Parameter in keyof NonNullable<Query>]?: NonNullable<Query>[Parameter] | null }
  : never

/** Pipeline document. Only the server checks it. */
export type PipelineDocument = Record<string, unknown>

export type SampleOffer = schema.SampleOffer & { document: PipelineDocument }
export type System = schema.System & { samples: SampleOffer }
export type RunSpec = schema.RunSpec & { document: PipelineDocument }

export type TrySample = Partial<schema.TrySample>
export type TryRequest = Partial<Omit<schema.TryRequest, 'samples'>> & { samples?: TrySample[] }
export type PredictRequest = Partial<schema.PredictRequest>
