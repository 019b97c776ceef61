// Time until a page shows its content and its main thread has no more long tasks, with the processor slowed down 4 times.
// Fails when a page takes more than 1.5 s.
import { browse, finished, folder, serve, sleepy } from './kit.mjs'

const [SLOWER, MOST_MS, QUIET_MS] = [4, 1500, 2500]

const data = folder()
const server = await serve({ data: data.path, env: { PENSTOCK_LOG: 'error' } })
let failed = false
try {
  const stages = Array.from({ length: 12 }, (_, place) => ({ sleep: { name: `stage-${place + 1}`, mean_ms: 5 } }))
  const run = await finished(server, { ...sleepy(500, 5), stages })
  for (const [path, content] of [
    ['/', 'h1'],
    ['/runs', 'table tbody tr'],
    [`/runs/${run.id}`, 'ol.graph'],
    [`/runs/${run.id}/stages/1:stage-1`, '.page svg rect'],
    ['/runs/new', '.editor'],
    ['/modules', 'h1'],
    ['/system', 'h2'],
  ]) {
    const browser = await browse(server.url)
    try {
      await browser.page.addInitScript((content) => {
        window.shown_ms = null
        window.long_ms = 0
        new PerformanceObserver((list) => list.getEntries().forEach(({ startTime, duration }) => (window.long_ms = Math.max(window.long_ms, startTime + duration)))).observe({ type: 'longtask', buffered: true })
        const look = () => {
          if (document.querySelector(content)) window.shown_ms = performance.now()
          else requestAnimationFrame(look)
        }
        requestAnimationFrame(look)
      }, content)
      const cdp = await browser.page.context().newCDPSession(browser.page)
      await cdp.send('Emulation.setCPUThrottlingRate', { rate: SLOWER })
      await browser.page.goto(server.url + path)
      await browser.page.waitForFunction((quiet) => window.shown_ms !== null && performance.now() - Math.max(window.shown_ms, window.long_ms) > quiet, QUIET_MS)
      const { shown, long } = await browser.page.evaluate(() => ({ shown: window.shown_ms, long: window.long_ms }))
      const interactive = Math.max(shown, long)
      failed ||= interactive > MOST_MS
      console.log(`${interactive.toFixed(0).padStart(6)} ms, content after ${shown.toFixed(0)} ms  ${path.replace(run.id, '{id}')}`)
    } finally {
      await browser.close()
    }
  }
} finally {
  await server.stop()
  data.remove()
}
process.exitCode = failed ? 1 : 0
