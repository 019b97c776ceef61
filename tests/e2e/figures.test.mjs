// Figures of a page agree with each other and with the API, at random moments and in random windows of different runs.
import assert from 'node:assert/strict'
import { mkdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { after, before, test } from 'node:test'

import { browse, finished, folder, modules, open as visit, serve, write } from './kit.mjs'

const ui = new URL('../../web/ui/', import.meta.url)
const { transpileModule } = createRequire(new URL('package.json', ui))('typescript')
/** Functions with which the pages format figures, so that equal figures have equal texts. */
const source = readFileSync(new URL('src/parts/format.ts', ui), 'utf8')
const options = { target: 'es2022', module: 'esnext' }
const { count, rate, samplesRate, batchesRate, seconds, share } = await import(
  `data:text/javascript;base64,${Buffer.from(transpileModule(source, { compilerOptions: options }).outputText).toString('base64')}`
)

const WINDOWS = 5
/** Seed of the moments and windows; a failure names it. */
const SEED = Number(process.env.SEED ?? Date.now() % 1_000_000)
const data = folder()
let server, browser, page
/** The last response with figures that the page has received. */
let received = null
/** True while responses with figures are withheld from the page. */
let frozen = false
let looked = 0
let seen = { figures: 0, twice: 0 }

before(async () => {
  const texts = join(data.path, 'texts')
  mkdirSync(texts)
  const records = Array.from({ length: 480 }, (_, key) => `${JSON.stringify({ key: String(key), kind: 'aabc'[key % 4], level: key % 3 })}\n`)
  write(join(texts, 'records.ndjson'), records.join(''))
  const args = ['--threads', '8', '--module', join(modules, 'guest_misbehaving.wasm'), '--store', `texts=${texts}`]
  server = await serve({ data: join(data.path, 'data'), args, env: { PENSTOCK_LOG: 'error' } })
  browser = await browse(server.url)
  page = browser.page
  await page.route('**/api/v1/runs/*/figures*', async (route) => {
    const answer = await route.fetch().catch(() => null)
    // There is no response if the page has aborted its request; a frozen page receives none.
    if (!answer || frozen) return route.abort().catch(() => undefined)
    const body = await answer.text()
    await route.fulfill({ response: answer, body }).then(() => (received = JSON.parse(body)), () => undefined)
  })
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
})

let state = SEED
/** A number from 0 to 1 (Park and Miller). */
const random = () => (state = (state * 48_271 + 1) % 2_147_483_647) / 2_147_483_647

const sleep = (name, mean_ms, more = {}) => ({ sleep: { name, mean_ms, ...more } })
const tolerant = { max_failures: { rate: 1 } }
const route = (field, paths, more = {}) => ({ route: { by: { field }, paths, queue: 4, ...more } })
const documents = {
  failures: { source: { range: { count: 163 } }, stages: [sleep('read', 2), sleep('decode', 8, { concurrency: 2, fail_rate: 0.25 })], consumer: { simulate: { step_ms: 4 } }, ...tolerant },
  batches: { source: { range: { count: 700 } }, stages: [sleep('read', 3), sleep('decode', 8, { concurrency: 3 }), { aggregate: { size: 8 } }], consumer: { simulate: { step_ms: 12 } } },
  'fan-out': { source: { range: { count: 500 } }, stages: [sleep('read', 4), { wasm: { name: 'split', module: 'misbehaving', params: { how: 'many' }} }], consumer: { discard: {} } },
  empty: { source: { range: { count: 40 } }, stages: [sleep('read', 2), { wasm: { name: 'filter', module: 'misbehaving', params: { how: 'drop' } } }], consumer: { discard: {} } },
  // Samples of the kind `c` have no path and fail.
  routes: {
    source: { records: { store: 'texts', key: 'records.ndjson' } },
    stages: [sleep('read', 3), route('kind', { a: [sleep('wide', 4, { concurrency: 2 }), route('level', { 0: [sleep('deep', 3)] }, { else: [] })], b: [] }, { on_error: 'skip' }), { aggregate: { size: 8 } }],
    consumer: { simulate: { step_ms: 12 } },
    ...tolerant,
  },
  mixture: {
    source: { mix: { sources: { texts: { source: { records: { store: 'texts', key: 'records.ndjson' } }, weight: 3 }, numbers: { source: { range: { count: 90 } } } } } },
    stages: [sleep('read', 2), sleep('decode', 5, { concurrency: 2, fail_rate: 0.1 })],
    consumer: { simulate: { step_ms: 3 } },
    ...tolerant,
  },
  fast: { source: { range: { count: 60_000 } }, stages: [{ aggregate: { size: 100 } }], consumer: { discard: {} } },
  'slow-consumer': { source: { range: { count: 90 } }, stages: [sleep('read', 2)], consumer: { simulate: { step_ms: 25 } } },
  'no-warm-up': { source: { range: { count: 3 } }, stages: [sleep('read', 1)], consumer: { discard: {} } },
  stopped: { source: { range: { count: 1_000_000 } }, stages: [sleep('read', 5), sleep('decode', 9, { fail_rate: 0.01 })], consumer: { simulate: { step_ms: 5 } }, ...tolerant },
  live: { source: { range: { count: 1_000_000 } }, stages: [sleep('read', 2), sleep('decode', 6, { concurrency: 2 })], consumer: { simulate: { step_ms: 5 } } },
  'live-batches': { source: { range: { count: 1_000_000 } }, stages: [sleep('read', 1, { fail_rate: 0.05 }), { aggregate: { size: 4 } }, sleep('stack', 9, { on: 'thread' })], consumer: { simulate: { step_ms: 6 } }, ...tolerant },
}

/** Text of a figure by its name, from an answer of the API. */
function textOf(name, figures) {
  const [, figure, id] = /^([^:]+):(.*)$/.exec(name)
  const { total, ledger } = figures
  const counted = (counts) => (counts === undefined || counts === null ? null : count(Math.abs(counts)))
  if (id === 'run') {
    const rates = { samples_per_s: samplesRate, batches_per_s: batchesRate, consumer_waited: share }
    if (figure === 'total.failed_samples') return count(total.failed_samples)
    if (figure.startsWith('total.')) return counted(total.samples[figure.slice('total.'.length)])
    return rates[figure]?.(figures[figure]) ?? counted(ledger.total[figure])
  }
  if (figure.startsWith('ledger.')) return count(ledger.stages.find((stage) => stage.id === id)[figure.slice('ledger.'.length)])
  const queue = figures.queues.find((queue) => queue.id === id)
  if (queue) {
    if (figure === 'samples_per_s') return rate(figures.queue_samples_per_s[id])
    const format = { num_items: count, qps: rate, readiness: share, starved: share }[figure] ?? seconds
    assert.ok(figure in queue, name)
    return format(queue[figure])
  }
  const { kind, task } = figures.stages.find((stage) => stage.id === id)
  if (figure in task) return (figure.endsWith('_s') ? seconds : count)(task[figure])
  const slots = figure.replace('slots.', '')
  // A table shows a dash for a kind of wait that cannot occur in the stage.
  const isOf = slots !== figure || { thread_wait: task.ave_thread_wait_s !== null, permit_wait: kind === 'fetch' }[slots]
  assert.ok(task.shares === null || slots in task.shares, name)
  return share(isOf === false ? null : task.shares?.[slots])
}

/** A pattern for the text with which the page names a window. */
function nameOf({ kind, from_s, to_s }) {
  if (kind === 'whole') return /^whole run$/
  if (kind === 'steady') return /^whole run without warm-up$/
  return kind === 'last' ? new RegExp(`^last ${Math.round(to_s - from_s)} s$|^last \\d+ min$`) : /^[\d:.]+ to [\d:.]+$/
}

/** Opens an address, freezes the page after a while, and compares its figures. */
async function look(address, wait_ms, opens = false) {
  const about = `${address} after ${Math.round(wait_ms)} ms, SEED=${SEED}`
  ;[frozen, received] = [false, null]
  await visit(page, server, address)
  await page.locator('[data-figure="samples_per_s:run"]').first().waitFor()
  if (opens) {
    await page.getByRole('button', { name: 'Try other settings' }).click()
    await page.locator('tr.rate').waitFor()
  }
  await page.waitForTimeout(wait_ms)
  frozen = true
  // By then the page has drawn all responses that arrived before it was frozen.
  await page.waitForTimeout(400)
  const shown = await page.evaluate(() => ({
    figures: [...document.querySelectorAll('[data-figure]')].map((element) => [element.dataset.figure, element.textContent]),
    window: document.querySelector('dd.window').textContent,
    verdict: document.querySelector('.verdict .sentence')?.textContent ?? null,
    periods: [...document.querySelectorAll('.verdict .question .faint')].map((element) => element.textContent.replace('· ', '')),
  }))
  const figures = received
  assert.match(shown.window, nameOf(figures.window), about)
  for (const period of shown.periods) assert.equal(period, shown.window, about)
  const texts = new Map()
  for (const [name, text] of shown.figures) {
    seen.figures++
    if (texts.has(name)) {
      seen.twice++
      assert.equal(text, texts.get(name), `${name} is shown twice: ${about}`)
    }
    texts.set(name, text)
    assert.equal(text, textOf(name, figures), `${name}: ${about}`)
  }
  for (const name of ['total.delivered:run', 'samples_per_s:run', 'consumer_waited:run']) assert.ok(texts.has(name), `${name}: ${about}`)
  const sentence = figures.verdict?.sentence.replaceAll('`', '') ?? null
  if (!address.includes('/stages/')) assert.equal(shown.verdict, sentence, about)
  // Figures in the verdict's sentence have the same digits as those elsewhere on the page.
  const said = /([\d.,]+) samples\/s/.exec(sentence ?? '')?.[1]
  if (said) assert.equal(said.replaceAll(',', '\u202f'), texts.get('samples_per_s:run').replace('\u202fsamples/s', ''), `${sentence}: ${about}`)
  const waited = /consumer waits ([\d.]+) % of the time/.exec(sentence ?? '')?.[1]
  if (waited) assert.equal(share(Number(waited) / 100), texts.get('consumer_waited:run'), `${sentence}: ${about}`)
  looked++
  return figures
}

for (const [name, document] of Object.entries(documents)) {
  test(`figures agree: ${name}`, async () => {
    const isLive = name.startsWith('live')
    const whole = { name, threads: 2, ...document }
    let run
    if (isLive || name === 'stopped') {
      const made = await server.ask('POST', '/runs', whole)
      assert.equal(made.status, 201, JSON.stringify(made.body))
      run = made.body
      await new Promise((wait) => setTimeout(wait, 1500 + 1500 * random()))
      if (name === 'stopped') run = (await server.ask('POST', `/runs/${run.id}/stop`)).body
    } else {
      run = await finished(server, whole)
    }
    const length = () => run.elapsed_s ?? 4
    for (let place = 0; place < WINDOWS; place++) {
      const [one, other] = [random() * length(), random() * length()].map((at_s) => at_s.toFixed(2))
      const range = `from=${Math.min(one, other)}&to=${Math.max(one, other) + 0.3}`
      const query = ['', range, `last=${1 + Math.floor(3 * random())}`, 'last=all', `from=0&to=${length() + 1000}`][place]
      const path = place === 1 ? `/runs/${run.id}/stages/${encodeURIComponent('1:' + (document.stages[0].sleep?.name ?? 'aggregate'))}` : `/runs/${run.id}`
      const figures = await look(`${path}?${query}`, isLive ? 2500 * random() : 100 * random(), place === 2)
      if (isLive) continue
      // The figures of an ended run no longer change, so the API returns exactly what the page received.
      const { window } = figures
      const asked = { '': '', [range]: `from_s=${range.match(/from=([\d.]+)/)[1]}&to_s=${range.match(/to=([\d.]+)/)[1]}`, 'last=all': '' }[query] ?? query.replace('last=', 'last_s=').replace('from=', 'from_s=').replace('to=', 'to_s=')
      const again = await server.ask('GET', `/runs/${run.id}/figures?${asked}`)
      assert.deepEqual(again.body, figures, `${query} of ${JSON.stringify(window)}`)
    }
    if (isLive) await server.ask('POST', `/runs/${run.id}/stop`)
    else await addUp(run)
  })
}

/** Counts of all nodes and queues of a run in a window, by name. */
function countsOf({ stages, queues, queue_samples_per_s, ledger }) {
  const counts = {}
  for (const { id, task } of stages) counts[`tasks of ${id}`] = task.num_tasks
  for (const { id, ...book } of ledger.stages) for (const [what, samples] of Object.entries(book)) counts[`${what} of ${id}`] = samples
  for (const { id, num_items, elapsed_s } of queues) {
    counts[`items of ${id}`] = num_items
    counts[`samples of ${id}`] = Math.round((queue_samples_per_s[id] ?? 0) * elapsed_s)
  }
  return counts
}

/** The counts of two parts of an ended run are together those of the whole run. */
async function addUp(run) {
  const figuresOf = async (from_s, to_s) => (await server.ask('GET', `/runs/${run.id}/figures?from_s=${from_s}&to_s=${to_s}`)).body
  const whole = await figuresOf(0, run.elapsed_s + 1000)
  const first = await figuresOf(0, (0.3 + 0.4 * random()) * run.elapsed_s)
  assert.equal(whole.window.kind, 'whole')
  const cut = Math.round(4 * first.window.to_s) / 4
  // A run that is not longer than a row has no parts.
  if (first.window.kind === 'whole' || cut === 0 || cut >= run.elapsed_s) return
  const parts = [first, await figuresOf(cut, run.elapsed_s + 1000)].map(countsOf)
  for (const [what, number] of Object.entries(countsOf(whole))) {
    assert.equal(parts[0][what] + parts[1][what], number, `${what} of ${run.name} before and after ${cut} s, SEED=${SEED}`)
  }
}

test('a completed run with failed samples is no success', async () => {
  const run = await finished(server, { name: 'partly', threads: 2, ...documents.failures, consumer: { simulate: { step_ms: 12 } } })
  const figures = await look(`/runs/${run.id}?from=0&to=1000`, 0)
  const [failed, made] = [figures.total.failed_samples, figures.total.samples.made].map((number) => count(number))
  assert.equal(run.state, 'completed')
  await page.getByText('completed with failures', { exact: false }).first().waitFor()
  await page.getByText(`${failed} of ${made} samples failed`).waitFor()
  assert.equal(await page.title(), 'completed with failures: partly · Penstock')
  assert.equal(await page.locator('.verdict.tone-good').count(), 0)
  assert.ok(figures.verdict.advice.every(({ text }) => !text.includes('no change is needed')), JSON.stringify(figures.verdict))
  const red = await page.locator('ol.graph .failing').allTextContents()
  assert.equal(red.length, 1)
  assert.match(red[0], /decode/)
})

test('fifty windows were compared, and many figures twice', () => {
  assert.ok(looked >= 50, `${looked}`)
  assert.ok(seen.twice > 400 && seen.figures > 4000, JSON.stringify(seen))
  // Requests of frozen pages fail, and predictions for a run that delivered nothing are refused with 422.
  assert.deepEqual(browser.complaints.filter((line) => !/ERR_FAILED|status of 422/.test(line)), [])
})
