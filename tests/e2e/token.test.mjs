// A server that requires a token.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'

import { browse, folder, open, serve, shot, sleepy, violations } from './kit.mjs'

const TOKEN = 'a-token-of-some-length-0123456789'
const data = folder()
let server, browser, page

before(async () => {
  server = await serve({ data: join(data.path, 'data'), env: { PENSTOCK_TOKEN: TOKEN } })
  browser = await browse(server.url)
  page = browser.page
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
})

test('a visitor signs in once and stays on the page', async () => {
  await page.goto(`${server.url}/system`)
  await page.getByLabel('Token').fill('not-the-token-at-all-really')
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByText('The token is not valid').waitFor()
  await shot(page, 'sign-in')
  assert.deepEqual(await violations(page), [])
  await page.getByLabel('Token').fill(TOKEN)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('heading', { name: 'System', level: 1 }).waitFor()
  assert.equal(new URL(page.url()).pathname, '/system')
  await page.reload()
  await page.getByRole('heading', { name: 'System', level: 1 }).waitFor()
})

test('a sign-in link works in the tab of the form', async () => {
  const visitor = await browse(server.url)
  const form = visitor.page.getByRole('heading', { name: 'Sign in' })
  try {
    await visitor.page.goto(`${server.url}/modules`)
    await form.waitFor()
    // Pasted into the address of the tab, a link loads no page.
    await visitor.page.goto(`${server.url}/modules#sign-in=no-such-code`)
    await visitor.page.getByText('The sign-in link is not valid').waitFor()
    const { code } = (await server.ask('POST', '/session/code', undefined, { authorization: `Bearer ${TOKEN}` })).body
    await visitor.page.goto(`${server.url}/modules#sign-in=${code}`)
    await visitor.page.getByRole('heading', { name: 'Modules', level: 1 }).waitFor()
    assert.equal(new URL(visitor.page.url()).hash, '')
  } finally {
    await visitor.close()
  }
})

test('the token is in no place that a script can read', async () => {
  const kept = await page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }, location.href]))
  assert.ok(!kept.includes(TOKEN) && !kept.includes('penstock_session'), kept)
})

test('the token was never in an address', async () => {
  for (const path of ['/runs', '/modules', '/runs/new']) await open(page, server, path)
  assert.ok(browser.asked.length > 20, 'requests were recorded')
  assert.deepEqual(browser.asked.filter((line) => line.includes(TOKEN)), [])
  // A token in the address is not accepted either.
  const answers = await Promise.all(['token', 'access_token'].map((name) => fetch(`${server.url}/api/v1/runs?${name}=${TOKEN}`)))
  for (const { status } of answers) assert.ok([400, 401].includes(status), `${status}`)
})

test('the System page lists changes with their authors, and signing out ends the session on the server', async () => {
  const run = await server.ask('POST', '/runs', sleepy(1, 0), { authorization: `Bearer ${TOKEN}` })
  assert.equal(run.status, 201)
  await open(page, server, '/system')
  const changes = page.getByRole('group', { name: 'Changes' })
  await changes.getByText(`runs/${run.body.id}`).waitFor()
  assert.match(await changes.getByRole('row').nth(1).innerText(), /operator.*127\.0\.0\.1.*submit run/s)
  const alive = await server.ask('POST', '/runs', sleepy(100_000, 5), { authorization: `Bearer ${TOKEN}` })
  const clients = page.getByRole('group', { name: 'Clients' })
  await clients.waitFor()
  assert.ok(await clients.evaluate((table) => table.scrollWidth <= table.clientWidth), 'the table of clients is cut')
  await shot(page, 'audit')
  await server.ask('POST', `/runs/${alive.body.id}/stop`, undefined, { authorization: `Bearer ${TOKEN}` })
  assert.deepEqual(await violations(page), [])
  const { value } = (await page.context().cookies()).find(({ name }) => name === 'penstock_session')
  const asks = async () => (await server.ask('GET', '/runs', undefined, { cookie: `penstock_session=${value}` })).status
  assert.equal(await asks(), 200)
  await page.getByRole('button', { name: 'Sign out' }).click()
  await page.getByRole('heading', { name: 'Sign in' }).waitFor()
  // A copy of the cookie must not work either.
  assert.equal(await asks(), 401)
})

test('a link signs a visitor in once, and its code is in no address afterwards', async () => {
  const own = folder()
  const served = await serve({ data: join(own.path, 'data'), env: { XDG_STATE_HOME: own.path }, makesToken: true })
  const visitor = await browse(served.url)
  try {
    await visitor.page.goto(served.link)
    await visitor.page.getByRole('link', { name: 'Runs' }).waitFor()
    await open(visitor.page, served, '/system')
    await visitor.page.getByRole('heading', { name: 'System', level: 1 }).waitFor()
    assert.ok(!visitor.page.url().includes('sign-in'), visitor.page.url())
    const other = await browse(served.url)
    try {
      await other.page.goto(served.link)
      await other.page.getByRole('heading', { name: 'Sign in' }).waitFor()
      assert.equal(new URL(other.page.url()).hash, '')
    } finally {
      await other.close()
    }
  } finally {
    await visitor.close()
    await served.stop()
    own.remove()
  }
})
