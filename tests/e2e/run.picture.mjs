// Takes the picture of the README, the page of a live run that data loading limits, and writes it into a file.
import assert from 'node:assert/strict'

import { browse, folder, open, serve } from './kit.mjs'

/** Time for the windows of the verdict and of the charts to fill. */
const MEASURED_MS = 45_000

const [file] = process.argv.slice(2)
assert.ok(file, 'name the file of the picture')
const document = {
  name: 'photos',
  threads: 4,
  seed: 7,
  source: { range: { count: 100_000 } },
  stages: [
    { sleep: { name: 'download', mean_ms: 42, jitter: 0.4, concurrency: 8, on: 'async' } },
    { sleep: { name: 'decode', mean_ms: 18, jitter: 0.3, concurrency: 2, on: 'thread' } },
    { sleep: { name: 'augment', mean_ms: 4, jitter: 0.5, on: 'thread' } },
    { aggregate: { size: 4 } },
  ],
  sink: { queue: 3 },
  consumer: { simulate: { step_ms: 25 } },
}

const data = folder()
const server = await serve({ data: data.path })
const browser = await browse(server.url)
try {
  const run = (await server.ask('POST', '/runs', document)).body
  const { page } = browser
  await page.waitForTimeout(MEASURED_MS)
  await open(page, server, `/runs/${run.id}?last=30`)
  // Charts and tables are loaded when they come near the screen.
  for (const part of ['.room, .legend', '.columns .chart', '[aria-label="Queues"]', 'main > :last-child']) {
    const place = page.locator(part).last()
    await place.waitFor({ state: 'attached' })
    await place.scrollIntoViewIfNeeded()
    await page.waitForTimeout(2000)
  }
  const { verdict } = (await server.ask('GET', `/runs/${run.id}/figures?last_s=30`)).body
  assert.equal(verdict.answer, 'yes', verdict.sentence)
  await page.getByText('Is data loading the bottleneck?').waitFor()
  await page.evaluate(() => window.scrollTo(0, 0))
  await page.waitForTimeout(500)
  await page.screenshot({ path: file, fullPage: true })
  console.log(`${file}: ${verdict.sentence}`)
} finally {
  await browser.close()
  await server.stop()
  data.remove()
}
