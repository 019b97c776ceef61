// Sign-in links: an address of a page with a code behind `#`.

import { problemOf } from '../api/client'
import { sessions } from '../api/endpoints'
import type { Problem } from '../api/types'
import { SIGN_IN } from './routes'

export const isLink = () => location.hash.startsWith(SIGN_IN)

/** Signs in with the code in the address, and removes the code from it. Returns the reason if that fails. */
export async function useLink(): Promise<Problem | null> {
  const { hash, pathname, search } = location
  history.replaceState(history.state, '', pathname + search)
  return sessions.useCode(hash.slice(SIGN_IN.length)).then(() => null, problemOf)
}
