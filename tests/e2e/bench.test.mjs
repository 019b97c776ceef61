// Reports of storage benchmarks: stored on the server, shown in pages, and in a standalone file.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { pathToFileURL } from 'node:url'

import { browse, drop, folder, open as visit, overflows, serve, shot, violations, write } from './kit.mjs'

const data = folder()
const found = folder()
let server, browser, page, id, report

/** Four loads over 200 objects, two passes each. */
const document = { name: 'in-memory', source: { memory: { count: 200, bytes: 20_000, latency_ms: 1 } }, actions: [{ whole_set: { workers: [2, 4], repeats: 2 } }] }
const [LOADS, LEVELS, STATISTICS] = [4, 5, 4]

before(async () => {
  server = await serve({ data: data.path })
  browser = await browse(server.url, { acceptDownloads: true })
  page = browser.page
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
  found.remove()
})

const open = (path) => visit(page, server, path)
const card = (name, on = page) => on.getByRole('region', { name, exact: true })
const bars = (name, on = page) => card(name, on).locator('rect.bar')
const loadOf = (mode, workers) => report.actions[0].whole_set.find((load) => load.mode === mode && load.workers === workers)
/** Text with ordinary spaces in place of thin ones. */
const plain = (text) => text.replaceAll('\u202f', ' ').replace(/\s+/g, ' ').trim()

/** Checks the content that a report shows, on the server and in a file. */
async function shows(on) {
  await bars('Times by level', on).first().waitFor()
  assert.equal(await bars('Times by level', on).count(), LOADS * LEVELS * STATISTICS)
  assert.equal(await card('Items per second by workers', on).locator('.point').count(), LOADS)
  assert.ok((await bars('Parts of a read', on).count()) >= LOADS)
  assert.ok((await bars('Read time', on).count()) >= 1)
  assert.equal(await card('Read time', on).locator('.mark').count(), 4)
  assert.equal(await on.locator('.u-wrap canvas').count(), 3, 'three charts over time')
  const counted = (level) => on.getByRole('region', { name: /^Calls/ }).getByRole('row', { name: level }).getByRole('cell').first().textContent()
  assert.deepEqual([await counted('Get item'), await counted('Fetch'), await counted('load all')], ['400', '8', '2'])
  const checks = on.getByRole('region', { name: /^Consistency checks/ })
  assert.equal(await checks.getByText('✓ yes').count(), loadOf('sync', 2).books.checks.length)
}

test('an empty list explains how to create a report', async () => {
  await open('/')
  await page.getByRole('link', { name: 'Benchmarks' }).click()
  await page.getByRole('heading', { name: 'No benchmarks yet' }).waitFor()
  await page.getByText(`penstock bench storage --store photos=./photos --push --server ${server.url}`).waitFor()
  await page.getByRole('button', { name: 'Copy', exact: true }).waitFor()
  assert.deepEqual(await violations(page), [])
})

test('a pushed report is in the list and links to its charts', async () => {
  const config = write(join(found.path, 'bench.json'), JSON.stringify(document))
  const args = ['bench', 'storage', config, '--push', '--server', server.url, '--out', join(found.path, 'out'), '--json', '--quiet']
  const ran = spawnSync(process.env.PENSTOCK, args, { encoding: 'utf8' })
  assert.equal(ran.status, 0, ran.stderr)
  report = JSON.parse(ran.stdout)
  await open('/bench')
  const row = page.getByRole('row', { name: /in-memory/ })
  assert.match(plain(await row.textContent()), /completed.*The fastest load is.*items\/s.*MB\/s, async.*200 ?3\.81 MiB.*memory/)
  await shot(page, 'bench-list')
  assert.deepEqual(await violations(page), [])
  await row.getByRole('link').click()
  await page.getByRole('heading', { level: 1, name: 'in-memory' }).waitFor()
  id = new URL(page.url()).pathname.split('/').at(-1)
  await shows(page)
  assert.equal(await page.getByRole('region', { name: 'Findings' }).getByRole('listitem').count(), report.findings.length)
  await shot(page, 'bench')
  assert.deepEqual(await violations(page), [])
  assert.equal(await overflows(page), false)
})

test('the height of bars matches the figures, and the table contains them', async () => {
  const heights = await bars('Times by level').evaluateAll((all) => all.map((bar) => Number(bar.getAttribute('height'))))
  // Mean, median, min and max of an item, for the first load.
  const { mean_s, median_s, min_s, max_s } = loadOf('sync', 2).levels.getitem
  const wanted = [mean_s, median_s, min_s, max_s].map(Math.log10)
  const drawn = heights.slice(0, 4)
  // On the logarithmic axis all decades have the same height, computed here from two bars.
  const whole = loadOf('sync', 2).levels.benchmark.mean_s
  const decade = (heights[2 * 4 * (LEVELS - 1)] - drawn[0]) / (Math.log10(whole) - wanted[0])
  for (const place of [1, 2, 3]) assert.ok(Math.abs(drawn[place] - drawn[0] - (wanted[place] - wanted[0]) * decade) < 0.5, `bar ${place} of ${drawn}`)
  await card('Times by level').getByRole('button', { name: 'Table' }).click()
  const cells = await card('Times by level').getByRole('row', { name: /^async 4x8 .* getitem/ }).getByRole('cell').allTextContents()
  assert.deepEqual(cells.slice(0, 6).map(plain), ['async', '4', '8', '50', 'getitem', '400'])
  const mean_ms = loadOf('async', 4).levels.getitem.mean_s * 1e3
  assert.equal(plain(cells[6]), `${mean_ms.toFixed(mean_ms < 10 ? 2 : 1)} ms`)
  assert.equal(cells.at(-1), 'passed')
  await card('Times by level').getByRole('button', { name: 'Chart' }).click()
  await card('Times by level').getByRole('button', { name: 'items/s' }).click()
  assert.equal(await bars('Items per second').count(), LOADS)
  await card('Items per second').getByRole('button', { name: 'Times' }).click()
})

test('another load can be selected with the keyboard, and the address contains it', async () => {
  const choice = page.getByRole('button', { name: /^sync 2, / })
  await choice.focus()
  await page.keyboard.press('Enter')
  await page.waitForURL(/load=sync\+2/)
  await page.getByRole('heading', { level: 2, name: 'sync 2', exact: true }).waitFor()
  await card('Read time').getByRole('combobox').selectOption('async 4x8')
  await page.waitForURL(/over=async/)
  assert.ok((await card('Read time').locator('path.outline').getAttribute('d')).length > 10)
  await page.reload()
  await page.getByRole('heading', { level: 2, name: 'sync 2', exact: true }).waitFor()
  assert.equal(await page.getByRole('button', { name: /^sync 2, / }).getAttribute('aria-pressed'), 'true')
  const percentiles = await card('Read time').getByRole('row').allTextContents()
  assert.deepEqual(percentiles.slice(1).map((text) => /async 4x8|sync 2/.exec(text)?.[0]), ['sync 2', 'async 4x8'])
  // Arrow keys move through the marks of a chart and announce them, Enter selects.
  const chart = page.getByRole('group', { name: /^Items per second by workers: chart/ })
  await chart.focus()
  await page.keyboard.press('ArrowRight')
  await page.keyboard.press('ArrowRight')
  await chart.locator('[aria-live]', { hasText: /^sync 4: all passes .*items\/s/ }).waitFor({ state: 'attached' })
  await page.keyboard.press('Enter')
  await page.waitForURL(/load=sync\+4/)
  await shot(page, 'bench-over')
})

test('figures and charts can be saved', async () => {
  const saved = async (press) => {
    const [file] = await Promise.all([page.waitForEvent('download'), press()])
    return readFileSync(await file.path())
  }
  const levels = await saved(() => page.getByRole('button', { name: 'Save levels.csv' }).click())
  assert.equal(levels.toString().trim().split('\r\n').length, 1 + LOADS * LEVELS)
  const whole = await saved(() => page.getByRole('button', { name: 'Save report.json' }).click())
  assert.deepEqual(JSON.parse(whole), report)
  const of = (kind) => async () => {
    await card('Parts of a read').getByText('Save').click()
    await card('Parts of a read').getByRole('button', { name: kind }).click()
  }
  assert.match((await saved(of('SVG'))).toString(), /^<svg xmlns.*Parts of a read.*async 4x8/s)
  assert.equal((await saved(of('PNG'))).subarray(1, 4).toString(), 'PNG')
})

test('figures with a failed consistency check are clearly marked void', async () => {
  const broken = structuredClone(report)
  broken.name = 'broken'
  broken.balanced = false
  const { books } = broken.actions[0].whole_set[3]
  books.balanced = false
  Object.assign(books.checks.find(({ identity }) => identity === 'bytes'), { holds: false, found: '3 bodies are shorter than their objects' })
  await open('/bench')
  await drop(page, 'report.json', Buffer.from(JSON.stringify(broken)))
  await page.getByRole('heading', { level: 1, name: 'broken' }).waitFor()
  const notice = page.getByRole('alert')
  assert.match(await notice.textContent(), /VOID.*async 4x8.*bytes.*3 bodies are shorter/s)
  assert.match(await page.getByRole('button', { name: /^async 4x8, / }).getAttribute('aria-label'), /VOID/)
  await card('Items per second by workers').getByText('VOID').waitFor()
  await shot(page, 'bench-void')
  assert.deepEqual(await violations(page), [])
  await open('/bench')
  assert.match(await page.getByRole('row', { name: /broken/ }).textContent(), /VOID/)
})

test('an invalid report is refused, and a report can be deleted', async () => {
  await drop(page, 'else.json', Buffer.from('{"name": "else"}'))
  await page.getByRole('alert').getByText('else.json was refused').waitFor()
  await page.getByRole('checkbox', { name: /^Select broken/ }).check()
  await page.getByRole('button', { name: 'Delete 1', exact: true }).click()
  await page.getByRole('button', { name: 'Delete 1 benchmark' }).click()
  await page.getByRole('row', { name: /broken/ }).waitFor({ state: 'detached' })
  await page.reload()
  await page.getByRole('row', { name: /in-memory/ }).waitFor()
  assert.equal(await page.getByRole('row', { name: /broken/ }).count(), 0)
})

test('the pages fit a phone in dark mode', async () => {
  const phone = await browse(server.url, { viewport: { width: 390, height: 844 }, colorScheme: 'dark' })
  try {
    for (const [path, name] of [['/bench', 'bench-list-phone'], [`/bench/${id}?over=sync+2`, 'bench-phone']]) {
      await visit(phone.page, server, path)
      if (name === 'bench-phone') await shows(phone.page)
      await shot(phone.page, name)
      assert.equal(await overflows(phone.page), false)
      assert.deepEqual(await violations(phone.page), [])
    }
    assert.deepEqual(phone.complaints, [])
  } finally {
    await phone.close()
  }
})

test('the standalone file shows the same report without any requests', async () => {
  const file = pathToFileURL(join(found.path, 'out', 'report.html')).href
  for (const colorScheme of ['light', 'dark']) {
    const alone = await browse(file, { colorScheme })
    try {
      await alone.page.goto(file)
      await alone.page.getByRole('heading', { level: 1, name: 'in-memory' }).waitFor()
      await shows(alone.page)
      await alone.page.getByRole('button', { name: /^sync 2, / }).click()
      await alone.page.getByRole('heading', { level: 2, name: 'sync 2', exact: true }).waitFor()
      await alone.page.reload()
      await alone.page.getByRole('heading', { level: 2, name: 'sync 2', exact: true }).waitFor()
      await shot(alone.page, `bench-file-${colorScheme}`)
      assert.deepEqual(await violations(alone.page), [])
      assert.deepEqual([...new Set(alone.asked)].filter((line) => !line.startsWith(`GET ${file}`)), [])
      assert.deepEqual(alone.complaints, [])
    } finally {
      await alone.close()
    }
  }
})

test('the browser console has no errors', () => {
  assert.deepEqual(browser.complaints.filter((line) => !/status of 4\d\d/.test(line)), [])
})
