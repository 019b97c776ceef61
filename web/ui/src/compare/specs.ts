// Values in the documents of several runs, side by side.

import type { RunSpec } from '../api/types'
import { compact, record } from '../parts/json'
import { stageOf } from '../run/pipeline'

export interface SpecRow {
  /** Keys that lead to the value, e.g. `stages › preprocess › concurrency`. */
  label: string
  /** Value in each run as JSON; `null` if the document omits the value. */
  values: (string | null)[]
  differs: boolean
}

/** One row for each value of any document. Stages are matched by name, so that an inserted stage does not change the rows of other stages. */
export function specRows(specs: readonly RunSpec[]): SpecRow[] {
  const columns = specs.map((spec) => new Map(valuesOf(spec).map(({ path, value }) => [path.join('\0'), { path, value }])))
  return inOrder(columns.map((column) => [...column.keys()])).map((key) => {
    const values = columns.map((column) => column.get(key)?.value ?? null)
    const { path } = columns.find((column) => column.has(key))?.get(key) as { path: string[] }
    return { label: path.join(' › '), values, differs: values.some((value) => value !== values[0]) }
  })
}

/** Names of stages; repeated names get numbers: `fetch`, `aggregate`, `aggregate 2`. */
export function stageNames(stages: readonly unknown[]): string[] {
  return numbered(
    stages.map((stage) => {
      const [kind, body] = Object.entries(record(stage) ?? {})[0] ?? ['?', null]
      const { name, module } = record(body) ?? {}
      return typeof name === 'string' ? name : typeof module === 'string' ? module.replace(/@.*$/, '') : kind
    }),
  )
}

/** Names in ids such as `4:decode` or `4:decode_queue`, numbered like names of stages. */
export function namesOfIds(ids: readonly string[]): string[] {
  return numbered(ids.map((id) => stageOf(id).replace(/^\d+:/, '')))
}

function numbered(names: readonly string[]): string[] {
  const seen = new Map<string, number>()
  return names.map((name) => {
    const count = (seen.get(name) ?? 0) + 1
    seen.set(name, count)
    return count === 1 ? name : `${name} ${count}`
  })
}

/** Names of all lists, in an order that agrees with each list: the source comes first and the sink last. */
export function inOrder(lists: readonly string[][]): string[] {
  const names: string[] = []
  for (const list of lists) {
    let after = -1
    for (const name of list) {
      const there = names.indexOf(name)
      if (there >= 0) after = there
      else names.splice((after += 1), 0, name)
    }
  }
  return names
}

function valuesOf({ document, modules }: RunSpec): { path: string[]; value: string }[] {
  const { stages, ...rest } = document
  const list = Array.isArray(stages) ? (stages as unknown[]) : []
  const names = stageNames(list)
  const digests = Object.entries(modules).sort(([a], [b]) => Number.parseInt(a) - Number.parseInt(b))
  const ran = namesOfIds(digests.map(([id]) => id)).map((name, place) => ({ path: ['module that ran', name], value: JSON.stringify(digests[place]?.[1]) }))
  return [
    ...flat([], rest),
    { path: ['stages', 'order'], value: JSON.stringify(names.join(' → ')) },
    ...list.flatMap((stage, place) => flat(['stages', names[place] as string], stage)),
    ...ran,
  ]
}

function flat(path: string[], value: unknown): { path: string[]; value: string }[] {
  const object = record(value)
  if (!object || (Object.keys(object).length === 0 && path.length > 0)) return [{ path, value: compact(value) }]
  return Object.entries(object).flatMap(([name, part]) => flat([...path, name], part))
}
