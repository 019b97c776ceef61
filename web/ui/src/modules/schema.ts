// The JSON Schema of a module's `params`, as far as a form and a table need it.

import { record } from '../parts/json'

type Schema = Record<string, unknown>

export interface ParamRow {
  name: string
  /** `integer`, `string`, `one of crop, stretch`. */
  kind: string
  /** `1 to 8192`, `at least 0`; empty without bounds. */
  range: string
  required: boolean
  /** As JSON; `null` when there is none. */
  default: string | null
  about: string
}

/** One row per parameter of an object schema. */
export function paramRows(schema: unknown): ParamRow[] {
  const root = record(schema)
  const required = new Set(Array.isArray(root?.required) ? (root.required as unknown[]) : [])
  return Object.entries(record(root?.properties) ?? {}).map(([name, value]) => {
    const property = record(value) ?? {}
    return {
      name,
      kind: kindOf(property),
      range: rangeOf(property),
      required: required.has(name),
      default: 'default' in property ? JSON.stringify(property.default) : null,
      about: typeof property.description === 'string' ? property.description : '',
    }
  })
}

/** What a module takes when nothing is said: every parameter that has a default. */
export function defaultParams(schema: unknown): Record<string, unknown> {
  const properties = record(record(schema)?.properties) ?? {}
  const withDefault = Object.entries(properties).filter(([, value]) => 'default' in (record(value) ?? {}))
  return Object.fromEntries(withDefault.map(([name, value]) => [name, (value as Schema).default]))
}

export function kindOf(schema: Schema): string {
  if (Array.isArray(schema.enum)) return `one of ${schema.enum.map((value) => (typeof value === 'string' ? value : JSON.stringify(value))).join(', ')}`
  if ('const' in schema) return JSON.stringify(schema.const)
  const type = Array.isArray(schema.type) ? schema.type.join(' or ') : typeof schema.type === 'string' ? schema.type : 'any'
  const items = record(schema.items)
  return type === 'array' && items ? `array of ${kindOf(items)}` : type
}

export function rangeOf(schema: Schema): string {
  const least = bound(schema.minimum) ?? bound(schema.minItems) ?? bound(schema.minLength)
  const most = bound(schema.maximum) ?? bound(schema.maxItems) ?? bound(schema.maxLength)
  const above = bound(schema.exclusiveMinimum)
  const below = bound(schema.exclusiveMaximum)
  const parts = [
    least !== null && most !== null ? `${least} to ${most}` : least !== null ? `at least ${least}` : most !== null ? `at most ${most}` : '',
    above !== null ? `above ${above}` : '',
    below !== null ? `below ${below}` : '',
  ]
  return parts.filter(Boolean).join(', ')
}

function bound(value: unknown): number | null {
  return typeof value === 'number' ? value : null
}
