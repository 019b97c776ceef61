import { ahead, BASE } from './api/ahead'
import { find } from './app/paths'
import { routes, SIGN_IN } from './app/routes'

// Requested together with the chunk of all pages. `App` requests a chunk that failed again.
const found = find(routes, location.pathname)
found?.route.page().catch(() => {})
if (found && !location.hash.startsWith(SIGN_IN)) {
  for (const path of found.route.reads?.(found.params) ?? []) {
    const answer = fetch(BASE + path, { credentials: 'same-origin' })
    answer.catch(() => {})
    ahead.set(BASE + path, answer)
  }
}
void import('./app/start')
