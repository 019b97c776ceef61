// Layout of pipeline documents as text, and templates of documents. This file does not import the editor's parser, which is large.

import type { PipelineDocument, SampleOffer } from '../api/types'

/** Value of a JSON text. Names and scalars stay as written: a seed may have more digits than a `number`. */
type Written = string | Written[] | Map<string, Written>

const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g

/** Lays a document out with a line for each field and each stage. */
export function laidOut(json: string): string {
  return layOut(valueOf(json.match(TOKENS) ?? [])) ?? json
}

/** Text of the document in the API's answer for a run. */
export function documentIn(answer: string): string {
  const root = valueOf(answer.match(TOKENS) ?? [])
  return (root instanceof Map && layOut(root.get('"document"'))) || ''
}

/** Reads a value from the start of the tokens of valid JSON, and removes these tokens. */
function valueOf(tokens: string[]): Written {
  const token = tokens.shift() ?? 'null'
  if (token !== '{' && token !== '[') return token
  const [list, members]: [Written[], Map<string, Written>] = [[], new Map()]
  while (tokens.length > 0 && tokens[0] !== '}' && tokens[0] !== ']') {
    if (tokens[0] === ',') tokens.shift()
    if (token === '[') list.push(valueOf(tokens))
    else {
      const [name = ''] = tokens.splice(0, 2)
      members.set(name, valueOf(tokens))
    }
  }
  tokens.shift()
  return token === '[' ? list : members
}

function layOut(root: Written | undefined): string | null {
  if (!(root instanceof Map)) return null
  const lines = Array.from(root, ([name, value]) => {
    const list = Array.isArray(value) ? value.map((element) => `    ${onOneLine(element)}`).join(',\n') : ''
    return `  ${name}: ${list ? `[\n${list}\n  ]` : onOneLine(value)}`
  })
  return lines.length === 0 ? '{}\n' : `{\n${lines.join(',\n')}\n}\n`
}

function onOneLine(value: Written): string {
  if (typeof value === 'string') return value
  if (Array.isArray(value)) return `[${value.map(onOneLine).join(', ')}]`
  const parts = Array.from(value, ([name, part]) => `${name}: ${onOneLine(part)}`)
  return parts.length === 0 ? '{}' : `{ ${parts.join(', ')} }`
}

/** Templates for a new document: the sample of the server, then a template that needs no data. */
export function templates(offer: SampleOffer | null): { name: string; about: string; text: string }[] {
  const own = offer ? [{ name: offer.name, about: offer.about, text: laidOut(JSON.stringify(offer.document)) }] : []
  return [...own, { name: 'numbers', about: 'Needs no data and no module: numbers, a stage that waits 25 ms, and a consumer that takes 30 ms per batch.', text: laidOut(JSON.stringify(numbers)) }]
}

const numbers: PipelineDocument = {
  name: 'numbers',
  source: { range: { count: 2000 } },
  stages: [{ sleep: { name: 'load', mean_ms: 25, on: 'async' } }],
  sink: { queue: 3 },
  consumer: { simulate: { step_ms: 30 } },
}
