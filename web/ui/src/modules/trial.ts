import type { MadeField, TrySample } from '../api/types'
import { count } from '../parts/format'
import { record } from '../parts/json'

/** Field that a sample's content goes into: the one the module wants, if it wants just one. */
export function fieldFor(wants: string[] | null, kind: 'text' | 'file'): string {
  if (wants?.length === 1) return wants[0] as string
  const usual = kind === 'text' ? 'text' : 'bytes'
  return wants === null || wants.includes(usual) ? usual : (wants[0] ?? usual)
}

/** One sample for every line of NDJSON; `key` names it, all else are its fields. Throws what is wrong, with the line. */
export function recordSamples(text: string): TrySample[] {
  const samples: TrySample[] = []
  for (const [at, line] of text.split('\n').entries()) {
    if (line.trim() === '') continue
    let read: unknown
    try {
      read = JSON.parse(line)
    } catch (cause) {
      throw new Error(`line ${at + 1}: ${(cause as Error).message}`)
    }
    const object = record(read)
    if (!object) throw new Error(`line ${at + 1}: not an object`)
    const { key, ...fields } = object
    samples.push({ key: typeof key === 'string' ? key : `line ${at + 1}`, fields })
  }
  return samples
}

/** The parameters typed, or what is wrong with them. Empty text means none. */
export function readParams(text: string): { params: Record<string, unknown> } | { fault: string } {
  if (text.trim() === '') return { params: {} }
  try {
    const params = record(JSON.parse(text))
    return params ? { params } : { fault: 'An object is wanted: {"name": value}.' }
  } catch (cause) {
    return { fault: (cause as Error).message }
  }
}

/** What a field is and how it begins, in words. */
export function describe(field: MadeField): string {
  switch (field.type) {
    case 'text':
      return `text, ${count(field.characters)} characters`
    case 'tensor':
      return `tensor ${field.dtype} [${field.shape.join(', ')}]`
    case 'blob':
      return 'bytes'
    default:
      return field.type
  }
}
