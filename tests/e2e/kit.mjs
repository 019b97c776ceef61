// Starts the real server and a real browser for the tests.
import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import AxeBuilder from '@axe-core/playwright'
import { chromium } from 'playwright-core'

const wanted = (name) => process.env[name] ?? assert.fail(`${name} is not set: run \`make e2e\``)
export const modules = wanted('MODULES')

/** Creates a temporary folder, which `remove` deletes. */
export function folder() {
  const path = mkdtempSync(join(tmpdir(), 'penstock-e2e-'))
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) }
}

/** Generates photos in a folder. */
export function photos(path, count = 40) {
  const made = spawnSync(wanted('MAKE_DATA'), ['photos', path, `--count=${count}`, '--seed=1'])
  assert.equal(made.status, 0, String(made.stderr))
}

/** A rule of axe that is not on by default: names of buttons contain their labels. */
const MORE_RULES = { 'label-content-name-mismatch': { enabled: true } }

/** Starts `penstock serve` over a data directory; resolves when it listens. */
export async function serve({ data, port = 0, args = [], env = {}, makesToken = false }) {
  const all = ['serve', `--listen=127.0.0.1:${port}`, '--data-dir', data, ...(env.PENSTOCK_TOKEN || makesToken ? [] : ['--no-token']), ...args]
  const clean = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('PENSTOCK_')))
  const child = spawn(wanted('PENSTOCK'), all, { env: { ...clean, ...env }, stdio: ['ignore', 'pipe', 'inherit'] })
  let said = ''
  const url = await new Promise((resolve, reject) => {
    child.stdout.on('data', (piece) => {
      said += piece
      const found = /http:\/\/[\d.:]+/.exec(said)
      if (found && said.includes('Ctrl-C')) resolve(found[0])
    })
    child.once('exit', (code) => reject(new Error(`the server ended with ${code}: ${said}`)))
  })
  const ended = new Promise((resolve) => child.once('exit', resolve))
  return {
    url,
    /** Sign-in link of a server that creates its own token. */
    link: /http\S+#sign-in=\S+/.exec(said)?.[0],
    port: Number(new URL(url).port),
    async stop(signal = 'SIGINT') {
      child.kill(signal)
      await ended
    },
    /** Pauses or resumes the process. */
    hold: () => child.kill('SIGSTOP'),
    release: () => child.kill('SIGCONT'),
    async ask(method, path, body, headers = {}) {
      const json = body !== undefined && !(body instanceof Uint8Array)
      const kind = json ? 'application/json' : 'application/wasm'
      const answer = await fetch(`${url}/api/v1${path}`, {
        method,
        headers: { ...(body === undefined ? {} : { 'content-type': kind }), ...headers },
        body: json ? JSON.stringify(body) : body,
      })
      const text = await answer.text()
      return { status: answer.status, body: text === '' ? null : JSON.parse(text) }
    },
  }
}

/** Opens a browser with a new profile, which records errors and requests of pages. */
export async function browse(url, options = {}) {
  const profile = folder()
  const context = await chromium.launchPersistentContext(profile.path, {
    executablePath: wanted('CHROMIUM'),
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-background-networking'],
    viewport: { width: 1280, height: 900 },
    ...options,
  })
  context.setDefaultTimeout(60_000)
  const [complaints, asked] = [[], []]
  const watch = (page) => {
    page.on('console', (line) => {
      if (['error', 'warning'].includes(line.type())) complaints.push(`console of ${page.url()}: ${line.text()} (${line.location().url})`)
    })
    page.on('pageerror', (error) => complaints.push(`error in ${page.url()}: ${error.message}`))
    page.on('request', (request) => {
      asked.push(`${request.method()} ${request.url()}`)
      const to = new URL(request.url())
      if (['data:', 'blob:'].includes(to.protocol)) return
      if (to.origin !== new URL(url).origin) complaints.push(`off host: ${request.url()}`)
    })
  }
  context.pages().forEach(watch)
  context.on('page', watch)
  const page = context.pages()[0] ?? (await context.newPage())
  return {
    page,
    complaints,
    /** All requests so far, as `GET http://…`. */
    asked,
    async close() {
      await context.close()
      profile.remove()
    },
  }
}

/** Texts and tooltips of a page with backticks, the markup of messages, outside of code. */
const markedUp = (page) =>
  page.evaluate(() => {
    const isShown = (node) => !node.parentElement.closest('code, pre, script, .message')
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    const texts = []
    while (walk.nextNode()) if (isShown(walk.currentNode)) texts.push(walk.currentNode.textContent)
    const titles = [...document.querySelectorAll('[title], [aria-label]')].flatMap((element) => ['title', 'aria-label'].map((name) => element.getAttribute(name) ?? ''))
    return [...texts, ...titles].filter((text) => text.includes('`'))
  })

/** Accessibility rules that a page violates, and texts with raw markup, as short texts. */
export async function violations(page) {
  // The default mode opens a second page for each check, for frames of other origins. The pages have no such frames, and that
  // mode takes twice as long.
  const { violations } = await new AxeBuilder({ page }).setLegacyMode().options({ rules: MORE_RULES }).analyze()
  const marked = (await markedUp(page)).map((text) => `raw markup: ${text}`)
  return [...marked, ...violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' | ')}`)]
}

/** True if the page is wider than the window. */
export const overflows = (page) =>
  page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth)

/** Saves a screenshot in the folder `SHOTS`, if it is set. */
export async function shot(page, name) {
  if (!process.env.SHOTS) return
  mkdirSync(process.env.SHOTS, { recursive: true })
  // Scrolled to the top, so that sticky elements are at the top of the screenshot.
  await page.evaluate(() => window.scrollTo(0, 0))
  await page.screenshot({ path: join(process.env.SHOTS, `${name}.png`), fullPage: true })
}

/** Opens a page of a server; resolves when its heading is visible. */
export async function open(page, server, path) {
  await page.goto(server.url + path)
  await page.getByRole('heading', { level: 1 }).first().waitFor()
}

/** Submits a document and waits for the end of its run; returns the run. */
export async function finished(server, document) {
  const made = await server.ask('POST', '/runs', document)
  assert.equal(made.status, 201, JSON.stringify(made.body))
  for (;;) {
    const run = (await server.ask('GET', `/runs/${made.body.id}`)).body
    if (!['queued', 'running', 'draining'].includes(run.state)) return run
    await new Promise((wait) => setTimeout(wait, 100))
  }
}

/** Drops a file on the page, as from a desktop, with these bytes, or with this number of zeros. */
export async function drop(page, name, bytes) {
  const base64 = typeof bytes === 'number' ? null : Buffer.from(bytes).toString('base64')
  const transfer = await page.evaluateHandle(
    ([name, base64, size]) => {
      const transfer = new DataTransfer()
      const bytes = base64 === null ? new Uint8Array(size) : Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))
      transfer.items.add(new File([bytes], name, { type: 'application/wasm' }))
      return transfer
    },
    [name, base64, bytes],
  )
  for (const event of ['dragenter', 'dragover', 'drop']) await page.dispatchEvent('body', event, { dataTransfer: transfer })
}

export const sleepy = (count, ms, more = {}) => ({
  name: 'sleepy',
  threads: 1,
  source: { range: { count } },
  stages: [{ sleep: { name: 'nap', mean_ms: ms } }],
  consumer: { discard: {} },
  ...more,
})

export function write(path, text) {
  writeFileSync(path, text)
  return path
}
