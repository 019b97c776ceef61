// Lists of runs and benchmarks, their selections, and comparisons.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { after, before, test } from 'node:test'

import { browse, finished, folder, open as visit, overflows, serve, shot, sleepy, violations, write } from './kit.mjs'

const data = folder()
let server, browser, page

before(async () => {
  server = await serve({ data: join(data.path, 'data') })
  browser = await browse(server.url)
  page = browser.page
  for (let number = 0; number < 60; number++) {
    const more = number % 20 === 3 ? { stages: [{ sleep: { name: 'nap', mean_ms: 0, fail_rate: 0.5 } }] } : {}
    await finished(server, sleepy(1 + number, 0, { name: `run-${String(number).padStart(2, '0')}`, ...more }))
  }
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
})

const open = (path) => visit(page, server, path)
const rows = () => page.getByRole('group', { name: 'Runs', exact: true }).locator('tbody tr')
const names = async () => (await rows().locator('th > a').allTextContents()).map((name) => name.trim())
const box = (name) => page.getByRole('checkbox', { name: new RegExp(`^Select ${name} `) })
const bar = () => page.getByRole('group', { name: 'Selected runs' })
const confirm = async (does) => {
  await bar().getByRole('button', { name: new RegExp(`^${does.split(' ')[0]}`) }).click()
  await page.getByRole('dialog').getByRole('button', { name: does, exact: true }).click()
}
const until = (what, is) => page.waitForFunction(is, what)
/** Waits until the first row shows this run. */
const first = (name) => rows().first().getByRole('link', { name, exact: true }).waitFor()

test('each head sorts the whole list, and reverses its order', async () => {
  await open('/runs')
  await first('run-59')
  for (const [head, at, greatest] of [['Run', 1, 'run-59'], ['Samples', 5, 'run-59'], ['Throughput', 4, null], ['Failed samples', 6, null], ['Duration', 7, null], ['State', 2, null], ['Limited by', 3, null], ['Submitted', 8, 'run-59'], ['Modules', 9, null]]) {
    const button = page.getByRole('button', { name: head, exact: true })
    const orders = new Map()
    for (let press = 0; press < 2; press++) {
      const column = page.getByRole('columnheader').filter({ has: button })
      const before = await column.getAttribute('aria-sort')
      await button.click()
      await page.waitForFunction(([at, before]) => {
        const sorted = document.querySelectorAll('thead th')[at].getAttribute('aria-sort')
        return sorted && sorted !== before
      }, [at, before])
      await page.getByRole('region', { name: 'List of runs', exact: true }).and(page.locator('[aria-busy=false]')).waitFor()
      const sort = new URL(page.url()).searchParams.get('sort') ?? '-submitted_at'
      const listed = (await server.ask('GET', `/runs?sort=${sort}`)).body.items.map(({ name }) => name)
      assert.deepEqual(await names(), listed, `${head}: ${sort}`)
      orders.set(await column.getAttribute('aria-sort'), (await names())[0])
    }
    assert.deepEqual([...orders.keys()].sort(), ['ascending', 'descending'], head)
    if (greatest) assert.deepEqual([orders.get('ascending'), orders.get('descending')], ['run-00', greatest], head)
  }
  await shot(page, 'runs-sorted')
  assert.deepEqual(await violations(page), [])
})

test('a return and a reload keep place, rows and selection', async () => {
  await open('/runs')
  await first('run-59')
  assert.equal(await rows().count(), 50)
  await page.getByRole('button', { name: 'More runs' }).click()
  await until(60, (count) => document.querySelectorAll('tbody tr').length === count)
  await box('run-20').check()
  await box('run-15').click({ modifiers: ['Shift'] })
  await bar().getByText('6 selected').waitFor()
  const link = page.getByRole('link', { name: 'run-17', exact: true })
  await link.scrollIntoViewIfNeeded()
  const place = await page.evaluate(() => window.scrollY)
  assert.ok(place > 300, `scrolled to ${place}`)
  await link.click()
  await page.getByRole('heading', { level: 1, name: 'run-17' }).waitFor()
  const there = async (how) => {
    await bar().getByText('6 selected').waitFor()
    await page.waitForFunction((place) => Math.abs(window.scrollY - place) < 2, place, { timeout: 5000 }).catch(async () => assert.fail(`${how}: at ${await page.evaluate(() => window.scrollY)}, was at ${place}`))
    assert.equal(await rows().count(), 60, how)
    assert.deepEqual([await box('run-15').isChecked(), await box('run-14').isChecked()], [true, false], how)
  }
  await page.goBack()
  await there('a return')
  await page.reload()
  await there('a reload')
  // A new visit of the page starts at its top.
  await page.getByRole('navigation').getByRole('link', { name: 'Modules' }).click()
  await page.getByRole('heading', { level: 1, name: 'Modules' }).waitFor()
  await page.getByRole('navigation').getByRole('link', { name: 'Runs' }).click()
  await first('run-59')
  assert.deepEqual([await rows().count(), await bar().count(), await page.evaluate(() => window.scrollY)], [50, 0, 0])
})

test('selected runs get tags, and a tag finds its runs', async () => {
  await open('/runs')
  await box('run-59').check()
  await box('run-57').click({ modifiers: ['Shift'] })
  await bar().getByRole('button', { name: 'Tags' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByRole('textbox').fill('nightly, lr=0.1')
  await shot(page, 'runs-tags')
  assert.deepEqual(await violations(page), [])
  await page.keyboard.press('Enter')
  await page.getByRole('link', { name: 'nightly' }).nth(2).waitFor()
  await box('run-58').uncheck()
  await box('run-57').uncheck()
  await bar().getByRole('button', { name: 'Tags' }).click()
  assert.equal(await dialog.getByRole('textbox').inputValue(), 'nightly, lr=0.1')
  await dialog.getByRole('textbox').fill('lr=0.1, best')
  await dialog.getByRole('button', { name: 'Save tags' }).click()
  const { height } = await page.getByRole('link', { name: 'best' }).boundingBox()
  assert.ok(height >= 24, `a tag is ${height} pixels high, too low for a finger`)
  await page.getByRole('link', { name: 'best' }).click()
  await page.getByText('tagged best').waitFor()
  await until(1, (count) => document.querySelectorAll('tbody tr').length === count)
  assert.deepEqual(await names(), ['run-59'])
  assert.equal(new URL(page.url()).search, '?tag=best')
  await page.getByRole('searchbox').fill('NIGHT')
  await page.getByText('No run matches these filters.').waitFor()
  await page.getByRole('button', { name: 'Remove the filter by tag' }).click()
  await until(2, (count) => document.querySelectorAll('tbody tr').length === count)
  assert.deepEqual(await names(), ['run-58', 'run-57'])
  // The server refuses the tag: the page shows its response for each run.
  await page.getByRole('checkbox', { name: 'Select all' }).check()
  await bar().getByRole('button', { name: 'Tags' }).click()
  await dialog.getByRole('textbox').fill('x'.repeat(65))
  await page.keyboard.press('Enter')
  const note = page.getByRole('alert')
  await note.getByText('2 of 2 runs not tagged').waitFor()
  assert.equal(await note.getByRole('listitem').count(), 2)
  for (const name of ['run-57', 'run-58']) assert.match(await note.getByRole('listitem').filter({ hasText: name }).textContent(), /1 to 64 characters/)
  await shot(page, 'runs-refused')
  assert.deepEqual(await violations(page), [])
})

test('selected runs are stopped and deleted after one question', async () => {
  const made = []
  for (const name of ['long-a', 'long-b']) made.push((await server.ask('POST', '/runs', sleepy(1_000_000, 5, { name }))).body.id)
  await open('/runs')
  for (const name of ['long-a', 'long-b', 'run-00', 'run-59']) if (name !== 'run-00') await box(name).check()
  await bar().getByText('3 selected').waitFor()
  await shot(page, 'runs-selected')
  assert.deepEqual(await violations(page), [])
  // Each button counts only the selected runs to which it applies: running ones cannot be deleted.
  await bar().getByRole('button', { name: 'Delete 1', exact: true }).waitFor()
  await confirm('Stop 2 runs')
  await bar().getByRole('button', { name: 'Delete 3', exact: true }).waitFor()
  for (const id of made) assert.equal((await server.ask('GET', `/runs/${id}`)).body.state, 'stopped')
  // One run is deleted before the confirmation: the others are deleted anyway.
  await bar().getByRole('button', { name: 'Delete 3', exact: true }).click()
  await page.getByRole('dialog').getByText('Delete 3 runs?').waitFor()
  await shot(page, 'runs-delete')
  assert.deepEqual(await violations(page), [])
  await server.ask('DELETE', `/runs/${made[0]}`)
  await page.getByRole('dialog').getByRole('button', { name: 'Delete 3 runs' }).click()
  await page.getByRole('alert').getByText('1 of 3 runs not deleted').waitFor()
  assert.match(await page.getByRole('alert').getByRole('listitem').textContent(), /long-a.*no run/)
  await first('run-58')
  assert.equal(await bar().count(), 0)
})

test('a comparison begins with the older run, and keeps another baseline in its address', async () => {
  await open('/runs')
  await box('run-58').check()
  await box('run-50').check()
  await bar().getByRole('button', { name: 'Compare' }).click()
  const table = page.getByRole('region', { name: 'Whole run' })
  await table.waitFor()
  const heads = () => table.getByRole('columnheader').allTextContents()
  assert.match((await heads())[0], /A\s*run-50.*baseline/s)
  assert.match((await heads())[1], /B\s*run-58.*Make baseline/s)
  assert.deepEqual((await table.getByRole('row', { name: /^Samples/ }).getByRole('cell').allTextContents()).map((text) => text.trim()), ['51', '59 ▲ 16\u202f% more'])
  await table.getByRole('button', { name: 'Make baseline' }).click()
  await page.waitForURL(/base=/)
  await page.reload()
  await table.waitFor()
  assert.match((await heads())[1], /run-58.*baseline/s)
  // Without a baseline in the address, the older run is the baseline, whatever the order of the ids.
  const [one, other] = new URL(page.url()).searchParams.get('runs').split(',')
  await open(`/compare?runs=${other},${one}`)
  await table.waitFor()
  assert.match((await heads())[1], /run-50.*baseline/s)
  await page.goBack()
})

test('benchmarks are sorted and compared', async () => {
  const config = (name, bytes) => write(join(data.path, `${name}.json`), JSON.stringify({ name, source: { memory: { count: 60, bytes } }, ceiling: false, actions: [{ whole_set: { workers: [1, 2], repeats: 2 } }] }))
  for (const [name, bytes] of [['small', 100], ['large', 100_000]]) {
    const ran = spawnSync(process.env.PENSTOCK, ['bench', 'storage', config(name, bytes), '--push', '--server', server.url, '--out', join(data.path, name), '--quiet'], { encoding: 'utf8' })
    assert.equal(ran.status, 0, ran.stderr)
  }
  await open('/bench')
  const heads = page.getByRole('columnheader').getByRole('button')
  for (const head of await heads.allTextContents()) {
    await page.getByRole('columnheader').getByRole('button', { name: head.replace(/[▾▴]/, ''), exact: true }).click()
    await page.getByRole('region', { name: 'List of benchmarks' }).and(page.locator('[aria-busy=false]')).waitFor()
    const sort = new URL(page.url()).searchParams.get('sort') ?? '-kept_at'
    const listed = (await server.ask('GET', `/benchmarks?sort=${sort}`)).body.items.map(({ name }) => name)
    await page.waitForFunction((name) => document.querySelector('tbody th a')?.textContent === name, listed[0])
  }
  await page.getByRole('checkbox', { name: 'Select all' }).check()
  await shot(page, 'bench-selected')
  assert.deepEqual(await violations(page), [])
  await page.getByRole('button', { name: 'Compare', exact: true }).click()
  await page.getByRole('heading', { level: 2, name: 'B compared with A' }).waitFor()
  const ids = new URL(page.url()).searchParams.get('benchmarks').split(',')
  const { body } = await server.ask('GET', `/benchmarks/${ids[1]}/comparison?base=${ids[0]}`)
  assert.deepEqual([body.base.name, body.benchmark.name], ['small', 'large'])
  await page.getByText(body.sentence.replaceAll('`', '').slice(0, 30)).waitFor()
  const loads = page.getByRole('group', { name: 'Loads of B and A' }).locator('tbody tr')
  assert.equal(await loads.count(), body.cells.length)
  const sign = body.cells[0].rate.change < 0 ? '−' : '+'
  assert.match(await loads.first().textContent(), new RegExp(`${body.cells[0].load}.*\\${sign}\\d`, 's'))
  await shot(page, 'bench-compare')
  assert.deepEqual(await violations(page), [])
  await page.getByRole('button', { name: 'Make baseline' }).click()
  await page.getByRole('heading', { level: 2, name: 'A compared with B' }).waitFor()
  await open('/bench/compare?benchmarks=one')
  await page.getByText('A comparison needs at least 2 benchmarks.').waitFor()
  await open(`/bench/compare?benchmarks=${ids[0]},nowhere`)
  await page.getByRole('alert').getByText('could not be loaded').waitFor()
  assert.deepEqual(await violations(page), [])
})

test('lists and comparisons fit a phone, in light and dark', async () => {
  const runs = (await server.ask('GET', '/runs?limit=3&sort=name')).body.items.map(({ id }) => id).join(',')
  const benchmarks = (await server.ask('GET', '/benchmarks')).body.items.map(({ id }) => id).join(',')
  for (const colorScheme of ['light', 'dark']) {
    const phone = await browse(server.url, { viewport: { width: 390, height: 844 }, colorScheme, hasTouch: true, isMobile: true })
    try {
      for (const [path, name] of [['/', 'start'], ['/runs', 'runs'], ['/bench', 'bench'], [`/compare?runs=${runs}`, 'compare'], [`/bench/compare?benchmarks=${benchmarks}`, 'bench-compare']]) {
        await visit(phone.page, server, path)
        await phone.page.getByText(/^Loading/).first().waitFor({ state: 'detached' })
        if (name === 'runs' || name === 'bench') {
          await phone.page.getByRole('checkbox', { name: 'Select all' }).tap()
          await phone.page.getByText(/^\d+ selected/).waitFor()
        }
        await shot(phone.page, `${name}-phone-${colorScheme}`)
        assert.equal(await overflows(phone.page), false, name)
        assert.deepEqual(await violations(phone.page), [], name)
      }
      assert.deepEqual(phone.complaints, [])
    } finally {
      await phone.close()
    }
  }
})

test('pages log no errors', () => {
  assert.deepEqual(browser.complaints.filter((line) => !/status of 4\d\d/.test(line)), [])
})
