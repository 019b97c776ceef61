// Time until a page shows its content and its main thread has no more long tasks, with the processor slowed down 4 times.
// Reports the median of 5 loads of each page, each in a new browser with an empty cache. Fails when a median exceeds 1.5 s.
import { browse, finished, folder, serve, sleepy } from './kit.mjs'

const [LOADS, SLOWER, MOST_MS, QUIET_MS] = [5, 4, 1500, 2500]

const data = folder()
const server = await serve({ data: data.path, env: { PENSTOCK_LOG: 'error' } })

/** Milliseconds until the content of a page is shown, and until the page is interactive. */
async function load(path, content) {
  const browser = await browse(server.url)
  try {
    await browser.page.addInitScript((content) => {
      window.shown_ms = null
      window.long_ms = 0
      new PerformanceObserver((list) => list.getEntries().forEach(({ startTime, duration }) => (window.long_ms = Math.max(window.long_ms, startTime + duration)))).observe({ type: 'longtask', buffered: true })
      const look = () => {
        // ` > #shadow > ` leads into the shadow tree of an element.
        if (content.split(' > #shadow > ').reduce((root, part) => (root?.shadowRoot ?? root)?.querySelector(part), document)) window.shown_ms = performance.now()
        else requestAnimationFrame(look)
      }
      requestAnimationFrame(look)
    }, content)
    const cdp = await browser.page.context().newCDPSession(browser.page)
    await cdp.send('Emulation.setCPUThrottlingRate', { rate: SLOWER })
    await browser.page.goto(server.url + path)
    await browser.page.waitForFunction((quiet) => window.shown_ms !== null && performance.now() - Math.max(window.shown_ms, window.long_ms) > quiet, QUIET_MS)
    return await browser.page.evaluate(() => ({ shown: window.shown_ms, interactive: Math.max(window.shown_ms, window.long_ms) }))
  } finally {
    await browser.close()
  }
}

const median = (loads, time) => loads.map((load) => load[time]).sort((one, other) => one - other)[Math.floor(LOADS / 2)]

let failed = false
try {
  const stages = Array.from({ length: 12 }, (_, place) => ({ sleep: { name: `stage-${place + 1}`, mean_ms: 5 } }))
  const run = await finished(server, { ...sleepy(500, 5), stages })
  for (const [path, content] of [
    ['/', 'h1'],
    ['/runs', 'table tbody tr'],
    [`/runs/${run.id}`, 'ol.graph'],
    [`/runs/${run.id}/stages/1:stage-1`, '.page svg rect'],
    ['/runs/new', '.editor > #shadow > .cm-content'],
    ['/modules', 'h1'],
    ['/system', 'h2'],
  ]) {
    const loads = []
    while (loads.length < LOADS) loads.push(await load(path, content))
    const interactive = median(loads, 'interactive')
    failed ||= interactive > MOST_MS
    const range = [Math.min, Math.max].map((end) => end(...loads.map(({ interactive }) => interactive)).toFixed(0))
    console.log(`${interactive.toFixed(0).padStart(6)} ms (${range.join(' to ')}), content after ${median(loads, 'shown').toFixed(0)} ms  ${path.replace(run.id, '{id}')}`)
  }
} finally {
  await server.stop()
  data.remove()
}
process.exitCode = failed ? 1 : 0
