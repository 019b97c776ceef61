// Chunks of the pages that are fetched when they are first needed.

import { reach } from '../api/reach.svelte'

/** `outdated` is set once the server does not have a file of this page any more: it was updated since the page was loaded. */
export const parts = $state({ outdated: false })

/** Links to style sheets that could not be loaded. */
const failedStyles = new Set<HTMLLinkElement>()

document.addEventListener('error', ({ target }) => target instanceof HTMLLinkElement && failedStyles.add(target), true)

/**
 * Fetches a chunk. While the server does not answer, waits for it. If the server does not have the file, sets `parts.outdated`
 * and never resolves: the page stays as it is until the user reloads it. Some browsers never request a script again that they could
 * not fetch: the whole of a page (`isPage`), which has no state yet, is then reloaded.
 */
export async function lazily<T>(fetch: () => Promise<T>, isPage = false): Promise<T> {
  for (let failures = 0, wasLost = false; ; ) {
    try {
      return await fetch()
    } catch (cause) {
      console.debug(cause)
      if (!(await reach.check())) wasLost = await new Promise<boolean>((back) => reach.onBack(() => back(true)))
      else if (++failures > 1) {
        if (isPage && wasLost) location.reload()
        else parts.outdated = true
        return new Promise(() => {})
      }
      await mendStyles()
    }
  }
}

/** Fetches failed style sheets again: Vite's loader of chunks requests each one only once. */
async function mendStyles(): Promise<void> {
  const failed = [...failedStyles].filter(({ rel, isConnected }) => rel === 'stylesheet' && isConnected)
  failedStyles.clear()
  const again = failed.map((link) => {
    const copy = link.cloneNode() as HTMLLinkElement
    const settled = new Promise<void>((done) => (copy.onload = copy.onerror = () => done()))
    link.replaceWith(copy)
    return settled
  })
  await Promise.all(again)
}
