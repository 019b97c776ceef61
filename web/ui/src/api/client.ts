import { ahead, BASE } from './ahead'
import type { Problem } from './types'

const JSON_TYPE = { 'content-type': 'application/json' }

/** Address of a server that was started without `--listen`. */
export const DEFAULT_SERVER = 'http://127.0.0.1:7700'

/** `type` of the problem of a request without an answer. */
export const NO_ANSWER = 'no-answer'

/** Failure of a request. `problem.status` is 0 if the server did not answer. */
export class ApiError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail || problem.title)
    this.name = 'ApiError'
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>

/** Callbacks of requests, set by the modules that need them. */
export const on = {
  /** The server requires a token. */
  tokenWanted: () => {},
  /** A request has ended: with or without an answer of the server. */
  reach: (_answered: boolean) => {},
}

/** Address of an API resource. Parameters that are empty, false or missing are omitted. */
export function address(path: string, query: Query = {}): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== '' && value !== false) search.set(name, String(value))
  }
  const text = search.toString()
  return BASE + path + (text ? `?${text}` : '')
}

/** Idempotency key of a submission. `crypto.randomUUID` is missing on plain HTTP outside localhost. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('')
}

interface Sent {
  query?: Query | undefined
  headers?: Record<string, string>
  signal?: AbortSignal | undefined
}

/** Sends a body of JSON, if there is one, and reads the answer. */
async function ask<T>(method: string | undefined, path: string, body: string | Blob | null, { query, headers, signal }: Sent = {}): Promise<T> {
  const init = body === null ? { headers } : { headers: { ...JSON_TYPE, ...headers }, body }
  const response = await send(address(path, query), { method, signal, ...init })
  return (response.status === 204 ? undefined : await response.json()) as T
}

export const get = <T>(path: string, query?: Query, signal?: AbortSignal) => ask<T>(undefined, path, null, { query, signal })
export const post = <T>(path: string, body?: unknown, more?: Sent) => ask<T>('POST', path, body === undefined ? null : JSON.stringify(body), more)
export const postText = <T>(path: string, body: string | Blob, more?: Sent) => ask<T>('POST', path, body, more)
export const patch = <T>(path: string, body: unknown) => ask<T>('PATCH', path, JSON.stringify(body))
export const put = <T>(path: string, body: unknown) => ask<T>('PUT', path, JSON.stringify(body))
export const remove = (path: string) => ask<void>('DELETE', path, null)

/** Sends a request and returns its answer, or throws an [`ApiError`] with the problem of the answer. */
export async function send(url: string, init: RequestInit): Promise<Response> {
  let response: Response
  try {
    const first = init.method ? undefined : ahead.get(url)
    ahead.delete(url)
    response = await (first ?? fetch(url, { credentials: 'same-origin', ...init }))
    init.signal?.throwIfAborted()
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === 'AbortError') throw cause
    throw unanswered()
  }
  // Answers of a proxy whose server does not run.
  if ([502, 503, 504].includes(response.status) && !isJson(response)) throw unanswered()
  on.reach(true)
  if (response.ok) return response
  if (response.status === 401) on.tokenWanted()
  throw new ApiError(await readProblem(response))
}

function unanswered(): ApiError {
  on.reach(false)
  return new ApiError({ ...problem('No answer', 'The server does not answer.'), type: NO_ANSWER })
}

const isJson = ({ headers }: Response) => (headers.get('content-type') ?? '').includes('json')

export async function readProblem(response: Response): Promise<Problem> {
  const { status, statusText } = response
  const fallback = problem(statusText || 'Request failed', `The server answered ${status} ${statusText}`.trim() + '.', status)
  if (!isJson(response)) return fallback
  try {
    return { ...fallback, ...((await response.json()) as Partial<Problem>) }
  } catch {
    return fallback
  }
}

export function problemOf(thrown: unknown): Problem {
  if (thrown instanceof ApiError) return thrown.problem
  return problem('This page failed', thrown instanceof Error ? thrown.message : String(thrown))
}

/** A problem found by the page, not by the server. */
export const problem = (title: string, detail: string, status = 0): Problem => ({ type: 'about:blank', title, status, detail })
