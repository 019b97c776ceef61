// JSON without loss of digits: integers of the server may exceed those that a `number` holds exactly.

/** Parses JSON. Integers that a `number` cannot hold exactly become `bigint`. Throws for invalid JSON. */
export function exactly(json: string): unknown {
  const marked = json.replace(/"(?:[^"\\]|\\.)*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/g, (token) =>
    /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"\\u0000${token}"` : token,
  )
  return JSON.parse(marked, (_, value: unknown) => (typeof value === 'string' && /^\0-?\d+$/.test(value) ? BigInt(value.slice(1)) : value))
}

/** JSON on one line, with spaces after commas and colons. */
export function compact(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(compact).join(', ')}]`
  if (typeof value === 'object' && value !== null) {
    const parts = Object.entries(value).map(([name, part]) => `${JSON.stringify(name)}: ${compact(part)}`)
    return parts.length === 0 ? '{}' : `{ ${parts.join(', ')} }`
  }
  return typeof value === 'bigint' ? String(value) : JSON.stringify(value)
}

/** The fields of an object; `null` for anything else. */
export function record(value: unknown): Record<string, unknown> | null {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null
}
