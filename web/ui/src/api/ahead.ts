// Answers requested by the first script, before the code that needs them has been loaded.

/** Start of all addresses of the API. */
export const BASE = '/api/v1'
const asked = new Map<string, { answer: Promise<Response>; asking: AbortController }>()

export const ahead = {
  ask(paths: string[]): void {
    for (const path of paths) {
      const asking = new AbortController()
      const answer = fetch(BASE + path, { credentials: 'same-origin', signal: asking.signal })
      answer.catch(() => {})
      asked.set(BASE + path, { answer, asking })
    }
  },

  /** Answer to a request for an address, once. */
  take(url: string, signal?: AbortSignal | null): Promise<Response> | undefined {
    const { answer, asking } = asked.get(url) ?? {}
    asked.delete(url)
    signal?.addEventListener('abort', () => asking?.abort())
    return answer
  },
}
