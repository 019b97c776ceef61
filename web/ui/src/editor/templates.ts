import type { PipelineDocument, SampleOffer } from '../api/types'
import { compact } from './edits'

/** A document as people write one: a line for every field, and one for every stage. */
export function written(document: PipelineDocument): string {
  const lines = Object.entries(document).map(([name, value]) => {
    const isList = Array.isArray(value) && value.length > 0
    const text = isList ? `[\n${(value as unknown[]).map((element) => `    ${compact(element)}`).join(',\n')}\n  ]` : compact(value)
    return `  ${JSON.stringify(name)}: ${text}`
  })
  return lines.length === 0 ? '{}\n' : `{\n${lines.join(',\n')}\n}\n`
}

export interface Template {
  name: string
  about: string
  text: string
}

/** What a new document can begin as: the sample of this server first, then what runs anywhere. */
export function templates(offer: SampleOffer | null): Template[] {
  const own = offer ? [{ name: offer.name, about: offer.about, text: written(offer.document) }] : []
  return [...own, { name: 'numbers', about: 'Needs no data and no module: numbers, a stage that waits 25 ms, and a consumer that takes 30 ms.', text: written(numbers) }]
}

const numbers: PipelineDocument = {
  name: 'numbers',
  source: { range: { count: 2000 } },
  stages: [{ sleep: { name: 'load', mean_ms: 25, on: 'async' } }],
  sink: { queue: 3 },
  consumer: { simulate: { step_ms: 30 } },
}
