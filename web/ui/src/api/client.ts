import type { Problem } from './types'

const BASE = '/api/v1'

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

export async function post<T>(path: string, body?: unknown, query?: Query, headers: Record<string, string> = {}, signal?: AbortSignal): Promise<T> {
  const init: RequestInit = { method: 'POST', headers, signal: signal ?? null }
  if (body !== undefined) {
    init.body = JSON.stringify(body)
    init.headers = { 'content-type': 'application/json', ...headers }
  }
  return json(await send(address(path, query), init))
}

export async function put<T>(path: string, body: unknown): Promise<T> {
  return json(await send(address(path), { method: 'PUT', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }))
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
    throw new ApiError({ type: 'about:blank', title: 'No answer', status: 0, detail: 'The server does not answer.' })
  }
  if (response.ok) return response
  if (response.status === 401) askForToken()
  throw new ApiError(await readProblem(response))
}

export async function readProblem(response: Response): Promise<Problem> {
  const fallback: Problem = {
    type: 'about:blank',
    title: response.statusText || 'Request failed',
    status: response.status,
    detail: `The server answered ${response.status} ${response.statusText}`.trim() + '.',
  }
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
  const detail = thrown instanceof Error ? thrown.message : String(thrown)
  return { type: 'about:blank', title: 'Something went wrong in this page', status: 0, detail }
}

async function json<T>(response: Response): Promise<T> {
  if (response.status === 204) return undefined as T
  return (await response.json()) as T
}
