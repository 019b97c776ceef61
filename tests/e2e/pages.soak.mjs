// A tab that shows 20 live pipelines of 12 stages: memory of its scripts over time, and its share of a core.
//   make soak-pages [TIME=seconds]
// Fails when the memory grows by more than a tenth from the first quarter of the time to the last, or the tab takes 15 % of a core.
import { join } from 'node:path'

import { browse, folder, open, serve, sleepy, write } from './kit.mjs'

const SECONDS = Number(process.argv[2] ?? 300)
const [RUNS, STAGES, EVERY_S] = [20, 12, 10]
const [GROWTH, CORE] = [1.1, 0.15]

const data = folder()
const config = write(join(data.path, 'penstock.json'), JSON.stringify({ budget: { threads: RUNS } }))
const server = await serve({ data: join(data.path, 'data'), args: ['--config', config], env: { PENSTOCK_LOG: 'error' } })
const browser = await browse(server.url)
let failed = false
try {
  const stages = Array.from({ length: STAGES }, (_, place) => ({ sleep: { name: `stage-${place + 1}`, mean_ms: 200, jitter: 0.5, concurrency: 4 } }))
  for (let run = 0; run < RUNS; run++) {
    const { status, body } = await server.ask('POST', '/runs', { ...sleepy(100_000_000, 5), name: `run-${run + 1}`, stages })
    if (status !== 201) throw new Error(JSON.stringify(body))
  }
  const { page } = browser
  await open(page, server, '/')
  const cdp = await page.context().newCDPSession(page)
  await cdp.send('Performance.enable')
  const read = async () => {
    await cdp.send('HeapProfiler.collectGarbage')
    const { metrics } = await cdp.send('Performance.getMetrics')
    const of = (name) => metrics.find((metric) => metric.name === name).value
    return { at_s: of('Timestamp'), busy_s: of('TaskDuration'), heap: of('JSHeapUsedSize'), nodes: of('Nodes') }
  }
  const samples = [await read()]
  console.log('seconds  heap/MB  nodes  core')
  while (samples.at(-1).at_s - samples[0].at_s < SECONDS) {
    await page.waitForTimeout(EVERY_S * 1000)
    const [before, now] = [samples.at(-1), await read()]
    samples.push(now)
    const share = (now.busy_s - before.busy_s) / (now.at_s - before.at_s)
    console.log(`${(now.at_s - samples[0].at_s).toFixed(0).padStart(7)}  ${(now.heap / 1e6).toFixed(2).padStart(7)}  ${String(now.nodes).padStart(5)}  ${(100 * share).toFixed(1)} %`)
  }
  const quarter = Math.max(1, Math.floor(samples.length / 4))
  const mean = (part) => part.reduce((sum, { heap }) => sum + heap, 0) / part.length
  // Omits the first sample, which was taken before the page was complete.
  const growth = mean(samples.slice(-quarter)) / mean(samples.slice(1, 1 + quarter))
  const core = (samples.at(-1).busy_s - samples[0].busy_s) / (samples.at(-1).at_s - samples[0].at_s)
  console.log(`heap x ${growth.toFixed(3)}, ${(100 * core).toFixed(1)} % of a core`)
  failed = growth > GROWTH || core > CORE || browser.complaints.length > 0
  browser.complaints.forEach((line) => console.log(line))
} finally {
  await browser.close()
  await server.stop()
  data.remove()
}
process.exitCode = failed ? 1 : 0
