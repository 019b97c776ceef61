import '../app.css'

import { mount } from 'svelte'

import App from './App.svelte'
import { isLink, useLink } from './link'

const ready = isLink() ? useLink() : Promise.resolve(null)
void ready.then((linkProblem) => mount(App, { target: document.body, props: { linkProblem } }))
