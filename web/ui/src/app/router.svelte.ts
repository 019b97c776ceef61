import { tick } from 'svelte'

import { changed } from './paths'

/** Address of the page. Pages read it; links and `go` change it. */
class Place {
  /** Set in a file: only the part of its address after `#` can change without a reload, so that part holds the query. */
  isFile = false
  path = $state(window.location.pathname)
  #search = $state(window.location.search)
  query = $derived(new URLSearchParams(this.#search))

  read(): void {
    this.path = window.location.pathname
    this.#search = this.isFile ? window.location.hash.slice(1) : window.location.search
  }
}

export const place = new Place()

export function go(to: string, { replace = false } = {}): void {
  const before = window.location.pathname
  if (replace) window.history.replaceState(null, '', to)
  else window.history.pushState(null, '', to)
  place.read()
  if (!replace && window.location.pathname !== before) void startOfPage()
}

/** Changes query parameters of the address, so that a reload or a shared link shows the same view. */
export function setQuery(changes: Record<string, string | number | null | undefined>, { push = false } = {}): void {
  const query = changed(place.query, changes).toString()
  go(place.isFile ? `#${query}` : window.location.pathname + (query ? `?${query}` : '') + window.location.hash, { replace: !push })
}

export class Filters<Name extends string> {
  #key: string
  /** Parameters by name, `''` for a missing one. The object stays the same until a parameter changes. */
  query: Record<Name, string>
  any: boolean

  constructor(private readonly names: readonly Name[]) {
    this.#key = $derived(JSON.stringify(Object.fromEntries(this.names.map((name) => [name, place.query.get(name) ?? '']))))
    this.query = $derived(JSON.parse(this.#key) as Record<Name, string>)
    this.any = $derived(Object.values(this.query).some(Boolean))
  }

  clear(): void {
    setQuery(Object.fromEntries(this.names.map((name) => [name, null])))
  }
}

/** Listens to links and to the browser's history buttons; returns a function that stops listening. */
export function listen(): () => void {
  const listening = new AbortController()
  const { signal } = listening
  const onClick = (event: MouseEvent) => {
    const to = target(event)
    if (to === null) return
    event.preventDefault()
    go(to)
  }
  window.addEventListener('popstate', () => place.read(), { signal })
  document.addEventListener('click', onClick, { signal })
  return () => listening.abort()
}

/** Address within this site that a click leads to, or `null` if the browser handles the click. */
function target(event: MouseEvent): string | null {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return null
  const link = (event.target as Element | null)?.closest('a')
  if (!link || link.target || link.hasAttribute('download') || link.origin !== window.location.origin) return null
  if (link.pathname.startsWith('/api/v1') || link.pathname.endsWith('.json') || link.pathname === '/metrics') return null
  if (link.pathname === window.location.pathname && link.search === window.location.search && link.hash) return null
  return link.pathname + link.search + link.hash
}

/** Moves scroll position and focus to the start of a new page. */
async function startOfPage(): Promise<void> {
  await tick()
  window.scrollTo(0, 0)
  document.getElementById('content')?.focus({ preventScroll: true })
}
