// Paths with parameters: `/runs/{id}/stages/{stage}`.

/** Values of the parameters if `path` matches `pattern`, else `null`. */
export function match(pattern: string, path: string): Record<string, string> | null {
  const wanted = pieces(pattern)
  const found = pieces(path)
  if (wanted.length !== found.length) return null
  const params: Record<string, string> = {}
  for (const [place, piece] of wanted.entries()) {
    const value = found[place] as string
    if (piece.startsWith('{') && piece.endsWith('}')) {
      const decoded = decode(value)
      if (decoded === null || decoded === '') return null
      params[piece.slice(1, -1)] = decoded
    } else if (piece !== value) {
      return null
    }
  }
  return params
}

/** First route whose pattern matches. Patterns with fewer parameters come first; otherwise, routes keep the given order. */
export function find<T extends { path: string }>(routes: readonly T[], path: string): { route: T; params: Record<string, string> } | null {
  const exactFirst = [...routes].sort((a, b) => places(a.path) - places(b.path))
  for (const route of exactFirst) {
    const params = match(route.path, path)
    if (params) return { route, params }
  }
  return null
}

/** Copy of `query` with `changes` applied; `null` and `''` remove a parameter. */
export function changed(query: URLSearchParams, changes: Record<string, string | number | null | undefined>): URLSearchParams {
  const next = new URLSearchParams(query)
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === '') next.delete(name)
    else next.set(name, String(value))
  }
  return next
}

const pieces = (path: string): string[] => path.replace(/\/+$/, '').split('/')
const places = (path: string): number => path.split('{').length - 1

function decode(piece: string): string | null {
  try {
    return decodeURIComponent(piece)
  } catch {
    return null
  }
}
