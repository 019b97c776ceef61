// Bytes that the first load of each page transfers. One run is long enough for a figure per pixel of its charts.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { after, before, test } from 'node:test'

import { browse, finished, folder, modules, open as visit, serve, sleepy, write } from './kit.mjs'

const PAGE_KB = 70
const CHARTS_KB = 200
const STAGES = 12
/** Duration of the long run, in which it records more rows of 250 ms than a chart has pixels. */
const LONG_S = 125
const data = folder()
let server, long, bench, short

before(async () => {
  server = await serve({ data: join(data.path, 'data'), args: ['--module', join(modules, 'image.wasm')], env: { PENSTOCK_LOG: 'error' } })
  const stages = Array.from({ length: STAGES }, (_, place) => ({ sleep: { name: `stage-${place + 1}`, mean_ms: 25 + 3 * place, jitter: 0.6, concurrency: 4 } }))
  long = (await server.ask('POST', `/runs?for_s=${LONG_S}`, { ...sleepy(1_000_000, 5), name: 'long', stages })).body
  short = await finished(server, sleepy(100, 5))
  const config = write(join(data.path, 'bench.json'), JSON.stringify({ name: 'in-memory', source: { memory: { count: 200, bytes: 20_000, latency_ms: 1 } }, actions: [{ whole_set: { workers: [2, 4], repeats: 2 } }] }))
  const ran = spawnSync(process.env.PENSTOCK, ['bench', 'storage', config, '--push', '--server', server.url, '--quiet'], { encoding: 'utf8' })
  assert.equal(ran.status, 0, ran.stderr)
  bench = (await server.ask('GET', '/benchmarks')).body.items[0].id
})

after(async () => {
  await server?.stop()
  data.remove()
})

/** Total kilobytes of a page's answers in a browser with an empty cache, and the largest of them; `then` waits for the page's content. */
async function weigh(path, then) {
  const browser = await browse(server.url)
  try {
    const cdp = await browser.page.context().newCDPSession(browser.page)
    await cdp.send('Network.enable')
    const [urls, sizes] = [new Map(), []]
    cdp.on('Network.responseReceived', ({ requestId, response }) => urls.set(requestId, response.url))
    cdp.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => sizes.push([encodedDataLength, urls.get(requestId)]))
    await visit(browser.page, server, path)
    await then?.(browser.page)
    await browser.page.getByText(/^(Reading|Loading|Checking)/).first().waitFor({ state: 'detached' })
    // Pending answers belong to the first load.
    for (let before = -1; before !== sizes.length; ) {
      before = sizes.length
      await browser.page.waitForTimeout(700)
    }
    sizes.sort(([one], [other]) => other - one)
    const kb = sizes.reduce((sum, [size]) => sum + size, 0) / 1000
    return { kb, told: `${path}: ${kb.toFixed(1)} kB in ${sizes.length} answers, of them ${sizes.slice(0, 5).map(([size, url]) => `${(size / 1000).toFixed(1)} ${url?.slice(server.url.length, server.url.length + 90)}`).join(', ')}`, asked: browser.asked }
  } finally {
    await browser.close()
  }
}

/** Scrolls to the charts until all of them are drawn. */
async function charts(page) {
  for (let place = 0; place < 6; place++) {
    await page.waitForFunction((place) => {
      const chart = document.querySelectorAll('.columns .chart')[place] ?? document.querySelector('.room, .legend')
      chart?.scrollIntoView({ block: 'center' })
      return chart?.matches('.chart')
    }, place)
    await page.waitForTimeout(200)
  }
  await page.getByText(/buckets of/).waitFor()
}

test(`the first load of the start page with a live run takes at most ${PAGE_KB} kB`, async (t) => {
  const { kb, told } = await weigh('/', (page) => page.locator(`a[href="/runs/${long.id}"] [title*="readiness"]`).first().waitFor())
  t.diagnostic(told)
  assert.equal((await server.ask('GET', `/runs/${long.id}`)).body.state, 'running')
  assert.ok(kb <= PAGE_KB, told)
})

for (const path of ['/runs', '/modules', '/modules/image', '/bench', '/system', '/api/docs', 'run/errors', 'run/logs', 'run/spec']) {
  test(`the first load of ${path} takes at most ${PAGE_KB} kB`, async (t) => {
    const { kb, told } = await weigh(path.replace(/^run/, `/runs/${short.id}`))
    t.diagnostic(told)
    assert.ok(kb <= PAGE_KB, told)
  })
}

for (const [name, path, then] of [
  ['the editor', () => '/runs/new', (page) => page.getByText('✓ Valid').waitFor()],
  ['a stage', () => `/runs/${short.id}/stages/1:nap`, (page) => page.getByText('As a table').waitFor()],
  ['a benchmark', () => `/bench/${bench}`, (page) => page.locator('.u-wrap canvas').nth(2).waitFor()],
  ['two runs beside each other', () => `/compare?runs=${short.id},${long.id}`, (page) => page.locator('canvas').first().waitFor()],
]) {
  test(`the first load of ${name} takes at most ${CHARTS_KB} kB`, async (t) => {
    const { kb, told } = await weigh(path(), then)
    t.diagnostic(told)
    assert.ok(kb <= CHARTS_KB, told)
  })
}

test(`a long run with all of its charts takes at most ${CHARTS_KB} kB`, async (t) => {
  for (let run = long; ['queued', 'running', 'draining'].includes(run.state); run = (await server.ask('GET', `/runs/${long.id}`)).body) await new Promise((wait) => setTimeout(wait, 1000))
  const { kb, told, asked } = await weigh(`/runs/${long.id}?from=0&to=${LONG_S}`, charts)
  t.diagnostic(told)
  const points = asked.filter((line) => /\/series\?.*qps/.test(line)).map((line) => Number(new URL(line.slice(4)).searchParams.get('points')))
  assert.ok(points.length > 0 && points.every((count) => count > 400), `${points} buckets are too few to fill the charts`)
  assert.ok(kb <= CHARTS_KB, told)
})
