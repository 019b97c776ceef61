/** The same request for a shell, `body` as JSON. The token, if the server wants one, is left for the reader to fill in. */
export function curl(method: string, path: string, body?: string): string {
  const parts = ['curl -sS']
  if (method !== 'GET') parts.push(`-X ${method}`)
  if (body !== undefined) parts.push(`-H ${quoted('content-type: application/json')}`, `-d ${quoted(body)}`)
  parts.push(quoted(new URL(path, location.origin).href))
  return parts.join(' ')
}

/** A word for a POSIX shell, whatever is in it. */
export function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`
}
