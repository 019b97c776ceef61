import './app.css'

import { mount } from 'svelte'

import { sessions } from './api/registry'
import App from './app/App.svelte'

const SIGN_IN = '#sign-in='

/** Uses the code of a sign-in link, which then stands in no address any more. Where it fails, the server asks for its token. */
async function useLink(): Promise<void> {
  const { hash, pathname, search } = location
  if (!hash.startsWith(SIGN_IN)) return
  history.replaceState(history.state, '', pathname + search)
  await sessions.useCode(hash.slice(SIGN_IN.length)).catch(() => {})
}

void useLink().then(() => mount(App, { target: document.body }))
