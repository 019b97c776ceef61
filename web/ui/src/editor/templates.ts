import { jsonLanguage } from '@codemirror/lang-json'
import type { SyntaxNode } from '@lezer/common'

import type { PipelineDocument, SampleOffer } from '../api/types'
import { elementsOf, propertiesOf, valueAt } from './pointer'

/**
 * A document as people write one: a line for every field, and one for every stage. Numbers and texts stay as they were
 * written: a seed has more digits than a number of this language.
 */
export function laidOut(json: string): string {
  const root = valueAt(jsonLanguage.parser.parse(json), json, '')
  if (root?.name !== 'Object') return json
  const lines = propertiesOf(root, json).map(({ name, value }) => {
    const elements = value?.name === 'Array' ? elementsOf(value) : []
    const list = elements.map((element) => `    ${onOneLine(element, json)}`).join(',\n')
    return `  ${JSON.stringify(name)}: ${elements.length > 0 ? `[\n${list}\n  ]` : onOneLine(value, json)}`
  })
  return lines.length === 0 ? '{}\n' : `{\n${lines.join(',\n')}\n}\n`
}

/** Document within the answer for a run's document, as written. */
export function documentIn(answer: string): string {
  const document = valueAt(jsonLanguage.parser.parse(answer), answer, '/document')
  return document ? laidOut(answer.slice(document.from, document.to)) : ''
}

function onOneLine(node: SyntaxNode | null, json: string): string {
  if (node?.name === 'Array') return `[${elementsOf(node).map((element) => onOneLine(element, json)).join(', ')}]`
  if (node?.name === 'Object') {
    const parts = propertiesOf(node, json).map(({ name, value }) => `${JSON.stringify(name)}: ${onOneLine(value, json)}`)
    return parts.length === 0 ? '{}' : `{ ${parts.join(', ')} }`
  }
  return node ? json.slice(node.from, node.to) : 'null'
}

export interface Template {
  name: string
  about: string
  text: string
}

/** Templates of a new document: the server's sample first, then one that runs anywhere. */
export function templates(offer: SampleOffer | null): Template[] {
  const own = offer ? [{ name: offer.name, about: offer.about, text: laidOut(JSON.stringify(offer.document)) }] : []
  return [...own, { name: 'numbers', about: 'No data, no module: numbers, a stage that waits 25 ms, and a consumer that takes 30 ms.', text: laidOut(JSON.stringify(numbers)) }]
}

const numbers: PipelineDocument = {
  name: 'numbers',
  source: { range: { count: 2000 } },
  stages: [{ sleep: { name: 'load', mean_ms: 25, on: 'async' } }],
  sink: { queue: 3 },
  consumer: { simulate: { step_ms: 30 } },
}
