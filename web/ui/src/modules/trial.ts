import type { TrySample } from '../api/types'
import { record } from '../parts/json'

/** Fields that a module needs: entries `$param` name the fields by the default of a parameter, and `name?` are optional. */
export function neededFields(wants: string[] | null, defaults: Record<string, unknown>): string[] | null {
  return wants?.filter((name) => !name.endsWith('?')).flatMap((name) => (name.startsWith('$') ? [defaults[name.slice(1)]].flat() : name)).filter((name) => typeof name === 'string') ?? null
}

/** Default field for the content of a sample: the only field that the module reads, or else the usual one. */
export function fieldFor(wants: string[] | null, kind: 'text' | 'file'): string {
  if (wants?.length === 1) return wants[0] as string
  const usual = kind === 'text' ? 'text' : 'bytes'
  return wants === null || wants.includes(usual) ? usual : (wants[0] ?? usual)
}

/** Samples from NDJSON, one for each line: `key`, and all other members as fields. Errors name the line. */
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

/** Parameters of a JSON text, or the fault of the text. An empty text has no parameters. */
export function readParams(text: string): { params: Record<string, unknown> } | { fault: string } {
  if (text.trim() === '') return { params: {} }
  try {
    const params = record(JSON.parse(text))
    return params ? { params } : { fault: 'Expected an object: {"name": value}.' }
  } catch (cause) {
    return { fault: (cause as Error).message }
  }
}

/** Copy of `params` with the value at a path replaced, or removed if it is `undefined`. Missing parents are created. */
export function withParam(params: Record<string, unknown>, [name, ...rest]: string[], value: unknown): Record<string, unknown> {
  if (name === undefined) return params
  const { [name]: old, ...others } = params
  const inside = (part: unknown, path: string[]) => (path.length > 0 ? withParam(record(part) ?? {}, path, value) : value)
  const [at, ...deeper] = rest
  const changed = Array.isArray(old) && at !== undefined ? old.map((part: unknown, each) => (each === Number(at) ? inside(part, deeper) : part)) : inside(old, rest)
  return changed === undefined ? others : { ...params, [name]: changed }
}
