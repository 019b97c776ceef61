// A visitor's way through the pages, starting with an empty server.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'

import { browse, drop, finished, folder, modules, open as visit, overflows, photos, serve, shot, sleepy, violations } from './kit.mjs'

const data = folder()
let server, browser, page

before(async () => {
  photos(join(data.path, 'pictures'))
  server = await serve({ data: join(data.path, 'data'), args: ['--store', `pictures=${join(data.path, 'pictures')}`] })
  browser = await browse(server.url)
  page = browser.page
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
})

const open = (path) => visit(page, server, path)

/** Image of the first chart, to detect changes. */
const drawn = () => page.locator('.chart canvas').first().evaluate((canvas) => canvas.toDataURL())

/** Checks that the bars of a pipeline with one slow stage differ, and match their figures. */
async function queuesDiffer(steps) {
  const queues = await steps.evaluateAll((all) =>
    all.map((step) => ({
      ready: Number(/queue readiness ([\d.]+)/.exec(step.getAttribute('aria-label'))?.[1]) / 100,
      filled: step.parentElement.querySelector('.queue rect[rx="1.5"]')?.getAttribute('height') / 42,
    })),
  )
  for (const { ready, filled } of queues) assert.ok(Math.abs(ready - filled) < 0.05, JSON.stringify(queues))
  const ready = queues.map(({ ready }) => ready)
  assert.ok(Math.max(...ready) - Math.min(...ready) > 0.2, `ready: ${ready}`)
}

test('a first visit runs the example with one click, and its charts update', async () => {
  await open('/')
  await shot(page, 'start-empty')
  await page.getByRole('button', { name: /run the example/i }).click()
  await page.waitForURL(/\/runs\/[0-9a-f-]{36}$/)
  await page.getByText(/live · \d/).waitFor()
  await page.locator('.chart canvas').first().waitFor()
  const samples = page.locator('dl dd').first()
  const [first, picture] = [await samples.textContent(), await drawn()]
  await page.waitForTimeout(3000)
  assert.notEqual(await samples.textContent(), first, 'samples are counted')
  assert.notEqual(await drawn(), picture, 'a chart moves')
  const steps = page.locator('ol.graph button.step')
  assert.equal(await steps.count(), 6, 'source, four stages and the sink')
  await queuesDiffer(steps)
  await shot(page, 'run-live')
  assert.deepEqual(await violations(page), [])
})

test('a stopped run is shown as stopped, and its clone runs', async () => {
  await page.getByRole('button', { name: 'Stop', exact: true }).click()
  await page.getByRole('button', { name: 'Stop the run' }).click()
  await page.getByText(/^\W*stopped$/).first().waitFor()
  const before = page.url()
  await page.getByRole('button', { name: 'Clone' }).click()
  await page.getByRole('button', { name: 'Start the clone' }).click()
  await page.waitForFunction((before) => location.href !== before, before)
  await page.getByText(/live · \d/).waitFor()
})

test('a dropped module gets a version, and an invalid file is refused with a reason', async () => {
  await open('/modules')
  await drop(page, 'notes.wasm', Buffer.from('these are notes'))
  const uploads = page.getByRole('region', { name: 'Uploads' })
  await uploads.getByText(/^Refused/).waitFor()
  assert.match(await uploads.textContent(), /neither|not|no WebAssembly/i)
  await shot(page, 'module-refused')
  for (const name of ['image', 'text_filter', 'guest_misbehaving']) {
    await drop(page, `${name}.wasm`, readFileSync(join(modules, `${name}.wasm`)))
  }
  // Compilation can take long on a busy machine.
  for (const name of ['image@1', 'text-filter@1', 'misbehaving@1']) await uploads.getByRole('link', { name }).waitFor({ timeout: 180_000 })
  await drop(page, 'again.wasm', readFileSync(join(modules, 'text_filter.wasm')))
  await uploads.getByText('already stored').waitFor()
  await shot(page, 'modules')
  assert.deepEqual(await violations(page), [])
})

test('a module is inspected and tried on a photo', async () => {
  await open('/modules/image/1')
  await shot(page, 'module')
  assert.deepEqual(await violations(page), [])
  await page.getByRole('group', { name: 'Samples from' }).getByRole('button', { name: /store/i }).click()
  await page.getByRole('checkbox', { name: /jpg$/ }).first().check()
  await page.getByLabel('Kind of a new entry of ops').selectOption('Resize')
  await page.getByRole('button', { name: 'Add to ops' }).click()
  await page.getByLabel('size', { exact: true }).fill('[32, 32]')
  await page.getByRole('button', { name: 'Try it', exact: true }).click()
  await page.getByText(/kept/i).first().waitFor()
  const picture = page.getByRole('list', { name: 'image as a picture' }).locator('canvas')
  assert.deepEqual(await picture.evaluate(({ width, height }) => [width, height]), [32, 32])
  const colours = await picture.evaluate((canvas) => {
    const pixels = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, 32, 32).data.buffer)
    return new Set(pixels).size
  })
  assert.ok(colours > 50, `a photo of ${colours} colours`)
  await shot(page, 'module-tried')
  assert.deepEqual(await violations(page), [])
})

test('a fault is marked at its value and corrected, and the run is submitted and watched', async () => {
  await open('/runs/new')
  await page.locator('.cm-content').waitFor()
  const document = JSON.stringify(sleepy(100000, 5), null, 2).replace('"mean_ms": 5', '"mean_ms": -900')
  await page.locator('.cm-content').click()
  await page.keyboard.press('Control+A')
  await page.keyboard.insertText(document)
  const mark = page.locator('.cm-lintRange-error')
  await mark.first().waitFor()
  assert.equal(await mark.first().textContent(), '-900')
  assert.equal(await mark.count(), 1)
  await page.getByRole('status').getByText('1 problem').waitFor()
  await shot(page, 'new-run-fault')
  assert.deepEqual(await violations(page), [])
  // A click on the problem selects its value, which typing replaces.
  await page.getByRole('region', { name: 'Problems' }).getByRole('button').click()
  await page.keyboard.type('5')
  await page.getByText('✓ Valid').waitFor()
  await page.keyboard.press('Control+Enter')
  await page.waitForURL(/\/runs\/[0-9a-f-]{36}$/)
  await page.getByRole('heading', { name: 'sleepy' }).waitFor()
  await page.getByText(/live · \d/).waitFor()
})

test("the page of errors shows the message of a module's panic", async () => {
  const run = await server.ask('POST', '/runs', {
    name: 'panics',
    source: { range: { count: 3 } },
    stages: [{ wasm: { module: 'misbehaving', params: { how: 'panic' } } }],
  })
  assert.equal(run.status, 201, JSON.stringify(run.body))
  await open(`/runs/${run.body.id}/errors`)
  const error = page.getByText(/no `?0`? today/).first()
  await error.waitFor()
  assert.match(await error.textContent(), /lib\.rs:\d+/)
  await shot(page, 'errors')
  assert.deepEqual(await violations(page), [])
})

test('two runs are compared', async () => {
  const ids = []
  for (const ms of [2, 10]) ids.push((await finished(server, sleepy(200, ms, { name: `nap-${ms}` }))).id)
  await open(`/compare?runs=${ids.join(',')}&base=${ids[0]}`)
  const cells = async (table, row) => (await page.getByRole('region', { name: table }).getByRole('row', { name: row }).getByRole('cell').allTextContents()).map((text) => text.trim())
  const documents = page.getByRole('region', { name: 'Values in the documents' })
  await documents.waitFor()
  assert.equal(await documents.getByRole('row').count(), 3, 'the header, and the two values that differ')
  assert.deepEqual(await cells('Values in the documents', /^name/), ['"nap-2"', '"nap-10" differs'])
  assert.deepEqual(await cells('Values in the documents', /^stages › nap › sleep › mean_ms/), ['2', '10 differs'])
  // A nap of 10 ms takes five times as long as one of 2 ms; a busy machine delays both and so lowers the ratio.
  const [fast, slow] = await cells('Stages and queues', /^nap/)
  assert.match(fast, /^\d+\.\d+\u202fms$/)
  assert.match(slow, /^\d\d\.\d\u202fms\s*▲ (\d\.\d×|\d+\u202f% more), worse$/)
  assert.match((await cells('Whole run', /^Throughput/))[1], /▼ \d+\u202f% less, worse$/)
  assert.deepEqual((await cells('Whole run', /^Samples \d/))[1], '200 = same')
  await page.locator('canvas').first().waitFor()
  await shot(page, 'compare')
  assert.deepEqual(await violations(page), [])
})

test('every page fits a phone, has a dark mode, and sends requests to its own host only', async () => {
  const runs = (await server.ask('GET', '/runs?q=sleepy')).body.items
  const run = `/runs/${runs[0].id}`
  const naps = (await server.ask('GET', '/runs?q=nap-')).body.items
  const compare = `/compare?runs=${naps.map(({ id }) => id).join(',')}`
  /** Every page, with an element that appears with its data. */
  const pages = [
    ['/', page.getByRole('group', { name: 'Last runs' }).getByRole('row').nth(1)],
    ['/runs', page.getByRole('group', { name: 'Runs' }).getByRole('row').nth(1)],
    [run, page.locator('.heat canvas')],
    [`${run}/stages/1:nap`, page.getByText('As a table')],
    [`${run}/errors`, page.getByText('No sample has failed.')],
    [`${run}/logs`, page.getByText(/modules have not logged anything/)],
    [`${run}/spec`, page.getByText('No stage of this pipeline runs a module.')],
    ['/runs/new', page.getByText('✓ Valid')],
    ['/modules', page.getByRole('link', { name: 'image', exact: true })],
    ['/modules/image', page.getByRole('heading', { name: /^Runs that used version/ })],
    [compare, page.locator('canvas').first()],
    ['/system', page.getByRole('heading', { name: 'Limits' })],
    ['/api/docs', page.getByRole('heading', { name: 'The OpenAPI document' })],
    ['/nowhere', page.getByText('No page has the address')],
  ]
  for (const [name, size, scheme] of [['phone', { width: 390, height: 800 }, 'light'], ['dark', { width: 1280, height: 900 }, 'dark'], ['light', { width: 1280, height: 900 }, 'light']]) {
    await page.setViewportSize(size)
    await page.emulateMedia({ colorScheme: scheme })
    for (const [path, content] of pages) {
      await open(path)
      await content.waitFor()
      await page.getByText(/^(Reading|Loading|Checking)/).first().waitFor({ state: 'detached' })
      // Charts are drawn when they scroll into view.
      if (path === run) {
        await page.evaluate(() => document.querySelector('.room')?.scrollIntoView())
        await page.locator('.chart').nth(5).waitFor()
      }
      assert.equal(await overflows(page), false, `${path} is wider than ${size.width} px`)
      assert.deepEqual(await violations(page), [], `${path} ${name}`)
      await shot(page, `${name}-${path.replaceAll(/[0-9a-f]{8}-[^/,]*|[^a-z]+/g, '-')}`)
    }
  }
})

test('a page reconnects after a restart of the server', async () => {
  await page.setViewportSize({ width: 1280, height: 900 })
  const run = (await server.ask('POST', '/runs', sleepy(100000, 2))).body
  await open(`/runs/${run.id}`)
  await page.getByText(/live · \d/).waitFor()
  const { port } = server
  const before = browser.complaints.length
  await server.stop('SIGKILL')
  server = await serve({ data: join(data.path, 'data'), port, args: ['--store', `pictures=${join(data.path, 'pictures')}`] })
  await page.getByText(/^\W*interrupted$/).first().waitFor()
  // The browser itself logs the lost connection: these lines are not from the page.
  browser.complaints.splice(before)
})

test('the browser console has no errors, and all requests went to the server', () => {
  // The browser itself logs the status 422 of refused uploads and invalid documents.
  const ours = browser.complaints.filter((line) => !/status of 422/.test(line))
  assert.deepEqual(ours, [])
})
