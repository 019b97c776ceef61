// Measures the list of runs with a history of RUNS runs (1000): the server's response times, and the times from a key press or
// click until the page shows the rows.
//   make bench-lists
// Exits with 1 if a median is above LIMIT_MS (200).
import { setTimeout as pause } from 'node:timers/promises'

import { browse, folder, open, serve, sleepy } from './kit.mjs'

const RUNS = Number(process.env.RUNS ?? 1000)
const LIMIT_MS = Number(process.env.LIMIT_MS ?? 200)
const REPEATS = 7
const SUBMITTERS = 4

const data = folder()
const server = await serve({ data: data.path, env: { RUST_LOG: 'warn' } })
const found = []
const median = (times) => times.toSorted((a, b) => a - b)[Math.floor(times.length / 2)]
const note = (what, times) => {
  found.push(median(times))
  console.log(`${what.padEnd(58)} median ${median(times).toFixed(0).padStart(4)} ms, most ${Math.max(...times).toFixed(0).padStart(4)} ms`)
}
let browser
try {
  let number = 0
  const submit = async () => {
    while (number < RUNS) {
      const at = number++
      const fails = at % 5 === 0 ? { stages: [{ sleep: { name: 'nap', mean_ms: 0, fail_rate: 0.5 } }] } : {}
      const document = sleepy(1 + (at % 50), 0, { name: `run-${at}`, ...fails })
      let made
      // The server answers 429 while its queue of waiting runs is full.
      while ((made = await server.ask('POST', `/runs?tags=batch-${at % 10},all`, document)).status === 429) await pause(20)
      if (made.status !== 201) throw new Error(JSON.stringify(made.body))
    }
  }
  await Promise.all(Array.from({ length: SUBMITTERS }, submit))
  while ((await server.ask('GET', '/runs?state=queued,running,draining&limit=1')).body.items.length > 0) await pause(100)
  const kept = (await server.ask('GET', '/system')).body.storage.runs
  if (kept !== RUNS) throw new Error(`${kept} runs are kept, not ${RUNS}`)
  console.log(`${RUNS} runs, ${REPEATS} repeats of each`)

  const answers = { 'first page': '', 'by throughput': 'sort=-samples_per_s', 'by verdict': 'sort=verdict', 'by failed samples': 'sort=-failed_samples', 'one state': 'state=completed', 'one tag': 'tag=batch-3', 'a text': 'q=run-99', 'page of 200': 'limit=200&sort=name' }
  for (const [what, query] of Object.entries(answers)) {
    const times = []
    for (let repeat = 0; repeat < REPEATS; repeat++) {
      const from = performance.now()
      await server.ask('GET', `/runs?${query}`)
      times.push(performance.now() - from)
    }
    note(`answer, ${what}`, times)
  }

  browser = await browse(server.url)
  const { page } = browser
  await open(page, server, '/runs')
  await page.locator('tbody tr').nth(49).waitFor()

  /** Time in the page from a click to the frame that shows the rows of the next response. */
  const press = (selector, text) =>
    page.evaluate(
      ([selector, text]) =>
        new Promise((resolve, reject) => {
          const target = [...document.querySelectorAll(selector)].find((found) => found.textContent.includes(text))
          if (!target) return reject(new Error(`no button "${text}"`))
          const list = document.querySelector('section[aria-label="List of runs"]')
          const from = performance.now()
          let asked = false
          const drawn = new MutationObserver(() => {
            const isBusy = list.getAttribute('aria-busy') === 'true'
            asked ||= isBusy
            if (isBusy || !asked) return
            drawn.disconnect()
            // One frame after the change, its layout and paint are done.
            requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - from)))
          })
          drawn.observe(list, { attributes: true, attributeFilter: ['aria-busy'] })
          target.click()
        }),
      [selector, text],
    )
  const measured = async (what, selector, text) => {
    const times = []
    for (let repeat = 0; repeat < REPEATS; repeat++) {
      times.push(await press(selector, text))
      await pause(150)
    }
    note(what, times)
  }
  await measured('sorted by throughput', 'thead button', 'Throughput')
  await measured('sorted by name', 'thead button', 'Run')
  await measured('sorted by duration', 'thead button', 'Duration')
  await measured('filtered by state', '[aria-label=States] button', 'completed')
  const typed = []
  for (let repeat = 0; repeat < REPEATS; repeat++) {
    // Time from the last key press to the frame that shows the rows, including the delay after typing.
    typed.push(
      await page.evaluate(
        (text) =>
          new Promise((resolve) => {
            const field = document.querySelector('input[type=search]')
            field.value = text
            const from = performance.now()
            field.dispatchEvent(new Event('input', { bubbles: true }))
            const look = () => {
              const shown = [...document.querySelectorAll('tbody th > a')].map((link) => link.textContent)
              if (performance.now() - from > 10_000) throw new Error('the list shows no answer')
              if (shown.length > 0 && shown.every((name) => name.includes(text))) requestAnimationFrame(() => resolve(performance.now() - from))
              else requestAnimationFrame(look)
            }
            look()
          }),
        `run-${90 + repeat}`,
      ),
    )
    await pause(150)
  }
  note('filtered by text, with the pause in typing', typed)

  // Opens the list of runs again, and loads all runs page by page.
  await open(page, server, '/modules')
  await open(page, server, '/runs')
  await page.locator('tbody tr').nth(49).waitFor()
  const more = []
  while ((await page.locator('tbody tr').count()) < RUNS) {
    // The button has another name while the list reloads on its own.
    await page.locator('section[aria-busy=false]').waitFor()
    more.push(await press('button', 'More runs'))
  }
  if ((await page.locator('tbody tr').count()) !== RUNS) throw new Error('the list has too many runs')
  note(`50 more rows, up to ${RUNS}`, more)
  const from = performance.now()
  await page.getByRole('checkbox', { name: 'Select all' }).check()
  await page.getByText(`${RUNS} selected`).waitFor()
  console.log(`all ${RUNS} rows selected in ${(performance.now() - from).toFixed(0)} ms, driver included`)
  await measured(`sorted by samples, from ${RUNS} rows`, 'thead button', 'Samples')
} finally {
  await browser?.close()
  await server.stop()
  data.remove()
}
if (Math.max(...found) > LIMIT_MS) {
  console.error(`a median is above ${LIMIT_MS} ms`)
  process.exitCode = 1
}
