// JSON Schemas of pipeline documents and of module parameters: names, descriptions and form fields for the value at a path.

import { record } from '../parts/json'

export type Schema = Record<string, unknown>

/** Schema for the value at a path, and the path within this schema: `params` of a stage have the schema of their module. */
export type SchemaFor = (segments: readonly string[]) => [Schema, readonly string[]]

export interface Field {
  name: string
  /** `integer`, `array of number`, `one of crop, stretch`. */
  kind: string
  /** `1 to 8192`, `at least 0`; empty without bounds. */
  range: string
  about: string
  required: boolean
  default: unknown
  /** First example of the schema. */
  example: unknown
  /** Values to choose from; `null` if any value of the kind is possible. */
  choices: string[] | null
  /** Form field for the value; `null` for objects and arrays. */
  input: 'text' | 'number' | 'choice' | 'switch' | null
}

const DEEPEST = 40

export function rooted(root: unknown): SchemaFor {
  const schema = record(root) ?? {}
  return (segments) => [schema, segments]
}

/** Schema of a document: that of pipelines; in `params` of a stage, that of the module if `paramsOf` returns it. */
export function documentSchema(pipeline: Schema, document: Schema | null, paramsOf: (module: string) => Schema | null): SchemaFor {
  return (segments) => {
    const [stages, place, kind, params, ...rest] = segments
    if (stages === 'stages' && kind !== undefined && params === 'params' && Array.isArray(document?.stages)) {
      const module = record(record((document.stages as unknown[])[Number(place)])?.[kind])?.module
      const found = typeof module === 'string' ? paramsOf(module) : null
      if (found) return [found, rest]
    }
    return [pipeline, segments]
  }
}

/** All schemas that apply to the value at a path, with `$ref`, `oneOf`, `anyOf` and `allOf` resolved. */
function schemasAt(schemaFor: SchemaFor, place: readonly string[]): { root: Schema; here: Schema[] } {
  const [root, segments] = schemaFor(place)
  let here = open(root, root)
  for (const segment of segments) here = here.flatMap((schema) => inside(root, schema, segment))
  return { root, here }
}

/** Members that the object at a path may have, in the order of the schema. */
export function fieldsAt(schemaFor: SchemaFor, segments: readonly string[]): Field[] {
  const fields = new Map<string, Field>()
  const { root, here } = schemasAt(schemaFor, segments)
  for (const schema of here) {
    const required = Array.isArray(schema.required) ? (schema.required as unknown[]) : []
    for (const [name, value] of Object.entries(record(schema.properties) ?? {})) {
      // The first description is that of the variant, which is more specific than that of the object in it.
      if (!fields.has(name)) fields.set(name, fieldOf(root, name, record(value) ?? {}, required.includes(name), schema))
    }
  }
  return [...fields.values()]
}

export function aboutOf(schemaFor: SchemaFor, segments: readonly string[]): Field | null {
  const name = segments.at(-1)
  if (name === undefined) return null
  return fieldsAt(schemaFor, segments.slice(0, -1)).find((field) => field.name === name) ?? null
}

/** Form for the object or array at a path: `object` for known members, `map` for free names, the field of a list's elements, or the
 *  kinds of a list's elements, if each is an object whose only member is named after its kind. */
export function formAt(schemaFor: SchemaFor, segments: readonly string[]): 'object' | 'map' | Field | Field[] | null {
  const { root, here } = schemasAt(schemaFor, segments)
  const [schema, ...others] = here.filter(({ type }) => type !== 'null')
  if (!schema || others.length > 0) return null
  if ([schema.type].flat().includes('array')) {
    const items = record(schema.items)
    if (items?.maxProperties === 1) return fieldsAt(schemaFor, [...segments, '0'])
    const element = items && fieldOf(root, '', items, true, {})
    return element?.input ? element : null
  }
  if (Object.keys(record(schema.properties) ?? {}).length > 0) return 'object'
  return fieldsAt(schemaFor, [...segments, 'any']).length > 0 ? 'map' : null
}

/** Parameters that have a default, with their defaults. */
export function defaultParams(schema: unknown): Schema {
  const fields = fieldsAt(rooted(schema), []).filter((field) => field.default !== undefined)
  return Object.fromEntries(fields.map((field) => [field.name, field.default]))
}

/** First value for a path: the smallest one, with members as in their examples. An object has those with an example, and the required ones without a default. */
export function startOf(schemaFor: SchemaFor, segments: readonly string[]): unknown {
  const { here } = schemasAt(schemaFor, segments)
  const schema = here.find((each) => each.type !== 'null')
  switch (Array.isArray(schema?.type) ? schema.type[0] : schema?.type) {
    case 'object': {
      const needed = fieldsAt(schemaFor, segments).filter((field) => field.example !== undefined || (field.required && field.default === undefined))
      // The user chooses one of the variants.
      if (here.length > 1) return {}
      return Object.fromEntries(needed.map((field) => [field.name, field.example ?? startOf(schemaFor, [...segments, field.name])]))
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
  const isChoice = all.every((schema) => schema.type === 'null' || 'enum' in schema || 'const' in schema)
  const choices = isChoice ? all.flatMap((schema) => (Array.isArray(schema.enum) ? schema.enum : [schema.const])).filter((each): each is string => typeof each === 'string') : []
  const isOnly = Object.keys(record(around.properties) ?? {}).length === 1
  const said = [value.description, isOnly ? around.description : null, one.description].find((text) => typeof text === 'string')
  return {
    name,
    kind: choices.length > 0 ? `one of ${choices.join(', ')}` : kindOf(one),
    range: rangeOf(one),
    about: typeof said === 'string' ? said : '',
    required,
    default: value.default,
    example: Array.isArray(value.examples) ? value.examples[0] : undefined,
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
  const items = /^[0-9]+$/.test(segment) ? record(schema.items) : null
  const patterns = Object.values(record(schema.patternProperties) ?? {})
  const found = property ?? items ?? (patterns.length > 0 ? record(patterns[0]) : record(schema.additionalProperties))
  return found ? open(root, found) : []
}

function open(root: Schema, schema: Schema, depth = 0): Schema[] {
  if (depth > DEEPEST) return []
  const reference = typeof schema.$ref === 'string' ? schema.$ref : null
  if (reference?.startsWith('#/')) {
    const found = record(reference.slice(2).split('/').reduce<unknown>((at, name) => record(at)?.[name], root))
    return found ? open(root, found, depth + 1) : []
  }
  const variants = [schema.oneOf, schema.anyOf, schema.allOf].flatMap((list) => (Array.isArray(list) ? (list as unknown[]) : []))
  if (variants.length === 0) return [schema]
  return variants.flatMap((variant) => open(root, record(variant) ?? {}, depth + 1))
}

function kindOf(schema: Schema): string {
  if (Array.isArray(schema.enum)) return `one of ${schema.enum.map((value) => JSON.stringify(value)).join(', ')}`
  if ('const' in schema) return JSON.stringify(schema.const)
  const type = [schema.type].flat().filter((each) => typeof each === 'string').join(' or ') || 'any'
  const items = record(schema.items)
  return type === 'array' && items ? `array of ${kindOf(items)}` : type
}

function rangeOf(schema: Schema): string {
  const bound = (...names: string[]) => names.map((name) => schema[name]).find((value) => typeof value === 'number')
  const least = bound('minimum', 'minItems', 'minLength')
  const most = bound('maximum', 'maxItems', 'maxLength')
  const [above, below] = [bound('exclusiveMinimum'), bound('exclusiveMaximum')]
  const both = least !== undefined && most !== undefined
  const parts = [
    both ? `${least} to ${most}` : least !== undefined ? `at least ${least}` : most !== undefined ? `at most ${most}` : '',
    above !== undefined ? `above ${above}` : '',
    below !== undefined ? `below ${below}` : '',
  ]
  return parts.filter(Boolean).join(', ')
}
