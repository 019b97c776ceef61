// What a source found and left out, on the page of a run.
import assert from 'node:assert/strict'
import { mkdirSync, readFileSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'

import { browse, finished, folder, open, overflows, serve, shot, violations, write } from './kit.mjs'

const SHARD = readFileSync(new URL('../../runner/formats/tests/data/shard-00.tar', import.meta.url))
const data = folder()
let server, browser, page

before(async () => {
  const store = join(data.path, 'shards')
  mkdirSync(join(store, 'train/.cache'), { recursive: true })
  write(join(store, 'train/s-0.tar'), SHARD)
  write(join(store, 'train/s-1.tar'), SHARD.subarray(0, 1024))
  write(join(store, 'train/s-2.tar'), '')
  write(join(store, 'train/.cache/s-3.tar'), SHARD)
  write(join(store, 'train/notes.txt'), 'of the person who packed the shards')
  write(join(data.path, 'outside.tar'), SHARD)
  symlinkSync('../../outside.tar', join(store, 'train/s-4.tar'))
  for (const part of ['one', 'two']) {
    mkdirSync(join(store, part, '.cache'), { recursive: true })
    for (const file of ['a.ndjson', '.cache/b.ndjson']) write(join(store, part, file), '{"v": 1, "w": 2}\n{"v": 3}\n')
  }
  server = await serve({ data: join(data.path, 'data'), args: ['--store', `shards=${store}`], env: { PENSTOCK_LOG: 'error' } })
  browser = await browse(server.url)
  page = browser.page
  const source = { tar: { store: 'shards', prefix: 'train/', on_damage: 'skip' } }
  const run = await finished(server, { name: 'leftovers', source, stages: [] })
  assert.equal(run.state, 'completed', run.snapshot.error)
  await open(page, server, `/runs/${run.id}`)
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
})

const panel = () => page.getByRole('region', { name: /^Data/ })

const summary = () => page.getByText('warnings about the data')
const SIZES = [[1280, 900], [390, 844]]

/** Texts of the cells of a table of the panel, row by row. */
const rows = async (name) => {
  const all = panel().getByRole('group', { name }).getByRole('row')
  await all.nth(1).waitFor()
  const [, ...rows] = await all.all()
  return Promise.all(rows.map(async (row) => (await row.locator('th, td').allTextContents()).map((text) => text.trim())))
}

test('a page shows what a source left out, by reason, with the first keys', async () => {
  const found = Object.fromEntries((await rows(/^Left out/)).map(([reason, ...rest]) => [reason, rest]))
  assert.deepEqual(Object.keys(found).sort(), ['damage', 'hidden', 'link', 'suffix'])
  assert.deepEqual(found.hidden, ['1', 'train/.cache/s-3.tar'])
  assert.deepEqual(found.link, ['1', 'train/s-4.tar'])
  assert.deepEqual(found.suffix, ['1', '.txt 1'])
  assert.equal(found.damage[0], '2')
})

test('a page lists each place of damage on a line of its own, with names as code', async () => {
  const places = panel().getByRole('row', { name: /^damage/ }).getByRole('listitem')
  const [cut, empty] = await places.allTextContents()
  assert.match(cut, /train\/s-1\.tar .* is it truncated\?$/)
  assert.match(empty, /train\/s-2\.tar .* is empty/)
  assert.deepEqual(await places.first().locator('code').allTextContents(), ['train/s-1.tar', 'shards'])
})

test('a page warns on its first screen of what the document does not select', async () => {
  for (const [width, height] of SIZES) {
    await page.setViewportSize({ width, height })
    const { y } = await summary().boundingBox()
    assert.ok(y + 30 < height, `the warnings begin at ${y} of ${height} pixels`)
  }
  assert.equal(await summary().textContent(), '3 warnings about the data')
  await summary().click()
  const warnings = await page.locator('details', { has: summary() }).getByRole('listitem').allTextContents()
  assert.equal(warnings.length, 3)
  for (const words of [/hidden file .*"hidden": true/, /link .*--store-links/, /2 damaged parts of the data/]) {
    assert.ok(warnings.some((warning) => words.test(warning) && !warning.includes('`')), `${words} is not in ${warnings}`)
  }
})

test('a page shows the fields of the samples with their types', async () => {
  const found = Object.fromEntries((await rows(/^Fields/)).map(([name, ...rest]) => [name, rest]))
  assert.deepEqual(found.cls, ['int64', '0', 'not known'])
  assert.deepEqual(found.jpg?.slice(0, 1), ['bytes'])
})

test('the panel fits each window and can be read by everyone', async () => {
  for (const colorScheme of ['light', 'dark']) {
    for (const [width, height] of SIZES) {
      await page.emulateMedia({ colorScheme })
      await page.setViewportSize({ width, height })
      await panel().scrollIntoViewIfNeeded()
      assert.ok(!(await overflows(page)), `the page is wider than ${width} pixels`)
      for (const table of await panel().getByRole('group').all()) {
        assert.ok(await table.evaluate(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth), `a table scrolls sideways at ${width} pixels`)
      }
      assert.deepEqual(await violations(page), [])
      await shot(page, `run-data-${colorScheme}-${width}`)
    }
  }
})

test('a page names the sources of a mixture, and says which fields all samples have', async () => {
  const part = (name) => ({ source: { records: { store: 'shards', prefix: `${name}/`, shuffle: true } } })
  const source = { mix: { sources: { one: part('one'), two: part('two') }, stop: 'all' } }
  const run = await finished(server, { name: 'parts', source, stages: [] })
  await open(page, server, `/runs/${run.id}`)
  assert.deepEqual(await rows(/^Left out/), [
    ['hiddenone', '1', 'one/.cache/b.ndjson'],
    ['hiddentwo', '1', 'two/.cache/b.ndjson'],
  ])
  assert.deepEqual(await rows(/^Fields/), [
    ['v', 'int64', '0', 'in all'],
    ['w', 'int64', '0', 'in some'],
  ])
})

test('a page shows names in the reason of a failed run as code', async () => {
  const run = await finished(server, { name: 'nothing', source: { records: { store: 'shards', prefix: 'none/' } }, stages: [] })
  await open(page, server, `/runs/${run.id}`)
  const reason = page.locator('.notice', { hasText: 'Failed:' })
  await reason.locator('code').first().waitFor()
  assert.ok((await reason.locator('code').allTextContents()).includes('none/'), await reason.textContent())
})

test('the browser console has no errors', () => {
  assert.deepEqual(browser.complaints, [])
})
