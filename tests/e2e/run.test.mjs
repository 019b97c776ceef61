// The pages of a run.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'

import { browse, drop, finished, folder, modules, open as visit, serve, shot, sleepy, violations, write } from './kit.mjs'

const THREADS = 4
const LARGEST = 2 << 20
const data = folder()
const store = join(data.path, 'texts')
let server, browser, page

before(async () => {
  mkdirSync(store)
  const config = { stores: { texts: { folder: { root: store } } }, limits: { modules: { module_bytes: LARGEST } }, budget: { threads: THREADS } }
  const file = write(join(data.path, 'penstock.json'), JSON.stringify(config))
  // Log lines of modules are checked in pages, not on standard error.
  server = await serve({ data: join(data.path, 'data'), args: ['--config', file, '--module', join(modules, 'guest_misbehaving.wasm')], env: { PENSTOCK_LOG: 'error' } })
  browser = await browse(server.url)
  page = browser.page
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
})

const open = (path) => visit(page, server, path)

async function submit(document) {
  const made = await server.ask('POST', '/runs', document)
  assert.equal(made.status, 201, JSON.stringify(made.body))
  return made.body
}

const stateOf = async (run) => (await server.ask('GET', `/runs/${run.id}`)).body.state

/** Triggers a download; returns its name and content. */
async function saved(press) {
  const [download] = await Promise.all([page.waitForEvent('download'), press()])
  return { name: download.suggestedFilename(), bytes: readFileSync(await download.path()) }
}

/** Saves the card of a chart in a format, with the keyboard; returns the file. */
async function savedAs(card, kind) {
  await card.locator('summary').focus()
  await page.keyboard.press('Enter')
  const choice = card.getByRole('button', { name: kind, exact: true })
  while (!(await choice.evaluate((button) => button === document.activeElement))) await page.keyboard.press('Tab')
  return saved(() => page.keyboard.press('Enter'))
}

/** Scrolls to the charts: they and their buckets are fetched when their place comes near the screen. */
async function nearCharts() {
  await page.locator('.room, .legend').first().waitFor({ state: 'attached' })
  await page.evaluate(() => document.querySelector('.room, .legend')?.scrollIntoView())
}

test('zooming stops live updates, and a button returns to them', async () => {
  const run = await submit(sleepy(1_000_000, 5))
  await open(`/runs/${run.id}`)
  await nearCharts()
  const chart = page.locator('.chart .u-over').first()
  const status = page.getByRole('status').filter({ hasText: /buckets of/ })
  await status.filter({ hasText: 'updating live' }).waitFor()
  // Waits until the run is long enough to zoom into a part of it.
  await page.waitForFunction(() => Number(/^(\d+)/.exec(document.querySelector('dl.numbers div:nth-child(3) dd').textContent)?.[1]) >= 4)
  await chart.scrollIntoViewIfNeeded()
  const box = await chart.boundingBox()
  await page.mouse.move(box.x + box.width * 0.2, box.y + box.height / 2)
  await page.mouse.down()
  await page.mouse.move(box.x + box.width * 0.6, box.y + box.height / 2, { steps: 4 })
  await page.mouse.up()
  await page.waitForURL(/from=[\d.]+&to=[\d.]+/)
  await page.getByRole('button', { name: 'Back to live' }).waitFor()
  await status.filter({ hasText: 'buckets of 0.25 s' }).waitFor()
  const [address, words] = [page.url(), (await status.textContent()).replace(/·.*/, '')]
  assert.match(words, /^0:\d\d\.\d to 0:\d\d\.\d/)
  const samples = page.locator('dl.numbers dd').first()
  const counted = await samples.textContent()
  await page.waitForTimeout(2000)
  assert.notEqual(await samples.textContent(), counted, 'the run goes on')
  assert.equal(page.url(), address)
  assert.equal((await status.textContent()).replace(/·.*/, ''), words)
  await shot(page, 'run-zoomed')
  // The address of the page contains the selection, so a reload shows it again.
  await page.reload()
  await nearCharts()
  await status.filter({ hasText: words.trim() }).waitFor()
  await page.getByRole('button', { name: 'Back to live' }).click()
  await status.filter({ hasText: 'updating live' }).waitFor()
  assert.equal(new URL(page.url()).search, '')
})

test('all charts share one cursor and the range selected in the heatmap', async () => {
  const charts = page.locator('.chart')
  const over = charts.first().locator('.u-over')
  await over.scrollIntoViewIfNeeded()
  const box = await over.boundingBox()
  await page.mouse.move(box.x + box.width * 0.4, box.y + box.height / 2)
  const cursors = () => charts.locator('.u-cursor-x').evaluateAll((all) => all.map((line) => line.style.transform))
  await page.waitForFunction(() => [...document.querySelectorAll('.chart .u-cursor-x')].every((line) => /translate\([^0]/.test(line.style.transform)))
  const places = await cursors()
  assert.equal(places.length, 6)
  assert.equal(new Set(places.map((place) => /[\d.]+/.exec(place)[0])).size, 1, `${places}`)
  assert.match(await charts.first().locator('.tip').textContent(), /^0:\d\d.*nap [\d.]+\u202fms/)
  await page.locator('.heat canvas').evaluate((canvas) => canvas.scrollIntoView({ block: 'center' }))
  const map = await page.locator('.heat canvas').boundingBox()
  await page.mouse.move(map.x + map.width * 0.25, map.y + 20)
  await page.mouse.down()
  await page.mouse.move(map.x + map.width * 0.75, map.y + 20, { steps: 4 })
  await page.mouse.up()
  await page.waitForURL(/from=[\d.]+&to=[\d.]+/)
  await page.getByRole('button', { name: 'Back to live' }).click()
  await page.getByText('updating live').waitFor()
})

test('the command for a shell gives the figures of the window', async () => {
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
  await page.getByRole('button', { name: 'Copy as curl' }).click()
  const command = await page.evaluate(() => navigator.clipboard.readText())
  assert.match(command, /^curl -sS 'http:\/\/127\.0\.0\.1:\d+\/api\/v1\/runs\/[0-9a-f-]{36}\/figures\?last_s=60'$/)
  const figures = JSON.parse(execFileSync('bash', ['-c', command]))
  assert.ok(figures.stages.some(({ id, task }) => id === '1:nap' && task.ave_time_s > 0.004))
})

test('a page shows the age of its figures when updates stop', async () => {
  server.hold()
  try {
    await page.getByText(/last live update ([3-9]|\d\d+) s ago/).waitFor()
  } finally {
    server.release()
  }
  await page.getByText(/live · \d/).waitFor()
})

test('readiness over the whole run can be read as a table', async () => {
  await page.getByRole('region', { name: 'Queue readiness over the whole run' }).getByRole('button', { name: 'Table' }).click()
  const table = page.getByRole('group', { name: 'Queue readiness over the whole run, as a table' })
  await table.getByRole('rowheader').first().waitFor()
  assert.deepEqual(await table.getByRole('rowheader').allTextContents(), ['src', 'nap', 'sink'])
  // The source is always ready; the queue of a stage of 5 ms before a consumer that takes items at once is nearly always empty.
  const means = (await table.getByRole('row').all()).slice(1).map((row) => row.getByRole('cell').nth(2).textContent())
  const [source, nap] = (await Promise.all(means)).map((text) => Number.parseFloat(text))
  assert.ok(source > 80 && nap < 20, `${source} and ${nap}`)
})

test('keyboard shortcuts work, and select a stage', async () => {
  const at = page.url()
  const stage = page.locator('ol.graph button.step').first()
  await stage.focus()
  await page.keyboard.press('ArrowRight')
  await page.keyboard.press('Enter')
  await page.waitForURL(/stage=1%3Anap/)
  await page.locator('.chart').first().focus()
  await page.keyboard.press('+')
  await page.waitForURL(/from=/)
  await page.keyboard.press('0')
  await page.getByText('updating live').waitFor()
  await page.keyboard.press('?')
  const list = page.getByRole('dialog', { name: 'Keyboard shortcuts' })
  await list.getByText('Go to Runs').waitFor()
  assert.deepEqual(await violations(page), [])
  await page.keyboard.press('Escape')
  await list.waitFor({ state: 'hidden' })
  await page.keyboard.press('g')
  await page.keyboard.press('r')
  await page.getByRole('heading', { name: 'Runs', level: 1 }).waitFor()
  assert.equal(new URL(page.url()).pathname, '/runs')
  await page.keyboard.press('/')
  await page.keyboard.type('gr')
  assert.equal(await page.getByRole('searchbox').inputValue(), 'gr', 'shortcuts do not apply in a text field')
  assert.equal(new URL(page.url()).pathname, '/runs')
  await page.goto(at)
})

test('a run stops only when its dialog is confirmed', async () => {
  const id = new URL(page.url()).pathname.split('/').at(-1)
  const ask = page.getByRole('dialog', { name: /Stop/ })
  for (const leave of [() => page.keyboard.press('Escape'), () => ask.getByRole('button', { name: 'Let it run' }).click()]) {
    await page.getByRole('button', { name: 'Stop', exact: true }).click()
    await ask.waitFor()
    await leave()
    await ask.waitFor({ state: 'hidden' })
    assert.equal(await stateOf({ id }), 'running')
  }
  await page.getByRole('button', { name: 'Stop', exact: true }).click()
  await ask.getByRole('button', { name: 'Stop the run' }).click()
  await page.getByText(/^\W*stopped$/).first().waitFor()
  assert.equal(await stateOf({ id }), 'stopped')
})

test('Clone keeps its place when a run ends, and asks first', async () => {
  const run = await submit(sleepy(1_000_000, 5))
  await open(`/runs/${run.id}`)
  const [clone, stop, remove] = ['Clone', 'Stop', 'Delete'].map((name) => page.getByRole('button', { name, exact: true }))
  const places = () => Promise.all([clone, stop, remove].map((button) => button.boundingBox()))
  const before = await places()
  assert.deepEqual([await stop.isDisabled(), await remove.isDisabled()], [false, true])
  assert.equal(await page.title(), 'running: sleepy · Penstock')
  await server.ask('POST', `/runs/${run.id}/stop`)
  await page.getByText(/^\W*stopped$/).first().waitFor()
  assert.deepEqual([await stop.isDisabled(), await remove.isDisabled()], [true, false])
  assert.deepEqual(await places(), before, 'no button moved')
  assert.equal(await page.title(), 'stopped: sleepy · Penstock')
  const made = async () => (await server.ask('GET', '/runs?name=sleepy&limit=200')).body.items.length
  const known = await made()
  await clone.click()
  const ask = page.getByRole('dialog', { name: /again/ })
  await ask.getByRole('button', { name: 'Cancel' }).click()
  assert.equal(await made(), known, 'a question is no answer')
  await clone.click()
  await ask.getByRole('button', { name: 'Start the clone' }).click()
  await page.waitForURL((url) => url.pathname.startsWith('/runs/') && !url.pathname.endsWith(run.id))
  assert.equal(await made(), known + 1)
  await server.ask('POST', `/runs/${new URL(page.url()).pathname.split('/').at(-1)}/stop`)
})

test('a zoom zooms figures, verdict and ledger, and the other pages of the run keep it', async () => {
  const run = await finished(server, sleepy(300, 8, { stages: [{ sleep: { name: 'nap', mean_ms: 8 } }], consumer: { simulate: { step_ms: 1 } } }))
  await open(`/runs/${run.id}?from=0.5&to=1.5`)
  const figures = (await server.ask('GET', `/runs/${run.id}/figures?from_s=0.5&to_s=1.5`)).body
  const text = (name) => page.locator(`[data-figure="${name}"]`).first().textContent()
  await page.getByText('0:00.5 to 0:01.5').first().waitFor()
  assert.equal(await text('num_tasks:1:nap'), String(figures.stages[0].task.num_tasks))
  assert.equal(await text('delivered:run'), String(figures.ledger.total.delivered))
  assert.equal(await page.locator('.verdict .sentence').textContent(), figures.verdict.sentence.replaceAll('`', ''))
  assert.ok(figures.ledger.total.delivered < 200, 'a part of 300')
  assert.equal(await text('total.delivered:run'), '300')
  await page.getByRole('link', { name: 'Logs' }).click()
  await page.waitForURL(/\/logs\?from=0\.5&to=1\.5$/)
  await page.getByRole('link', { name: 'Figures' }).click()
  await page.waitForURL(/from=0\.5&to=1\.5$/)
  await page.getByRole('link', { name: 'nap', exact: true }).click()
  await page.waitForURL(/stages\/1%3Anap\?from=0\.5&to=1\.5$/)
  await page.locator('[data-figure="num_tasks:1:nap"]').waitFor()
  assert.equal(await text('num_tasks:1:nap'), String(figures.stages[0].task.num_tasks))
  await page.getByRole('link', { name: 'Figures' }).click()
  await page.getByRole('button', { name: 'Whole run' }).first().click()
  await page.getByText('whole run without warm-up').first().waitFor()
  // The window without warm-up has no maxima; those of the whole run are not shown in their place.
  assert.equal(await page.locator('[data-figure="max_time_s:1:nap"]').count(), 0)
  await page.getByRole('button', { name: 'With warm-up' }).click()
  await page.locator('[data-figure="max_time_s:1:nap"]').waitFor()
  assert.equal(await page.locator('dd.window').textContent(), 'whole run')
  assert.deepEqual(await violations(page), [])
})

test('the dialog to stop a run never becomes the dialog to delete it', async () => {
  const run = await submit(sleepy(1_000_000, 5))
  await open(`/runs/${run.id}`)
  await page.getByRole('button', { name: 'Stop', exact: true }).click()
  const stops = page.getByRole('dialog', { name: /Stop/ })
  await stops.waitFor()
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Let it run')
  await server.ask('POST', `/runs/${run.id}/stop`)
  await page.getByText(/^\W*stopped$/).first().waitFor()
  await stops.waitFor({ state: 'hidden' })
  assert.equal(await page.getByRole('dialog').count(), 0)
  await page.getByRole('button', { name: 'Delete', exact: true }).click()
  await page.getByRole('dialog', { name: /Delete/ }).waitFor()
  await page.keyboard.press('Enter')
  await page.getByRole('dialog').waitFor({ state: 'hidden' })
  assert.equal(await stateOf(run), 'stopped', 'the first dialog does not delete the run')
})

test('a line that moves under its own mark is marked only once', async () => {
  const run = await finished(server, sleepy(100, 10))
  // The band from min to max appears when its line is marked, and changes the scale: here so much that the line moves away from
  // the pointer.
  const series = /\/series\?/
  await page.route(series, async (route) => {
    const answer = await route.fetch()
    const table = await answer.json()
    for (const column of table.columns) column.max = column.mean.map((mean) => mean && mean * 10)
    await route.fulfill({ response: answer, json: table })
  })
  await open(`/runs/${run.id}`)
  const over = page.locator('.chart .u-over').first()
  await over.scrollIntoViewIfNeeded()
  const box = await over.boundingBox()
  // Two frames after each move: a page in an update loop would draw none.
  for (let y = 4; y < box.height; y += 8) {
    await page.mouse.move(box.x + box.width * 0.5, box.y + y)
    await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))))
  }
  await page.unroute(series)
})

test('every digit of a seed is shown and saved', async () => {
  const document = JSON.stringify(sleepy(1, 1)).replace('{', '{"seed":18446744073709551615,')
  const made = await server.ask('POST', '/runs', Buffer.from(document), { 'content-type': 'application/json' })
  assert.equal(made.status, 201, JSON.stringify(made.body))
  await open(`/runs/${made.body.id}/spec`)
  await page.getByRole('group', { name: 'Pipeline document' }).getByText('18446744073709551615').waitFor()
  assert.match((await saved(() => page.getByRole('button', { name: 'Download' }).click())).bytes.toString(), /"seed": 18446744073709551615,/)
  await open(`/runs/new?from=${made.body.id}`)
  await page.getByRole('button', { name: /^Pipeline/ }).click()
  assert.equal(await page.getByLabel('seed', { exact: true }).inputValue(), '18446744073709551615')
})

test('an empty document is checked as such, and a new start opens a new page', async () => {
  const run = await finished(server, sleepy(1, 1, { name: 'beginning' }))
  const text = page.locator('.cm-content')
  await open(`/runs/new?from=${run.id}`)
  await page.getByText('✓ Valid').waitFor()
  await text.click()
  await page.keyboard.press('Control+A')
  await page.keyboard.press('Delete')
  await page.getByText('✕ Not JSON').waitFor()
  // An empty text is not kept as a draft: the page starts with the document again.
  await page.reload()
  await text.getByText('"beginning"').waitFor()
  await page.getByRole('link', { name: 'New run' }).click()
  await page.waitForURL(/\/runs\/new$/)
  await text.waitFor()
  await text.getByText('"beginning"').waitFor({ state: 'detached' })
})

test('saved files contain the figures', async () => {
  const run = await finished(server, sleepy(200, 5))
  await open(`/runs/${run.id}`)
  const series = await saved(() => page.getByRole('button', { name: 'Series as CSV' }).click())
  assert.match(series.name, /^sleepy.*series\.csv$/)
  const [head, ...lines] = series.bytes.toString().trim().split('\r\n').map((line) => line.split(','))
  // The figures equal those of the server for the page's request.
  const asked = new URL(browser.asked.findLast((line) => /\/series\?.*points=600$/.test(line)).slice('GET '.length))
  const told = (await server.ask('GET', asked.pathname.replace('/api/v1', '') + asked.search)).body
  for (const { id, metric, mean } of told.columns) {
    const place = head.indexOf(/^p\d/.test(metric) ? `${id} ${metric}` : `${id} ${metric} mean`)
    assert.deepEqual(lines.map((line) => line[place]), mean.map((value) => String(value ?? '')), `${id} ${metric}`)
  }
  assert.ok(told.columns.some(({ metric }) => metric === 'tasks_per_s'))
  assert.equal(Number(lines.at(-1)[head.indexOf('t_s')]), Math.min(run.elapsed_s, told.t_s.at(-1)))

  const whole = JSON.parse((await saved(() => page.getByRole('button', { name: 'Whole run as JSON' }).click())).bytes)
  assert.equal(whole.run.snapshot.ledger.total.delivered, 200)
  assert.equal(whole.run.snapshot.stages[0].task.num_tasks, 200)
  assert.deepEqual(whole.spec.document, sleepy(200, 5))
  assert.ok(whole.series.columns.some(({ id, metric }) => id === '1:nap_queue' && metric === 'readiness'))

  const card = page.getByRole('region', { name: 'Average task time' })
  await page.evaluate(() => document.querySelector('.room, .legend')?.scrollIntoView())
  await card.locator('.u-over').scrollIntoViewIfNeeded()
  await page.getByText(/buckets of/).waitFor()
  const chart = JSON.parse((await savedAs(card, 'JSON')).bytes)
  assert.deepEqual(chart.columns.map(({ id, metric }) => `${id} ${metric}`), ['1:nap ave_time_s', '1:nap p50_time_s', '1:nap p99_time_s'])
  const times = told.columns.find(({ id, metric }) => id === '1:nap' && metric === 'ave_time_s').mean
  assert.deepEqual(chart.columns[0].mean, times)
  assert.ok(times.every((mean) => mean === null || mean > 0.005), JSON.stringify(times))
  const picture = (await savedAs(card, 'PNG')).bytes
  assert.equal(picture.subarray(1, 4).toString(), 'PNG')
  if (process.env.SHOTS) writeFileSync(join(process.env.SHOTS, 'saved.png'), picture)
  const rows = (await savedAs(card, 'CSV')).bytes.toString().trim().split('\r\n')
  assert.equal(rows[0], 't_s,1:nap ave_time_s mean,1:nap ave_time_s min,1:nap ave_time_s max,1:nap p50_time_s,1:nap p99_time_s')
  assert.equal(rows.length, chart.t_s.length + 1)
  await card.getByRole('button', { name: 'Table' }).click()
  assert.match(await card.getByRole('row', { name: /^nap/ }).textContent(), /\d\.\d+\u202fms/)
})

test('rates before and after an aggregate are equal in units of batches', async () => {
  const run = await finished(server, sleepy(400, 5, { stages: [{ sleep: { name: 'nap', mean_ms: 5 } }, { aggregate: { size: 4 } }] }))
  await open(`/runs/${run.id}`)
  const card = () => page.getByRole('region', { name: /^Tasks/ })
  await card().getByRole('button', { name: 'Table' }).click()
  const rates = async () => {
    await card().getByRole('row', { name: /^nap/ }).getByRole('cell').nth(2).filter({ hasText: /\d/ }).waitFor()
    const rows = await Promise.all(['nap', 'aggregate'].map((name) => card().getByRole('row', { name: new RegExp(`^${name}`) }).getByRole('cell').nth(2).textContent()))
    return rows.map((text) => Number.parseFloat(text))
  }
  const [nap, aggregate] = await rates()
  assert.ok(Math.abs(nap - aggregate) < 0.1 * nap, `${nap} and ${aggregate}: each item that an aggregate takes is a task`)
  await card().getByRole('button', { name: 'In batches' }).click()
  await page.getByRole('region', { name: 'Tasks in batches' }).waitFor()
  const [batches] = await rates()
  assert.ok(Math.abs(nap / batches - 4) < 0.1, `${nap} and ${batches}`)
  assert.equal(new URL(page.url()).search, '?rates=batches')
  assert.deepEqual(await violations(page), [])
  const file = await savedAs(card(), 'CSV')
  assert.match(file.name, /Tasks-in-batches\.csv$/)
  assert.match(file.bytes.toString(), /^t_s,1:nap tasks_per_s_in_batches mean,/)
})

test('the log shows the lines of a guest, with links to them', async () => {
  const run = await finished(server, {
    name: 'talkative',
    source: { range: { count: 3 } },
    stages: [{ wasm: { module: 'misbehaving', params: { how: 'log' } } }],
  })
  await open(`/runs/${run.id}/logs`)
  const lines = page.getByRole('list', { name: 'Log' }).getByRole('listitem')
  await lines.nth(2).waitFor()
  const text = await lines.first().textContent()
  assert.match(text, /warn\s+misbehaving\s+two/)
  assert.match(text, /lines and .*red/s)
  assert.ok(!text.includes('\u001b'), 'escape sequences are printed as text')
  await lines.nth(1).getByRole('link', { name: /^Link to line/ }).click()
  await page.waitForURL(/line=\d+/)
  await page.reload()
  await page.locator('li.marked').waitFor()
  assert.equal(await page.locator('li.marked').count(), 1)
  await page.getByRole('searchbox', { name: 'Search the log' }).fill('nothing of the kind')
  await page.getByText('No line matches these filters.').waitFor()
  await shot(page, 'logs-none')
  await page.getByRole('button', { name: 'Clear' }).click()
  await lines.nth(2).waitFor()
  await shot(page, 'logs')
  assert.deepEqual(await violations(page), [])
})

test('a link opens a line of a long log, and following shows its end', async () => {
  // All lines are logged before the first batch starts to wait.
  const [lines, wait_ms] = [700, 600_000]
  const made = await submit({
    name: 'long-talk',
    threads: 1,
    source: { range: { count: lines } },
    stages: [{ wasm: { module: 'misbehaving', params: { how: 'log' } } }, { aggregate: { size: lines } }, { sleep: { mean_ms: wait_ms } }],
  })
  /** Numbers of the log lines in the server's response. */
  const numbers = async () => {
    const found = []
    let cursor = ''
    do {
      const { items, next } = (await server.ask('GET', `/runs/${made.id}/logs?limit=200${cursor}`)).body
      found.push(...items.map(({ number }) => number))
      cursor = next && `&cursor=${encodeURIComponent(next)}`
    } while (cursor)
    return found
  }
  let logged
  do logged = await numbers()
  while (logged.length < lines)
  await open(`/runs/${made.id}/logs?line=${logged[450]}`)
  await page.locator('li.marked').waitFor()
  await page.getByRole('button', { name: 'More lines' }).waitFor()
  await page.getByLabel('Follow').check()
  await page.getByText(`All ${lines} lines so far`).waitFor()
  await server.ask('POST', `/runs/${made.id}/stop`)
  await page.getByText(`All ${lines} lines`, { exact: true }).waitFor()
  const shown = await page.getByRole('list', { name: 'Log' }).getByRole('listitem').getByRole('link').allTextContents()
  assert.deepEqual(shown.map(Number), logged, 'no line is missing')
})

test('a list keeps its filter, and typed text keeps its spaces', async () => {
  const run = await submit(sleepy(1_000_000, 5, { name: 'filtered' }))
  await open('/runs?state=running')
  await page.getByRole('row', { name: /filtered/ }).waitFor()
  await server.ask('POST', `/runs/${run.id}/stop`)
  await page.getByText('No run matches these filters.').waitFor()
  const search = page.getByRole('searchbox')
  await search.fill('filtered ')
  await page.waitForURL(/q=filtered$/)
  assert.equal(await search.inputValue(), 'filtered ')
  await page.getByRole('button', { name: 'Clear' }).click()
  await page.getByRole('row', { name: /filtered/ }).waitFor()
  assert.equal(await search.inputValue(), '')
  // Text typed right before leaving a page must not become a search of the next page.
  await page.evaluate(() => {
    const field = document.querySelector('input[type=search]')
    field.value = 'late'
    field.dispatchEvent(new Event('input', { bubbles: true }))
    document.querySelector('nav a[href="/modules"]').click()
  })
  await page.getByRole('heading', { name: 'Modules', level: 1 }).waitFor()
  await page.getByRole('link', { name: 'misbehaving', exact: true }).waitFor()
  await page.waitForTimeout(400)
  assert.equal(new URL(page.url()).search, '')
})

test('the fields of a failed sample are shown as written', async () => {
  write(join(store, 'records.ndjson'), '{"key":"a","whole":7,"half":0.5,"words":"as they are"}')
  const stages = [{ wasm: { module: 'misbehaving', params: { how: 'panic' } } }]
  const run = await finished(server, { name: 'held', source: { records: { store: 'texts', key: 'records.ndjson' } }, stages })
  await open(`/runs/${run.id}/errors`)
  await page.locator('details summary').click()
  assert.deepEqual(await page.locator('details pre').allTextContents(), ['7', '0.5', 'as they are'])
  const bare = await finished(server, { name: 'bare', source: { range: { count: 1 } }, stages })
  await open(`/runs/${bare.id}/errors`)
  await page.locator('details summary').click()
  await page.getByText('The input had no fields.').waitFor()
})

test('dead letters are replayed, and pass after the missing object is added', async () => {
  write(join(store, 'records.ndjson'), ['here.txt', 'late.txt', 'lost.txt'].map((key) => JSON.stringify({ key })).join('\n'))
  write(join(store, 'here.txt'), 'I am here')
  const run = await finished(server, {
    name: 'fetching',
    source: { records: { store: 'texts', key: 'records.ndjson' } },
    stages: [{ fetch: { store: 'texts', on_error: 'dead_letter' } }],
  })
  assert.equal(run.snapshot.ledger.total.dead_lettered, 2)
  await open(`/runs/${run.id}/errors`)
  const letters = page.getByRole('region', { name: 'Dead letters' })
  await letters.getByText('2 of 1:fetch').waitFor()
  write(join(store, 'late.txt'), 'I am late')
  await letters.getByRole('button', { name: 'Run again' }).click()
  const row = letters.getByRole('row', { name: /^1:fetch/ })
  await row.waitFor()
  assert.deepEqual((await row.getByRole('cell').allTextContents()).slice(0, 4), ['2', '1', '1', '0'], 'dead letters, mended, still failing, not tried')
  await letters.getByText(/lost\.txt/).waitFor()
  await shot(page, 'dead-letters')
  assert.deepEqual(await violations(page), [])
})

test('a queued run shows what it waits for, and starts when there is room', async () => {
  const first = await submit(sleepy(1_000_000, 5, { name: 'first', threads: 3 }))
  const second = await submit(sleepy(1_000_000, 5, { name: 'second', threads: 2 }))
  await open(`/runs/${second.id}`)
  const waiting = page.getByText(/Waiting: not enough capacity: 2 threads needed, 1 of 4 free/)
  await waiting.waitFor()
  await shot(page, 'run-waiting')
  assert.deepEqual(await violations(page), [])
  await server.ask('POST', `/runs/${first.id}/stop`)
  await page.getByText(/live · \d/).waitFor()
  assert.equal(await waiting.count(), 0)
  await server.ask('POST', `/runs/${second.id}/stop`)
})

test('a run with the consumer `stream` shows how to connect', async () => {
  writeFileSync(join(store, 'records.ndjson'), Array.from({ length: 8 }, (_, number) => `{"key":"${number}","x":${number}}\n`).join(''))
  const run = await submit({
    name: 'drained',
    threads: 1,
    source: { records: { store: 'texts', key: 'records.ndjson' } },
    stages: [{ aggregate: { size: 4 } }, { collate: {} }],
    consumer: { stream: {} },
  })
  await open(`/runs/${run.id}`)
  const code = page.getByText(`penstock.connect("${server.url}").stream("${run.id}")`)
  await code.waitFor()
  await shot(page, 'run-stream')
  assert.deepEqual(await violations(page), [])
  await server.ask('POST', `/runs/${run.id}/stop`)
  await code.waitFor({ state: 'detached' })
})

test('a stopped run is resumed, after a question if its module has changed', async () => {
  const begun = async (document) => {
    const run = await submit(document)
    await open(`/runs/${run.id}`)
    await page.waitForFunction(() => Number.parseInt(document.querySelector('dl.numbers dd').textContent) > 20)
    assert.ok(await page.getByRole('button', { name: 'Resume' }).isDisabled())
    await page.getByRole('button', { name: 'Stop', exact: true }).click()
    await page.getByRole('button', { name: 'Stop the run' }).click()
    return run
  }
  const resumed = (run) => page.waitForURL((url) => url.pathname.startsWith('/runs/') && !url.pathname.endsWith(run.id))
  const run = await begun(sleepy(600, 10))
  await page.getByRole('button', { name: 'Resume' }).click()
  await resumed(run)
  await page.getByText(/^Resumes run/).waitFor()
  assert.equal(await page.getByRole('link', { name: /^run / }).getAttribute('href'), `/runs/${run.id}`)
  const ledger = page.getByRole('region', { name: 'Ledger' })
  await page.getByRole('term').filter({ hasText: 'Duration' }).waitFor()
  await ledger.scrollIntoViewIfNeeded()
  await ledger.getByText(/all runs: *600 *made *= *600 *delivered/).waitFor()
  assert.ok(await page.getByRole('button', { name: 'Resume' }).isDisabled(), 'nothing is left to do')
  await shot(page, 'run-resumed')
  assert.deepEqual(await violations(page), [])

  const stages = [{ sleep: { name: 'nap', mean_ms: 5 } }, { wasm: { module: 'misbehaving', params: { how: 'many' } } }]
  const other = await begun(sleepy(1_000_000, 5, { stages }))
  const version = Buffer.concat([readFileSync(join(modules, 'guest_misbehaving.wasm')), Buffer.from([0, 2, 1, 110])])
  assert.equal((await server.ask('POST', '/modules', new Uint8Array(version))).status, 201)
  await page.getByRole('button', { name: 'Resume' }).click()
  const dialog = page.getByRole('dialog', { name: /^Resume .* nevertheless\?$/ })
  await dialog.getByText('/stages/1/wasm/module differs').waitFor()
  await shot(page, 'run-differs')
  await dialog.getByRole('button', { name: 'Resume the run' }).click()
  await resumed(other)
  await page.getByText(/^Resumes run/).waitFor()
  await server.ask('POST', `${new URL(page.url()).pathname}/stop`)
})

test('a file larger than the limit is refused before it is sent', async () => {
  await open('/modules')
  const uploads = page.getByRole('region', { name: 'Uploads' })
  await drop(page, 'large.wasm', LARGEST + 1)
  await uploads.getByText(/the limit of this server is 2\.00\u202fMiB/).waitFor()
  assert.deepEqual(browser.asked.filter((line) => /^POST .*\/modules/.test(line)), [])
  await drop(page, 'zeros.wasm', LARGEST)
  await uploads.getByText(/^Refused/).nth(1).waitFor()
  assert.equal(browser.asked.filter((line) => /^POST .*\/modules$/.test(line)).length, 1)
})

test('the pressed window is that of the figures', async () => {
  const run = await submit(sleepy(1_000_000, 5))
  const pressed = async () => [await page.locator('dd.window').textContent(), ...(await page.getByRole('group', { name: 'Window' }).locator('[aria-pressed=true]').allTextContents())]
  await open(`/runs/${run.id}`)
  await page.getByRole('group', { name: 'Window' }).waitFor()
  // The default is the last minute, which the run has not had.
  const [words, ...buttons] = await pressed()
  assert.match(words, /^whole run/)
  assert.deepEqual(buttons, ['Whole run'])
  await server.ask('POST', `/runs/${run.id}/stop`)
})

test('a failed run is headed by its reason', async () => {
  const failing = { ...sleepy(200, 1), name: 'failing', stages: [{ sleep: { name: 'nap', mean_ms: 1, fail_rate: 1 } }], max_failures: { count: 1 } }
  const run = await finished(server, failing)
  assert.equal(run.state, 'failed')
  await open(`/runs/${run.id}`)
  await page.locator('.verdict').waitFor()
  const first = await page.locator('.notice, .verdict').first().innerText()
  assert.match(first, /^Failed: /)
  assert.deepEqual(await violations(page), [])
  await shot(page, 'run-failed')
})

test('the browser console has no errors', () => {
  assert.deepEqual(browser.complaints.filter((line) => !/status of (409|422)/.test(line)), [])
})
