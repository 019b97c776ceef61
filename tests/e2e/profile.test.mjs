// The stages of a run, measured alone.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'

import { browse, folder, open as visit, overflows, serve, shot, violations } from './kit.mjs'

const data = folder()
let server, browser, page, run

before(async () => {
  server = await serve({ data: data.path, args: ['--threads', '4'] })
  browser = await browse(server.url)
  page = browser.page
  const made = await server.ask('POST', '/runs', {
    name: 'alone',
    threads: 1,
    source: { range: { count: 1000 } },
    stages: [{ sleep: { name: 'read', mean_ms: 1, on: 'async' } }, { aggregate: { size: 4 } }, { collate: {} }],
    consumer: { discard: {} },
  })
  assert.equal(made.status, 201, JSON.stringify(made.body))
  run = made.body
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
})

const panelOf = (page) => page.getByRole('region', { name: 'Stages alone', exact: true })
const tableOf = (page) => panelOf(page).getByRole('group', { name: 'Stages alone' })

test('the stages are measured on request', async () => {
  await visit(page, server, `/runs/${run.id}`)
  await panelOf(page).getByRole('button', { name: 'Profile' }).click()
  await panelOf(page).getByRole('button', { name: 'Measure', exact: true }).click()
  await tableOf(page).getByRole('row', { name: /1:read/ }).waitFor({ timeout: 120_000 })
  await tableOf(page).getByRole('row', { name: /3:collate/ }).waitFor()
  const chart = panelOf(page).getByRole('group', { name: /^Rate alone, by ops at a time: chart/ })
  await chart.focus()
  await page.keyboard.press('ArrowRight')
  await chart.getByText(/1:read, 1 at a time: rate/).waitFor({ state: 'attached' })
  await shot(page, 'profile')
  assert.deepEqual(await violations(page), [])
})

test('the measurements are there again after a reload', async () => {
  await visit(page, server, `/runs/${run.id}`)
  await panelOf(page).getByRole('button', { name: 'Profile' }).click()
  await tableOf(page).getByRole('row', { name: /1:read/ }).waitFor()
  await panelOf(page).getByRole('button', { name: 'Measure again' }).waitFor()
})

test('the panel fits a phone in dark mode', async () => {
  const phone = await browse(server.url, { viewport: { width: 390, height: 844 }, colorScheme: 'dark' })
  try {
    await visit(phone.page, server, `/runs/${run.id}`)
    await panelOf(phone.page).getByRole('button', { name: 'Profile' }).click()
    await tableOf(phone.page).getByRole('row', { name: /1:read/ }).waitFor()
    assert.equal(await overflows(phone.page), false)
    assert.deepEqual(await violations(phone.page), [])
    assert.deepEqual(phone.complaints, [])
  } finally {
    await phone.close()
  }
})

test('the browser console has no errors', () => {
  assert.deepEqual(browser.complaints.filter((line) => !/status of 404/.test(line)), [])
})
