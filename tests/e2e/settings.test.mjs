// Settings of a run that change while it goes on.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as pause } from 'node:timers/promises'

import { browse, folder, open as visit, overflows, serve, shot, violations } from './kit.mjs'

const CONCURRENCY = '/stages/0/sleep/concurrency'
const data = folder()
let server, browser, page, run

before(async () => {
  server = await serve({ data: data.path, args: ['--threads', '4'] })
  browser = await browse(server.url)
  page = browser.page
  const made = await server.ask('POST', '/runs', {
    name: 'slow',
    threads: 2,
    source: { range: { count: 1_000_000 } },
    stages: [{ sleep: { name: 'decode', mean_ms: 25 } }],
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

const panelOf = (page) => page.getByRole('region', { name: 'Settings', exact: true })
const panel = () => panelOf(page)
const changes = () => panel().getByRole('group', { name: 'Changes of settings' })

/** Value of a setting on the server. */
const valueOf = async (pointer) => (await server.ask('GET', `/runs/${run.id}/settings`)).body.settings.find((setting) => setting.pointer === pointer)?.value

test('a slider raises the concurrency of a live run', async () => {
  await visit(page, server, `/runs/${run.id}`)
  const slider = panel().getByRole('slider', { name: 'concurrency of decode' })
  await slider.fill('4')
  assert.equal(await slider.getAttribute('aria-valuetext'), '4, was 1')
  assert.equal(await valueOf(CONCURRENCY), 1, 'nothing was sent yet')
  await panel().getByText('1 not applied').waitFor()
  await panel().getByRole('button', { name: 'Apply' }).click()
  const row = changes().getByRole('row', { name: /Concurrency of decode/ })
  assert.match(await row.textContent(), /1 → 4.*set/s)
  assert.equal(await slider.getAttribute('aria-valuetext'), '4, unchanged')
  assert.equal(await valueOf(CONCURRENCY), 4)
  await row.getByText('Reason').click()
  await row.getByText(/^set by/).waitFor()
  await shot(page, 'settings')
  assert.deepEqual(await violations(page), [])
})

test('a value beyond the limit is refused, and can be reset', async () => {
  await panel().getByRole('spinbutton', { name: /threads of the run/ }).fill('3')
  await panel().getByRole('button', { name: 'Apply' }).click()
  await panel().getByRole('alert').getByText(/2 threads/).waitFor()
  await panel().getByRole('button', { name: 'Reset' }).click()
  assert.equal(await panel().getByRole('slider', { name: 'threads of the run' }).inputValue(), '2')
})

test('the change is an event on the time axis', async () => {
  await page.locator('.room, .legend').first().waitFor({ state: 'attached' })
  await page.evaluate(() => document.querySelector('.room, .legend')?.scrollIntoView())
  await page.locator('svg text', { hasText: '⚙' }).waitFor()
  await page.getByText(/1 change of a setting/).click()
  await page.getByRole('group', { name: 'Limits and events' }).getByText('Concurrency of decode 1 → 4: set').waitFor()
  await shot(page, 'settings-event')
  assert.deepEqual(await violations(page), [])
})

test('the panel fits a phone in dark mode', async () => {
  const phone = await browse(server.url, { viewport: { width: 390, height: 844 }, colorScheme: 'dark' })
  try {
    await visit(phone.page, server, `/runs/${run.id}`)
    await panelOf(phone.page).getByText(/^Capacities of/).click()
    await panelOf(phone.page).getByRole('slider', { name: 'queue of sink' }).waitFor()
    await panelOf(phone.page).getByText('Concurrency of decode').first().waitFor()
    assert.equal(await overflows(phone.page), false)
    await shot(phone.page, 'settings-phone')
    assert.deepEqual(await violations(phone.page), [])
    assert.deepEqual(phone.complaints, [])
  } finally {
    await phone.close()
  }
})

test('the changes of a run stay visible after its end', async () => {
  await server.ask('POST', `/runs/${run.id}/stop`)
  await page.getByText(/^\W*stopped$/).first().waitFor()
  await panel().getByRole('slider').first().waitFor({ state: 'detached' })
  await changes().getByRole('row', { name: /Concurrency of decode/ }).waitFor()
  const refused = await server.ask('PATCH', `/runs/${run.id}/settings`, { set: { [CONCURRENCY]: 2 } })
  assert.equal(refused.status, 409)
})

test('the page of a tuned run shows what was changed and what it brought', async () => {
  const made = await server.ask('POST', '/runs', {
    name: 'tuned',
    threads: 2,
    tune: 'apply',
    source: { range: { count: 1_000_000 } },
    stages: [{ sleep: { name: 'download', mean_ms: 20, on: 'async' } }, { aggregate: { size: 8 } }],
    consumer: { simulate: { step_ms: 20 } },
  })
  assert.equal(made.status, 201, JSON.stringify(made.body))
  const changesNow = async () => (await server.ask('GET', `/runs/${made.body.id}/settings`)).body.changes
  for (let left = 240; !(await changesNow()).some(({ outcome }) => outcome === 'kept'); left -= 1) {
    assert.ok(left > 0, 'no change was kept')
    await pause(250)
  }
  const [kept] = (await changesNow()).filter(({ outcome }) => outcome === 'kept')
  await visit(page, server, `/runs/${made.body.id}`)
  const row = changes().getByRole('row', { name: /Concurrency of download.*kept/ }).first()
  assert.ok((await row.textContent()).includes(`${kept.from} → ${kept.to}`))
  assert.ok(kept.measured > kept.before)
  await panel().getByText(/batches\/s.*\+\d+\s%\s+by \d+ changes?/s).waitFor()
  await panel().getByRole('button', { name: 'Copy --set flags' }).waitFor()
  await shot(page, 'tuned')
  assert.deepEqual(await violations(page), [])
  await server.ask('POST', `/runs/${made.body.id}/stop`)
})

test('the browser console has no errors', () => {
  assert.deepEqual(browser.complaints.filter((line) => !/status of (400|409|422)/.test(line)), [])
})
