// Charts of a run: lines, percentiles, events, enlarging, touch, saved pictures.
import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'

import { browse, finished, folder, modules, open as visit, overflows, serve, shot, sleepy, violations } from './kit.mjs'

const data = folder()
let server, browser, page, run

const TRAPS = { name: 'traps', threads: 1, source: { records: { store: 'texts', key: 'in.ndjson' } }, stages: [{ sleep: { name: 'nap', mean_ms: 25 } }, { wasm: { module: 'misbehaving', params: { how: 'panic-on-bad' } } }], consumer: { discard: {} }, max_failures: null }

before(async () => {
  // Forty consecutive samples make the module panic, and each panic ends its instance.
  const lines = Array.from({ length: 300 }, (_, place) => JSON.stringify({ key: `${place >= 200 && place < 240 ? 'bad' : 'good'}-${place}` }))
  writeFileSync(join(data.path, 'in.ndjson'), lines.join('\n'))
  server = await serve({ data: join(data.path, 'data'), args: ['--store', `texts=${data.path}`, '--module', join(modules, 'guest_misbehaving.wasm')], env: { PENSTOCK_LOG: 'error' } })
  browser = await browse(server.url)
  page = browser.page
  const stages = [{ sleep: { name: 'load', mean_ms: 8, jitter: 0.5 } }, { sleep: { name: 'decode', mean_ms: 10, jitter: 0.9 } }]
  run = await finished(server, { ...sleepy(500, 5), name: 'two-naps', stages })
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
})

const card = (name, on = page) => on.getByRole('region', { name, exact: true })
const drawn = (name, on = page) => card(name, on).locator('.u-over')
const open = async (query = '', on = page, id = run.id) => {
  await visit(on, server, `/runs/${id}${query}`)
  const show = (selector) => on.waitForFunction((selector) => (document.querySelector(selector)?.scrollIntoView({ block: 'center' }), document.querySelector(selector)), selector)
  await show('.room, .legend')
  await show('.columns .chart, dialog .chart')
  await on.getByText(/buckets of/).waitFor()
}
const tip = (name, on = page) => card(name, on).locator('.tip')
const plain = (text) => text.replaceAll('\u202f', ' ').replace(/\s+/g, ' ').trim()

test('a line is hidden and shown again, and the address holds it', async () => {
  await open()
  const toggle = (name) => page.getByRole('button', { name: `Line of ${name}`, exact: true })
  assert.equal(await toggle('decode').getAttribute('aria-pressed'), 'true')
  await toggle('decode').click()
  await page.waitForURL(/hide=2%3Adecode/)
  await page.getByRole('group', { name: /^Average task time: chart of 1 lines/ }).waitFor()
  await page.reload()
  await page.getByRole('group', { name: /^Queue readiness: chart of 3 lines/ }).waitFor()
  assert.equal(await toggle('decode').getAttribute('aria-pressed'), 'false')
  await shot(page, 'charts-hidden')
  assert.deepEqual(await violations(page), [])
  await page.getByRole('button', { name: 'Show all lines' }).click()
  await page.getByRole('group', { name: /^Average task time: chart of 2 lines/ }).waitFor()
  assert.equal(new URL(page.url()).search, '')
})

test('an enlarged chart is in the address, closes by Escape and gives the focus back', async () => {
  await open()
  const small = (await card('Average task time').boundingBox()).width
  await card('Average task time').getByRole('button', { name: 'Enlarge average task time' }).click()
  await page.waitForURL(/chart=ave_time_s/)
  const dialog = page.getByRole('dialog', { name: 'Average task time' })
  await dialog.getByRole('group', { name: /^Average task time: chart/ }).waitFor()
  const { width, height } = await dialog.locator('.u-over').boundingBox()
  assert.ok(width > 1.5 * small && height > 400, `${width} x ${height}`)
  // The dialog covers the legend of the page.
  assert.deepEqual((await dialog.locator('.legend > span').allTextContents()).map((name) => name.trim()), ['load', 'decode'])
  await shot(page, 'charts-large')
  assert.deepEqual(await violations(page), [])
  await page.reload()
  await dialog.locator('.u-over').waitFor()
  await page.keyboard.press('Escape')
  await page.waitForURL((url) => url.search === '')
  await page.waitForFunction(() => document.activeElement?.getAttribute('aria-label') === 'Enlarge average task time')
})

test('no line ends in the high rate of a moment', async () => {
  // The queue of the source ends long before the run, some milliseconds after the start of a bucket.
  const short = await finished(server, { ...sleepy(60, 40), name: 'part', sink: { queue: 1 } })
  await open('?chart=qps', page, short.id)
  await page.getByRole('dialog').getByRole('button', { name: 'Table' }).click()
  const rows = await page.getByRole('dialog').getByRole('row').allInnerTexts()
  const greatest = rows.slice(1).map((row) => Number(row.split('\t').at(-1).replace(/\s|\/s/g, '')))
  assert.ok(greatest.length === 3 && greatest.every((rate) => rate < 80), rows.join('\n'))
})

test('percentiles stand beside means, and agree with the server', async () => {
  await open('?stage=2%3Adecode')
  await page.getByRole('group', { name: /^Average task time: chart of 4 lines/ }).waitFor()
  // The chart is drawn anew as its rows arrive.
  await drawn('Average task time').hover()
  const text = plain(await tip('Average task time').textContent())
  assert.match(text, /decode p50 [\d.]+ ms decode p99 [\d.]+ ms/)
  const [p50, p99] = ['p50', 'p99'].map((name) => Number(new RegExp(`${name} ([\\d.]+)`).exec(text)[1]))
  assert.ok(p50 <= p99, text)
  await page.mouse.move(0, 0)
  await card('Average task time').getByRole('combobox', { name: 'Statistic of times' }).selectOption('p99')
  await page.waitForURL(/times=p99/)
  await card('Task time, p99').waitFor()
  await card('Get time, p99').waitFor()
  assert.equal((await card('Task time, p99').getByText('Percentiles were not stored').count()), 0)
  // The run takes less than half a minute: a single bucket covers all of it, so its percentiles are those of all tasks.
  const whole = (await server.ask('GET', `/runs/${run.id}/series?points=1&metrics=p50_time_s,p99_time_s&ids=2:decode`)).body
  const exact = run.snapshot.stages[1].task
  for (const { metric, mean } of whole.columns) assert.ok(Math.abs(mean[0] / exact[metric] - 1) < 0.1, `${metric}: ${mean[0]} and ${exact[metric]}`)
  assert.equal(whole.columns.length, 2)
  await open('?times=p99')
  await shot(page, 'charts-p99')
  assert.deepEqual(await violations(page), [])
})

test('the server is asked for no more buckets than the plot has pixels', async () => {
  for (const [width, query] of [[1280, ''], [500, ''], [1280, '?chart=qps']]) {
    await page.setViewportSize({ width, height: 900 })
    browser.asked.length = 0
    await open(query)
    const plot = query ? page.getByRole('dialog').locator('.u-over') : drawn('Items')
    await plot.scrollIntoViewIfNeeded()
    const pixels = (await plot.boundingBox()).width
    await page.getByText(/buckets of/).waitFor()
    const points = browser.asked.filter((line) => /\/series\?.*qps/.test(line)).map((line) => Number(new URL(line.slice(4)).searchParams.get('points')))
    assert.ok(points.length > 0 && points.every((count) => count <= pixels), `${points} buckets on ${pixels} pixels`)
  }
  await page.setViewportSize({ width: 1280, height: 900 })
})

test('a picture has twice the pixels, and its name has run, chart and range', async () => {
  await open('?from=1&to=3')
  await card('Tasks').locator('summary').click()
  const [file] = await Promise.all([page.waitForEvent('download'), card('Tasks').getByRole('button', { name: 'PNG' }).click()])
  assert.match(file.suggestedFilename(), /^two-naps-[0-9a-f]{8}_Tasks_0-01-0-to-0-03-0\.png$/)
  const bytes = readFileSync(await file.path())
  const { width } = await card('Tasks').locator('.u-wrap').boundingBox()
  assert.equal(bytes.readUInt32BE(16), Math.round(2 * width), 'width in the header of the file')
  if (process.env.SHOTS) writeFileSync(join(process.env.SHOTS, 'saved-tasks.png'), bytes)
})

test('events are marks and rows: instances that were replaced, failures that came in a burst', async () => {
  const broken = await finished(server, TRAPS)
  assert.equal(broken.snapshot.stages[1].task.num_failures, 40, JSON.stringify(broken.snapshot.failures))
  const { items } = (await server.ask('GET', `/runs/${broken.id}/timeline`)).body
  const kinds = items.map(({ kind }) => kind)
  assert.ok(kinds.includes('instance_replaced') && kinds.includes('failure_burst'), JSON.stringify(items))
  const burst = items.find(({ kind }) => kind === 'failure_burst')
  assert.ok(burst.count <= 40 && burst.count >= 20 && burst.from_s > 3 && burst.to_s < 8, JSON.stringify(burst))
  await open('', page, broken.id)
  const lane = page.getByRole('group', { name: /^Events: chart/ })
  await lane.focus()
  await page.keyboard.press('ArrowRight')
  assert.match(await lane.locator('.tip').textContent(), /replaced|Failure burst|Limit changed|events/)
  await lane.locator('[aria-live]', { hasText: /\d/ }).waitFor({ state: 'attached' })
  await page.getByText(/failure burst/).first().click()
  const table = page.getByRole('group', { name: 'Limits and events' })
  await table.getByText(/Failure burst: \d+ tasks of misbehaving failed/).waitFor()
  await table.getByText(/module instances? of misbehaving replaced/i).first().waitFor()
  await shot(page, 'charts-events')
  assert.deepEqual(await violations(page), [])
})

test('fingers show values, and two of them zoom', async () => {
  const phone = await browse(server.url, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true })
  try {
    await open('', phone.page)
    await drawn('Tasks', phone.page).scrollIntoViewIfNeeded()
    const box = await drawn('Tasks', phone.page).boundingBox()
    const middle = { x: box.x + box.width / 2, y: box.y + box.height / 2 }
    await phone.page.touchscreen.tap(middle.x, middle.y)
    assert.match(plain(await tip('Tasks', phone.page).textContent()), /^0:\d\d.* decode [\d.]+ ?\/s/)
    const at = () => tip('Tasks', phone.page).locator('strong').textContent()
    const tapped = await at()
    const cdp = await phone.page.context().newCDPSession(phone.page)
    const touch = (type, ...places) => cdp.send('Input.dispatchTouchEvent', { type, touchPoints: places.map(([x, y], id) => ({ x, y, id })) })
    await touch('touchStart', [middle.x, middle.y])
    await touch('touchMove', [middle.x + 60, middle.y])
    await touch('touchEnd')
    assert.notEqual(await at(), tapped, 'the values follow the finger and stay')
    await touch('touchStart', [middle.x - 20, middle.y], [middle.x + 20, middle.y])
    await touch('touchMove', [middle.x - 50, middle.y], [middle.x + 50, middle.y])
    await touch('touchMove', [middle.x - 80, middle.y], [middle.x + 80, middle.y])
    await touch('touchEnd')
    await phone.page.waitForURL(/from=[\d.]+&to=[\d.]+/)
    const { from, to } = Object.fromEntries(new URL(phone.page.url()).searchParams)
    const shown = run.elapsed_s / 4
    assert.ok(Math.abs(to - from - shown) < 0.3 * shown, `${from} to ${to} of ${run.elapsed_s}`)
    await phone.page.touchscreen.tap(middle.x, middle.y)
    await tip('Tasks', phone.page).waitFor()
    await phone.page.getByRole('heading', { level: 3, name: /^Items/ }).tap()
    await tip('Tasks', phone.page).waitFor({ state: 'detached' })
    assert.equal(await overflows(phone.page), false)
    assert.deepEqual(await violations(phone.page), [])
    await shot(phone.page, 'charts-touch')
    assert.deepEqual(phone.complaints, [])
  } finally {
    await phone.close()
  }
})

test('readiness is saved as a picture and opened as a table', async () => {
  await open()
  const readiness = card('Queue readiness over the whole run')
  await readiness.locator('summary').click()
  const [file] = await Promise.all([page.waitForEvent('download'), readiness.getByRole('button', { name: 'PNG' }).click()])
  const bytes = readFileSync(await file.path())
  assert.equal(bytes.subarray(1, 4).toString(), 'PNG')
  if (process.env.SHOTS) writeFileSync(join(process.env.SHOTS, 'saved-readiness.png'), bytes)
  await readiness.getByRole('button', { name: 'Table' }).click()
  await readiness.getByRole('rowheader').first().waitFor()
  assert.deepEqual(await readiness.getByRole('rowheader').allTextContents(), ['src', 'load', 'decode', 'sink'])
})

test('nothing was complained about', () => assert.deepEqual(browser.complaints, []))
