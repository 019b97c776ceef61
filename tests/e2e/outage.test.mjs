// A server that is lost, comes back, or comes back with other pages.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'

import { browse, finished, folder, open as visit, overflows, serve, shot, sleepy, violations } from './kit.mjs'

const data = folder()
let server, browser, page

const start = (port = 0) => serve({ data: join(data.path, 'data'), port })

before(async () => {
  server = await start()
  await finished(server, sleepy(10, 1))
  browser = await browse(server.url)
  page = browser.page
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
})

const open = (path) => visit(page, server, path)
const banner = () => page.getByRole('status', { name: 'Server' })
const tab = (name) => page.getByRole('navigation', { name: 'Sections' }).getByRole('link', { name })
const alerts = () => page.getByRole('alert').count()

async function lose() {
  await server.stop('SIGKILL')
}

async function bringBack() {
  server = await start(server.port)
}

async function sound(name) {
  for (const [size, scheme] of [[{ width: 390, height: 800 }, 'dark'], [{ width: 1280, height: 900 }, 'light']]) {
    await page.setViewportSize(size)
    await page.emulateMedia({ colorScheme: scheme })
    assert.equal(await overflows(page), false, `${name} is wider than ${size.width} px`)
    assert.deepEqual(await violations(page), [], `${name} ${scheme}`)
    await shot(page, `${name}-${scheme}`)
  }
}

test('a page that was not loaded yet opens by itself once the server is back', async () => {
  await open('/runs')
  await lose()
  await tab('New run').click()
  await page.getByText('This page opens as soon as the server answers.').waitFor()
  await banner().getByText('The server does not answer').waitFor()
  assert.match(await banner().textContent(), /since \d/)
  assert.equal(await alerts(), 0, 'the banner is the only notice')
  await sound('outage-page')
  await banner().getByRole('button', { name: 'Retry now' }).click()
  await banner().getByText('The server does not answer').waitFor()
  await bringBack()
  await page.locator('.cm-content').waitFor()
  await banner().getByText('The server does not answer').waitFor({ state: 'detached' })
  // The page's style sheet was loaded, too.
  assert.equal(await page.locator('.editor').evaluate((editor) => getComputedStyle(editor).resize), 'vertical')
})

test('shown data stays and is read again after an outage', async () => {
  await open('/runs')
  await page.getByRole('link', { name: 'sleepy' }).first().waitFor()
  await open('/system')
  await page.getByRole('heading', { name: 'Limits' }).waitFor()
  await lose()
  await banner().getByText('The server does not answer').waitFor()
  await page.getByRole('heading', { name: 'Limits' }).waitFor()
  assert.equal(await alerts(), 0)
  await sound('outage-data')
  // The list of runs, which the reloaded page has not read yet, is read as soon as the server is back.
  await page.setViewportSize({ width: 1280, height: 900 })
  await tab('Runs').click()
  await page.getByRole('heading', { name: 'Runs', level: 1 }).waitFor()
  assert.equal(await alerts(), 0)
  await bringBack()
  await banner().getByRole('button', { name: 'Retry now' }).click({ timeout: 3000 }).catch(() => {})
  await page.getByRole('link', { name: 'sleepy' }).first().waitFor()
  await banner().getByText('The server does not answer').waitFor({ state: 'detached' })
})

test('the editor keeps its text and checks it after an outage', async () => {
  await open('/runs/new')
  await page.getByText('✓ Valid').waitFor()
  await lose()
  await page.locator('.cm-content').click()
  await page.keyboard.press('Control+A')
  await page.keyboard.insertText('{ "source": { "range": { "count": 0 } }, "stages": [{ "nothing": {} }] }')
  await banner().getByText('The server does not answer').waitFor()
  assert.equal(await alerts(), 0)
  await sound('outage-editor')
  await bringBack()
  await page.getByRole('region', { name: 'Problems' }).waitFor()
  assert.match(await page.locator('.cm-content').textContent(), /"nothing"/)
})

test('after an update of the server one note asks for a reload', async () => {
  await page.setViewportSize({ width: 1280, height: 900 })
  await open('/runs')
  const chunks = /\/assets\/.*\.(js|css)$/
  await page.route(chunks, (route) => route.fulfill({ status: 404, contentType: 'application/problem+json', body: '{}' }))
  // No earlier test opened this page, so its code is not cached.
  await tab('Benchmarks').click()
  await banner().getByText('The server was updated. Reload this page to continue.').waitFor()
  assert.equal(await alerts(), 0)
  await sound('outage-update')
  await page.unroute(chunks)
  await banner().getByRole('button', { name: 'Reload' }).click()
  await page.getByRole('heading', { name: 'Benchmarks', level: 1 }).waitFor()
  assert.equal(await banner().textContent(), '')
})

test('no page failed', () => {
  // The browser itself notes each request that failed.
  const ours = browser.complaints.filter((line) => !/Failed to load resource|ERR_CONNECTION|status of [45]\d\d|preload/.test(line))
  assert.deepEqual(ours, [])
})
