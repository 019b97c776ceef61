import type { Problem } from './types'

const BASE = '/api/v1'
const JSON_TYPE = { 'content-type': 'application/json' }

/** Address of a server that was started without `--listen`. */
export const DEFAULT_SERVER = 'http://127.0.0.1:7700'

/** What a request came to when it did not succeed. `problem.status` is 0 when the server did not answer at all. */
export class ApiError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail || problem.title)
    this.name = 'ApiError'
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>

/** Called when the server wants a token: the page in front of everything asks for it. */
let askForToken: () => void = () => {}

export function onTokenWanted(ask: () => void): void {
  askForToken = ask
}

/** The address of an API resource with the parameters that are set. */
export function address(path: string, query: Query = {}): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== '' && value !== false) search.set(name, String(value))
  }
  const text = search.toString()
  return BASE + path + (text ? `?${text}` : '')
}

/**
 * A key for one submission: it makes a second try of the same one harmless. `crypto.randomUUID` is missing on plain HTTP away
 * from this machine.
 */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('')
}

export async function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return json(await send(address(path, query), { signal: signal ?? null }))
}

interface Sent {
  query?: Query
  headers?: Record<string, string>
  signal?: AbortSignal | undefined
}

export function post<T>(path: string, body?: unknown, more?: Sent): Promise<T> {
  return postText(path, body === undefined ? null : JSON.stringify(body), more)
}

/** Sends JSON as it was written. */
export async function postText<T>(path: string, body: string | Blob | null, { query, headers, signal }: Sent = {}): Promise<T> {
  const type = body === null ? {} : JSON_TYPE
  return json(await send(address(path, query), { method: 'POST', headers: { ...type, ...headers }, body, signal: signal ?? null }))
}

export async function put<T>(path: string, body: unknown): Promise<T> {
  return json(await send(address(path), { method: 'PUT', headers: JSON_TYPE, body: JSON.stringify(body) }))
}

export async function remove<T = void>(path: string): Promise<T> {
  return json(await send(address(path), { method: 'DELETE' }))
}

/** Sends a request and gives its answer, or throws an [`ApiError`] with what the server said. */
export async function send(url: string, init: RequestInit): Promise<Response> {
  let response: Response
  try {
    response = await fetch(url, { credentials: 'same-origin', ...init })
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === 'AbortError') throw cause
    throw new ApiError(problem('No answer', 'The server does not answer.'))
  }
  if (response.ok) return response
  if (response.status === 401) askForToken()
  throw new ApiError(await readProblem(response))
}

export async function readProblem(response: Response): Promise<Problem> {
  const { status, statusText } = response
  const fallback = problem(statusText || 'Request failed', `The server answered ${status} ${statusText}`.trim() + '.', status)
  if (!(response.headers.get('content-type') ?? '').includes('json')) return fallback
  try {
    return { ...fallback, ...((await response.json()) as Partial<Problem>) }
  } catch {
    return fallback
  }
}

/** What can be said of anything that was thrown. */
export function problemOf(thrown: unknown): Problem {
  if (thrown instanceof ApiError) return thrown.problem
  return problem('Something went wrong in this page', thrown instanceof Error ? thrown.message : String(thrown))
}

/** A problem that is told here, not by the server. */
export function problem(title: string, detail: string, status = 0): Problem {
  return { type: 'about:blank', title, status, detail }
}

async function json<T>(response: Response): Promise<T> {
  if (response.status === 204) return undefined as T
  return (await response.json()) as T
}
