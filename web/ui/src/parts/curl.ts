/** Shell command for a request with a body of JSON. If the server requires a token, the user has to add it. */
export function curl(method: string, path: string, body?: string): string {
  const parts = ['curl -sS']
  if (method !== 'GET') parts.push(`-X ${method}`)
  if (body !== undefined) parts.push(`-H ${quoted('content-type: application/json')}`, `-d ${quoted(body)}`)
  parts.push(quoted(new URL(path, location.origin).href))
  return parts.join(' ')
}

/** Quotes any text as one word of a POSIX shell. */
export const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`
