// An OpenAPI 3.1 document, put in order for reading.

import { record } from '../parts/json'

type Json = Record<string, unknown>

/** A piece of a type's notation; `ref` names the type it stands for. */
export interface Piece {
  text: string
  ref?: string
}

export interface Member {
  name: string
  type: Piece[]
  about: string
  required: boolean
}

export interface Body {
  media: string
  type: Piece[]
}

export interface Operation {
  id: string
  method: string
  path: string
  summary: string
  about: string
  /** In the path, in the query or in a header. */
  parameters: (Member & { in: string })[]
  bodies: Body[]
  responses: { status: string; about: string; bodies: Body[] }[]
}

export interface Group {
  tag: string
  operations: Operation[]
}

export interface NamedType {
  name: string
  about: string
  /** Of an object; empty for all else. */
  members: Member[]
  /** Of all else. */
  type: Piece[]
}

const METHODS = ['get', 'post', 'put', 'patch', 'delete']

export function groupsOf(document: Json): Group[] {
  const groups = new Map<string, Operation[]>()
  for (const [path, item] of Object.entries(fieldsOf(document.paths))) {
    const shared = list(fieldsOf(item).parameters)
    for (const method of METHODS) {
      const written = fieldsOf(item)[method]
      if (written === undefined) continue
      const operation = operationOf(document, method, path, fieldsOf(written), shared)
      const tag = text(list(fieldsOf(written).tags)[0]) || 'other'
      groups.set(tag, [...(groups.get(tag) ?? []), operation])
    }
  }
  return [...groups].map(([tag, operations]) => ({ tag, operations }))
}

export function typesOf(document: Json): NamedType[] {
  const schemas = fieldsOf(fieldsOf(document.components).schemas)
  return Object.entries(schemas)
    .map(([name, written]) => {
      const schema = fieldsOf(written)
      const members = membersOf(schema)
      return { name, about: text(schema.description), members, type: members.length > 0 ? [] : typeOf(schema) }
    })
    .sort((a, b) => a.name.localeCompare(b.name))
}

/** A schema in the notation of TypeScript, as near as it gets. */
export function typeOf(written: unknown): Piece[] {
  if (written === true) return [{ text: 'any' }]
  const schema = fieldsOf(written)
  if (typeof schema.$ref === 'string') {
    const name = schema.$ref.split('/').at(-1) ?? ''
    return [{ text: name, ref: name }]
  }
  if ('const' in schema) return [{ text: JSON.stringify(schema.const) }]
  if (Array.isArray(schema.enum)) return [{ text: schema.enum.map((value) => JSON.stringify(value)).join(' | ') }]
  for (const [word, between] of [['oneOf', ' | '], ['anyOf', ' | '], ['allOf', ' & ']] as const) {
    if (Array.isArray(schema[word])) return joined((schema[word] as unknown[]).map(typeOf), between)
  }
  const types = [schema.type].flat().filter((type): type is string => typeof type === 'string')
  if (types.length > 1) return joined(types.map((type) => typeOf({ ...schema, type })), ' | ')
  switch (types[0]) {
    case 'array': {
      const inner = typeOf(schema.items ?? true)
      const isUnion = inner.some(({ text }) => /[|&]/.test(text))
      return isUnion ? [{ text: '(' }, ...inner, { text: ')[]' }] : [...inner, { text: '[]' }]
    }
    case 'object':
    case undefined:
      return objectType(schema)
    case 'string':
      return [{ text: schema.format === 'binary' ? 'bytes' : 'string' }]
    case 'integer':
      return [{ text: 'integer' }]
    default:
      return [{ text: types[0] as string }]
  }
}

/** A shell command that asks this of the server, with `{names}` to fill in. */
export function curlOf(operation: Operation, origin: string): string {
  const parts = ['curl -sS']
  if (operation.method !== 'GET') parts.push(`-X ${operation.method}`)
  const media = operation.bodies[0]?.media
  if (media) parts.push(`-H 'content-type: ${media}'`, media === 'application/json' ? "-d '{}'" : '--data-binary @FILE')
  parts.push(`'${origin}${operation.path}'`)
  return parts.join(' ')
}

/** Whether all words of a search are somewhere in an operation. */
export function matches({ method, path, summary, about, id }: Operation, search: string): boolean {
  const all = `${method} ${path} ${summary} ${about} ${id}`.toLowerCase()
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => all.includes(word))
}

function operationOf(document: Json, method: string, path: string, written: Json, shared: unknown[]): Operation {
  const parameters = [...shared, ...list(written.parameters)].map((each) => fieldsOf(followed(document, each)))
  return {
    id: text(written.operationId) || `${method}-${path}`,
    method: method.toUpperCase(),
    path,
    summary: text(written.summary),
    about: text(written.description),
    parameters: parameters.map((each) => ({
      name: text(each.name),
      in: text(each.in),
      type: typeOf(each.schema),
      about: text(each.description),
      required: each.required === true,
    })),
    bodies: bodiesOf(followed(document, written.requestBody)),
    responses: Object.entries(fieldsOf(written.responses)).map(([status, each]) => {
      const response = fieldsOf(followed(document, each))
      return { status, about: text(response.description), bodies: bodiesOf(response) }
    }),
  }
}

function bodiesOf(written: unknown): Body[] {
  return Object.entries(fieldsOf(fieldsOf(written).content)).map(([media, content]) => ({ media, type: typeOf(fieldsOf(content).schema) }))
}

function membersOf(schema: Json): Member[] {
  const parts = [schema, ...list(schema.allOf).map(fieldsOf)]
  return parts.flatMap((part) => {
    const required = list(part.required)
    return Object.entries(fieldsOf(part.properties)).map(([name, written]) => ({
      name,
      type: typeOf(written),
      about: text(fieldsOf(written).description),
      required: required.includes(name),
    }))
  })
}

function objectType(schema: Json): Piece[] {
  const members = membersOf(schema)
  if (members.length > 0) {
    const parts = members.map(({ name, type, required }) => [{ text: `${name}${required ? '' : '?'}: ` }, ...type])
    return [{ text: '{ ' }, ...joined(parts, ', '), { text: ' }' }]
  }
  const more = schema.additionalProperties
  if (typeof more === 'object' && more !== null) return [{ text: '{ [name]: ' }, ...typeOf(more), { text: ' }' }]
  return [{ text: schema.type === 'object' ? 'object' : 'any' }]
}

function joined(parts: Piece[][], between: string): Piece[] {
  return parts.flatMap((part, place) => (place > 0 ? [{ text: between }, ...part] : part))
}

function followed(document: Json, written: unknown): unknown {
  const reference = fieldsOf(written).$ref
  if (typeof reference !== 'string' || !reference.startsWith('#/')) return written
  return reference
    .slice(2)
    .split('/')
    .reduce<unknown>((at, name) => fieldsOf(at)[name], document)
}

function fieldsOf(value: unknown): Json {
  return record(value) ?? {}
}

function list(value: unknown): unknown[] {
  return Array.isArray(value) ? (value as unknown[]) : []
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : ''
}
