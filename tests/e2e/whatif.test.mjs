// The what-if panel, which predicts the effect of settings on a run, and the verdict on its limit.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'

import { browse, finished, folder, open as visit, overflows, serve, shot, violations } from './kit.mjs'

const THREADS = 8
const data = folder()
let server, browser, page, run

/** A pipeline whose middle stage is five times as slow as the others. */
const uneven = (count) => ({
  name: 'uneven',
  seed: 7,
  threads: 2,
  source: { range: { count } },
  stages: [
    { sleep: { name: 'read', mean_ms: 4 } },
    { sleep: { name: 'decode', mean_ms: 25 } },
    { sleep: { name: 'resize', mean_ms: 5, on: 'thread' } },
  ],
  consumer: { simulate: { step_ms: 6 } },
})

before(async () => {
  server = await serve({ data: data.path, args: ['--threads', String(THREADS)] })
  browser = await browse(server.url)
  page = browser.page
  run = await finished(server, uneven(120))
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
})

const open = (path) => visit(page, server, path)
const panel = () => page.getByRole('region', { name: 'What if' })
const verdict = () => page.getByRole('region', { name: 'Is data loading the bottleneck?' })
const said = () => panel().getByRole('status')
const ratesRow = () => panel().getByRole('row', { name: /^Throughput/ })

/** Samples per second, measured and predicted, once the prediction is for the settings of the sliders. */
async function rates() {
  await panel().locator('table:not(.stale) tr.rate').waitFor()
  const cells = await ratesRow().getByRole('cell').allTextContents()
  return cells.map((cell) => Number.parseFloat(cell))
}

/** Waits for a prediction other than `before`. */
async function predictedOtherThan(before) {
  await page.waitForFunction((before) => {
    const cell = document.querySelector('table:not(.stale) tr.rate td.then:not(:empty)')
    return cell !== null && Math.abs(Number.parseFloat(cell.textContent) - before) > 1
  }, before)
  return (await rates())[1]
}

/** True if two rates are equal within the noise of a busy machine. */
const close = (one, other) => one / other > 0.6 && one / other < 1.6

/** Presses Tab until this element has the focus. */
async function tabTo(target) {
  for (let presses = 0; presses < 80; presses++) {
    if (await target.evaluate((element) => element === document.activeElement)) return
    await page.keyboard.press('Tab')
  }
  assert.fail('the keys do not lead there')
}

test('the panel predicts the measured rate, and states its error', async () => {
  await open(`/runs/${run.id}`)
  await verdict().getByText(/stage 2:decode lets/).waitFor()
  assert.equal(browser.asked.filter((line) => /predict/.test(line)).length, 0, 'no prediction was requested yet')
  await panel().getByRole('button', { name: 'Try other settings' }).click()
  const [measured, predicted] = await rates()
  assert.ok(close(measured, run.qps) && close(measured, predicted), `${measured} and ${predicted}, ${run.qps} in the run`)
  assert.match(await panel().getByRole('columnheader', { name: /^Predicted/ }).textContent(), /model error [\d.]+\u202f%/)
  assert.match(await ratesRow().first().textContent(), /The predicted rate is that of the recorded run as predicted/, 'without a change there is no gain')
  assert.match(await panel().getByRole('columnheader', { name: /^Measured/ }).textContent(), /whole run without warm-up/)
  assert.deepEqual(await panel().getByRole('rowheader').allTextContents().then((names) => names.slice(0, 5)), ['src', 'read', 'decode', 'resize', 'sink'])
  assert.equal(await panel().getByRole('button', { name: 'Start run' }).isDisabled(), true)
  await panel().getByText('Assumptions of the prediction').click()
  await panel().getByText(/times are drawn from the recorded ones/).waitFor()
})

test('a slider changes the prediction with the keyboard, and the address contains it', async () => {
  const [, before] = await rates()
  const slider = panel().getByRole('slider', { name: 'concurrency of decode' })
  await slider.focus()
  assert.equal(await slider.getAttribute('aria-valuetext'), '1, unchanged')
  await page.keyboard.press('ArrowRight')
  assert.equal(await slider.getAttribute('aria-valuetext'), '2, was 1')
  const predicted = await predictedOtherThan(before)
  assert.ok(predicted > before * 1.5, `${before} before, ${predicted} with two`)
  assert.match(await said().first().textContent(), /^Predicted /)
  await page.waitForURL(/try=/)
  await shot(page, 'whatif')
  assert.deepEqual(await violations(page), [])
  await page.reload()
  await panel().locator('table:not(.stale) tr.rate').waitFor()
  assert.equal(await panel().getByRole('slider', { name: 'concurrency of decode' }).inputValue(), '2', 'the link shows the same')
  assert.ok(Math.abs((await rates())[1] - predicted) < 0.05 * predicted)
  await panel().getByRole('button', { name: 'Reset' }).click()
  await page.waitForURL((url) => url.search === '')
})

test('a faster consumer does not help while a stage is the limit', async () => {
  const [, before] = await rates()
  const field = panel().getByRole('spinbutton', { name: /step of the consumer/ })
  await field.fill('1')
  await page.waitForURL(/step_ms/)
  assert.ok(close((await rates())[1], before))
  await panel().getByRole('button', { name: 'Reset' }).click()
  await page.waitForURL((url) => url.search === '')
})

test('settings beyond the limits of the server are reported at their slider', async () => {
  const field = panel().getByRole('spinbutton', { name: /threads of the run/ })
  await field.fill('600')
  await panel().getByText(/needs 600 worker threads, but the server has 8/).waitFor()
  assert.equal(await field.getAttribute('aria-invalid'), 'true')
  assert.equal(await panel().getByRole('button', { name: 'Start run' }).isDisabled(), true)
  assert.equal(await panel().getByRole('alert').count(), 0, 'the fault is shown once')
  await panel().getByRole('spinbutton', { name: /concurrency of read/ }).fill('0')
  await panel().getByText(/found 0, expected a whole number/).waitFor()
  await shot(page, 'whatif-faults')
  assert.deepEqual(await violations(page), [])
  await panel().getByRole('button', { name: 'Reset' }).click()
  await panel().locator('table:not(.stale) tr.rate').waitFor()
})

test('a proposal is tried and run with the keyboard, and reaches about the predicted rate', async () => {
  await open(`/runs/${run.id}`)
  const toggle = panel().getByRole('button', { name: 'Try other settings' })
  await toggle.waitFor()
  await tabTo(toggle)
  await page.keyboard.press('Enter')
  const proposals = panel().getByRole('region', { name: 'Faster settings' })
  const first = proposals.getByRole('listitem').first()
  await first.waitFor()
  assert.match(await first.textContent(), /decode: concurrency 1 → \d/)
  const [, before] = await rates()
  const choice = first.getByRole('button')
  await tabTo(choice)
  await page.keyboard.press('Enter')
  const predicted = await predictedOtherThan(before)
  assert.equal(await choice.getAttribute('aria-pressed'), 'true')
  assert.ok(predicted > before * 1.5)
  await shot(page, 'whatif-proposal')
  const go = panel().getByRole('button', { name: 'Start run' })
  await page.keyboard.press('Shift+Tab')
  for (let presses = 0; presses < 4 && !(await go.evaluate((button) => button === document.activeElement)); presses++) await page.keyboard.press('Shift+Tab')
  await page.keyboard.press('Enter')
  await page.waitForURL(/of=.*predicted=/)
  await page.getByText(/^\W*completed$/).first().waitFor()
  const id = new URL(page.url()).pathname.split('/').at(-1)
  assert.notEqual(id, run.id)
  const made = (await server.ask('GET', `/runs/${id}`)).body
  assert.ok(close(made.qps, predicted), `predicted ${predicted}, measured ${made.qps}`)
  assert.ok(made.qps > run.qps * 1.3)
  await page.getByText(/Copy of .* with other settings: predicted .* measured \d/).waitFor()
  await shot(page, 'whatif-ran')
  assert.deepEqual(await violations(page), [])
  await page.getByRole('link', { name: 'Compare with the original' }).click()
  const documents = page.getByRole('region', { name: 'Values in the documents' })
  assert.match(await documents.getByRole('row', { name: /stages › decode › sleep › concurrency/ }).textContent(), /not set.*\d/)
})

test('a running pipeline is predicted, too', async () => {
  const made = (await server.ask('POST', '/runs', uneven(100_000))).body
  await open(`/runs/${made.id}`)
  await page.getByText(/live · \d/).waitFor()
  await panel().getByRole('button', { name: 'Try other settings' }).click()
  await panel().getByRole('slider', { name: 'concurrency of decode' }).fill('3')
  await page.waitForURL(/try=/)
  const [measured, predicted] = await rates()
  assert.ok(predicted > measured * 1.5, `${measured} and ${predicted}`)
  await panel().getByRole('button', { name: 'Close' }).click()
})

test('a running pipeline shows its limit, and its advice can be tried', async () => {
  await verdict().getByText(/stage 2:decode lets .* through/).waitFor()
  await page.getByRole('button', { name: /decode.*limit of the run/ }).waitFor()
  const advice = verdict().getByRole('button', { name: /^Try .stages.1.sleep.concurrency/ }).first()
  await advice.click()
  const [measured, predicted] = await rates()
  assert.ok(predicted > measured * 1.5, `${measured} and ${predicted}`)
  await shot(page, 'verdict-live')
  assert.deepEqual(await violations(page), [])
  await page.getByText(/No events|changes? of the limit/).waitFor()
  const id = new URL(page.url()).pathname.split('/').at(-1)
  await open('/')
  await page.getByText(/Limited by\s+▲ decode/).waitFor()
  await shot(page, 'verdict-card')
  assert.deepEqual(await violations(page), [])
  await server.ask('POST', `/runs/${id}/stop`)
})

test('the panel fits a phone in dark mode', async () => {
  const phone = await browse(server.url, { viewport: { width: 390, height: 844 }, colorScheme: 'dark' })
  try {
    const settings = encodeURIComponent(JSON.stringify({ '/stages/1/sleep/concurrency': 2 }))
    await visit(phone.page, server, `/runs/${run.id}?try=${settings}`)
    const predicted = phone.page.locator('table:not(.stale) tr.rate')
    await predicted.waitFor()
    await phone.page.getByRole('button', { name: /^Try decode/ }).first().waitFor()
    assert.equal(await overflows(phone.page), false)
    // The prediction stays visible beside the slider.
    const slider = phone.page.getByRole('slider', { name: 'concurrency of read' })
    await shot(phone.page, 'whatif-phone')
    await slider.evaluate((element) => element.scrollIntoView({ block: 'center' }))
    const box = await phone.page.getByText(/^Predicted [0-9]/).boundingBox()
    assert.ok(box.y > 0 && box.y + box.height <= 844, JSON.stringify(box))
    if (process.env.SHOTS) await phone.page.screenshot({ path: `${process.env.SHOTS}/whatif-phone-seen.png` })
    assert.deepEqual(await violations(phone.page), [])
    assert.deepEqual(phone.complaints, [])
  } finally {
    await phone.close()
  }
})

/** Changes the response for a run as if its limit had moved; waiting for a real change would take too long. */
function judged(run) {
  const evidence = ['The consumer waits 19.7 ms for an item, the sink 0.00 ms for room, the sink queue is ready 0.1 %.', '`2:decode` with 1 slot: busy 99.8 %, blocked 0.0 %, idle 0.2 %.']
  const sentence = 'Data loading is the bottleneck: stage `2:decode` lets 38.80 samples/s through of the 161/s that the consumer could take; the consumer waits 76.0 % of the time.'
  const advice = [
    { goal: 'rate', text: 'Raise the concurrency of `2:decode` from 1 to 5, for the 161/s that the consumer could take.', set: [{ pointer: '/stages/1/sleep/concurrency', value: 5 }] },
    { goal: 'rate', text: 'Make the op faster: a task of `2:decode` takes 25.6 ms and would have to take 6.2 ms, for the 161/s that the consumer could take.', set: [] },
    { goal: 'saving', text: 'Ops run on 0.2 of the 2 worker threads: 1 would be enough.', set: [{ pointer: '/threads', value: 1 }] },
  ]
  const end = run.elapsed_s
  const span = (from, to, kind, stage, sentence) => ({ from_s: from * end, to_s: to * end, kind, stage, sentence })
  const spans = [
    span(0, 0.06, 'too_little', null, 'Not warmed up yet: nothing has been delivered.'),
    span(0.06, 0.4, 'consumer', null, 'The consumer is the limit, data loading is not: the consumer waits 0.0 % of the time.'),
    span(0.4, 1, 'stage', '2:decode', sentence),
  ]
  const verdict = { kind: 'stage', answer: 'yes', stage: '2:decode', sentence, evidence, advice, from_s: 0.1, to_s: end }
  return { verdict, spans, run: { ...run, snapshot: { ...run.snapshot, verdict, verdicts: spans } } }
}

/** Answers a page's request for a run with the changed verdict. */
async function judge(page, id) {
  await page.route(`**/api/v1/runs/${id}`, async (route) => {
    const answer = await route.fetch()
    await route.fulfill({ response: answer, json: judged(await answer.json()).run })
  })
  await page.route(`**/api/v1/runs/${id}/figures*`, async (route) => {
    const answer = await route.fetch()
    const figures = await answer.json()
    const { verdict, spans } = judged((await server.ask('GET', `/runs/${id}`)).body)
    // A window within the run gets the verdict of the span that contains its middle.
    const middle = (figures.window.from_s + figures.window.to_s) / 2
    const span = spans.find(({ to_s }) => middle <= to_s)
    const part = { ...verdict, ...span, answer: 'no', evidence: [], advice: [] }
    await route.fulfill({ response: answer, json: { ...figures, verdict: figures.window.kind === 'range' ? part : verdict } })
  })
}

test('the limit of the run comes first, and its advice sets the sliders', async () => {
  await judge(page, run.id)
  await open(`/runs/${run.id}`)
  await verdict().getByText(/stage 2:decode lets 38\.80 samples\/s through/).waitFor()
  assert.ok((await verdict().boundingBox()).y < (await page.locator('dl.numbers').first().boundingBox()).y)
  assert.match(await page.getByRole('button', { name: /limit of the run/ }).textContent(), /decode/)
  assert.equal(await verdict().getByText(/the sink queue is ready/).isVisible(), false, 'the evidence is collapsed')
  const fold = verdict().getByText(/^Evidence/)
  await fold.focus()
  await page.keyboard.press('Enter')
  await verdict().getByText(/the sink queue is ready/).waitFor()
  await page.evaluate(() => document.querySelector('.room, .legend')?.scrollIntoView())
  const strip = page.getByRole('group', { name: /^Limits of the run over time/ })
  await strip.scrollIntoViewIfNeeded()
  await shot(page, 'verdict')
  assert.deepEqual(await violations(page), [])
  const advice = verdict().getByRole('button', { name: /^Try .stages.1.sleep.concurrency 5/ })
  await advice.focus()
  await page.keyboard.press('Enter')
  assert.equal(await panel().getByRole('slider', { name: 'concurrency of decode' }).inputValue(), '5')
  const [measured, predicted] = await rates()
  assert.ok(predicted > measured * 2, `${measured} and ${predicted}`)
  assert.equal(await panel().getByRole('button', { name: 'Close' }).evaluate((button) => button === document.activeElement), true, 'the focus is on the panel')
})

test('the history of the limit is above the charts, and a part of it can be selected', async () => {
  await page.getByText('2 changes of the limit').click()
  const table = page.getByRole('group', { name: 'Limits and events' })
  assert.deepEqual((await table.getByRole('row').allTextContents()).slice(1).map((text) => /(not known yet|the consumer|decode)/.exec(text)[1]), ['not known yet', 'the consumer', 'decode'])
  const strip = page.getByRole('group', { name: /^Limits of the run over time/ })
  await page.locator('.chart .u-over').first().hover()
  await page.getByText(/buckets of/).waitFor()
  const [ofStrip, ofChart] = await Promise.all([strip.locator('.u-cursor-x'), page.locator('.chart .u-cursor-x').first()].map((line) => line.evaluate((element) => Number(/translate\(([\d.]+)px/.exec(element.style.transform)?.[1]))))
  assert.ok(ofStrip > 0 && ofChart > 0, 'one cursor for all')
  await table.getByRole('row').nth(2).getByRole('button').click()
  await page.waitForURL(/from=/)
  await page.getByText(/consumer, limit of the run/).waitFor()
  await shot(page, 'verdict-stretch')
  assert.deepEqual(await violations(page), [])
})

test('a comparison shows the verdict of each run', async () => {
  const other = await finished(server, uneven(40))
  await judge(page, other.id)
  await open(`/compare?runs=${run.id},${other.id}`)
  const limits = page.getByRole('region', { name: 'Verdicts' })
  assert.match(await limits.getByRole('listitem').nth(1).textContent(), /B.*▲ decode.*lets 38\.80/)
  await shot(page, 'verdict-compare')
  assert.deepEqual(await violations(page), [])
})

test('the verdict fits a phone in dark mode', async () => {
  const phone = await browse(server.url, { viewport: { width: 390, height: 844 }, colorScheme: 'dark' })
  try {
    await judge(phone.page, run.id)
    await visit(phone.page, server, `/runs/${run.id}`)
    await phone.page.getByText(/^Evidence/).click()
    await phone.page.evaluate(() => document.querySelector('.room, .legend')?.scrollIntoView())
    await phone.page.getByText('2 changes of the limit').click()
    assert.equal(await overflows(phone.page), false)
    await shot(phone.page, 'verdict-phone')
    assert.deepEqual(await violations(phone.page), [])
    assert.deepEqual(phone.complaints, [])
  } finally {
    await phone.close()
  }
})

test('the browser console has no errors', () => {
  assert.deepEqual(browser.complaints.filter((line) => !/status of 422/.test(line)), [])
})
