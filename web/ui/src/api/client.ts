import type { Problem } from './types'

const BASE = '/api/v1'
const JSON_TYPE = { 'content-type': 'application/json' }

/** Address of a server that was started without `--listen`. */
export const DEFAULT_SERVER = 'http://127.0.0.1:7700'

/** Type of the problem of a request that the server did not answer. */
export const NO_ANSWER = 'no-answer'

/** Failure of a request. `problem.status` is 0 when there was no answer at all. */
export class ApiError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail || problem.title)
    this.name = 'ApiError'
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>

/** Called when the server requires a token: the sign-in page asks for it. */
let askForToken: () => void = () => {}
/** Called after each request: true if the server answered. */
let hearReach: (answered: boolean) => void = () => {}

export function onTokenWanted(ask: () => void): void {
  askForToken = ask
}

export function onReach(hear: (answered: boolean) => void): void {
  hearReach = hear
}

/** Address of an API resource with the parameters that are set. */
export function address(path: string, query: Query = {}): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== '' && value !== false) search.set(name, String(value))
  }
  const text = search.toString()
  return BASE + path + (text ? `?${text}` : '')
}

/** Key of one submission, which makes it safe to send again. `crypto.randomUUID` is missing on plain HTTP outside localhost. */
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

/** Sends a request and returns its answer, or throws an [`ApiError`] with the problem of the answer. */
export async function send(url: string, init: RequestInit): Promise<Response> {
  let response: Response
  try {
    response = await fetch(url, { credentials: 'same-origin', ...init })
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === 'AbortError') throw cause
    throw unanswered()
  }
  // A proxy answers in place of a server that does not run.
  if ([502, 503, 504].includes(response.status) && !isJson(response)) throw unanswered()
  hearReach(true)
  if (response.ok) return response
  if (response.status === 401) askForToken()
  throw new ApiError(await readProblem(response))
}

function unanswered(): ApiError {
  hearReach(false)
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
export function problem(title: string, detail: string, status = 0): Problem {
  return { type: 'about:blank', title, status, detail }
}

async function json<T>(response: Response): Promise<T> {
  if (response.status === 204) return undefined as T
  return (await response.json()) as T
}
