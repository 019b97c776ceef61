import { ahead } from './api/ahead'
import { find } from './app/paths'
import { routes, SIGN_IN } from './app/routes'

// The code of the page and its first answers are fetched together with the code of all pages. A page that cannot be loaded
// is requested again by `App`, which shows the failure.
const found = find(routes, location.pathname)
found?.route.page().catch(() => {})
if (found && !location.hash.startsWith(SIGN_IN)) ahead.ask(found.route.reads?.(found.params) ?? [])

void import('./app/start')
