import '../app.css'

import { mount } from 'svelte'

import { sessions } from '../api/registry'
import App from './App.svelte'
import { SIGN_IN } from './routes'

/** Signs in with the code of a sign-in link, and removes the code from the address. If this fails, the sign-in page opens. */
async function useLink(): Promise<void> {
  const { hash, pathname, search } = location
  if (!hash.startsWith(SIGN_IN)) return
  history.replaceState(history.state, '', pathname + search)
  await sessions.useCode(hash.slice(SIGN_IN.length)).catch(() => {})
}

void useLink().then(() => mount(App, { target: document.body }))
