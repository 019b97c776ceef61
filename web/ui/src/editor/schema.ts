// The JSON Schema of the pipeline document, asked for one place at a time: names to complete, words to show, fields of a form.

import { kindOf, rangeOf } from '../modules/schema'
import { record } from '../parts/json'

type Schema = Record<string, unknown>

/** One thing that an object may have. */
export interface Field {
  name: string
  kind: string
  range: string
  about: string
  required: boolean
  /** `undefined` when there is none. */
  default: unknown
  /** Values to choose from; `null` when there are too many. */
  choices: string[] | null
  /** What a form can show it as; `null` for objects and arrays. */
  input: 'text' | 'number' | 'choice' | 'switch' | null
}

const DEEPEST = 40

/** Every schema that a value at this place may have to satisfy, `$ref`, `oneOf` and the like followed. */
export function schemasAt(root: Schema, segments: readonly string[]): Schema[] {
  let here = open(root, root)
  for (const segment of segments) here = here.flatMap((schema) => inside(root, schema, segment))
  return here
}

/** The names that an object at this place may have, in the schema's order. */
export function fieldsAt(root: Schema, segments: readonly string[]): Field[] {
  const fields = new Map<string, Field>()
  for (const schema of schemasAt(root, segments)) {
    const required = Array.isArray(schema.required) ? (schema.required as unknown[]) : []
    for (const [name, value] of Object.entries(record(schema.properties) ?? {})) {
      // A variant's own words say more than those of the object inside it.
      if (!fields.has(name)) fields.set(name, fieldOf(root, name, record(value) ?? {}, required.includes(name), schema))
    }
  }
  return [...fields.values()]
}

/** What the schema says about the value at this place. */
export function aboutOf(root: Schema, segments: readonly string[]): Field | null {
  const name = segments.at(-1)
  if (name === undefined) return null
  return fieldsAt(root, segments.slice(0, -1)).find((field) => field.name === name) ?? null
}

/** A value to begin with: what must be there and has no default. */
export function startOf(root: Schema, segments: readonly string[]): unknown {
  const schema = schemasAt(root, segments).find((each) => each.type !== 'null')
  switch (Array.isArray(schema?.type) ? schema.type[0] : schema?.type) {
    case 'object': {
      const needed = fieldsAt(root, segments).filter((field) => field.required && field.default === undefined)
      // Of variants one must be chosen, and nobody has.
      if (schemasAt(root, segments).length > 1) return {}
      return Object.fromEntries(needed.map((field) => [field.name, startOf(root, [...segments, field.name])]))
    }
    case 'array':
      return []
    case 'integer':
    case 'number':
      return typeof schema?.minimum === 'number' ? Math.max(schema.minimum, 1) : 1
    case 'boolean':
      return false
    default:
      return Array.isArray(schema?.enum) ? schema.enum[0] : ''
  }
}

function fieldOf(root: Schema, name: string, value: Schema, required: boolean, around: Schema): Field {
  const all = open(root, value)
  const one = all.find((schema) => schema.type !== 'null') ?? value
  const choices = all.flatMap((schema) =>
    Array.isArray(schema.enum) ? schema.enum.filter((each): each is string => typeof each === 'string') : typeof schema.const === 'string' ? [schema.const] : [],
  )
  const isOnly = Object.keys(record(around.properties) ?? {}).length === 1
  const said = [value.description, isOnly ? around.description : null, one.description].find((text) => typeof text === 'string')
  return {
    name,
    kind: choices.length > 0 ? 'choice' : kindOf(one),
    range: rangeOf(one),
    about: typeof said === 'string' ? said : '',
    required,
    default: value.default,
    choices: choices.length > 0 ? choices : null,
    input: choices.length > 0 ? 'choice' : inputOf(one),
  }
}

function inputOf(schema: Schema): Field['input'] {
  const types = [schema.type].flat()
  if (types.includes('object') || types.includes('array')) return null
  if (types.includes('integer') || types.includes('number')) return 'number'
  if (types.includes('boolean')) return 'switch'
  return types.includes('string') ? 'text' : null
}

function inside(root: Schema, schema: Schema, segment: string): Schema[] {
  const property = record(record(schema.properties)?.[segment])
  if (property) return open(root, property)
  const items = /^[0-9]+$/.test(segment) ? record(schema.items) : null
  if (items) return open(root, items)
  const patterns = Object.values(record(schema.patternProperties) ?? {})
  const more = patterns.length > 0 ? record(patterns[0]) : record(schema.additionalProperties)
  return more ? open(root, more) : []
}

function open(root: Schema, schema: Schema, depth = 0): Schema[] {
  if (depth > DEEPEST) return []
  const reference = typeof schema.$ref === 'string' ? schema.$ref : null
  if (reference?.startsWith('#/')) {
    const target = reference
      .slice(2)
      .split('/')
      .reduce<unknown>((at, name) => record(at)?.[name], root)
    const found = record(target)
    return found ? open(root, found, depth + 1) : []
  }
  const variants = [schema.oneOf, schema.anyOf, schema.allOf].flatMap((list) => (Array.isArray(list) ? (list as unknown[]) : []))
  if (variants.length === 0) return [schema]
  return variants.flatMap((variant) => open(root, record(variant) ?? {}, depth + 1))
}
