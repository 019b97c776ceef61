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

/** Texts of the cells of a table of the panel, row by row. */
const rows = async (name) => {
  const [, ...rows] = await panel().getByRole('group', { name }).getByRole('row').all()
  return Promise.all(rows.map(async (row) => (await row.locator('th, td').allTextContents()).map((text) => text.trim())))
}

test('a page shows what a source left out, by reason, with the first keys', async () => {
  const found = Object.fromEntries((await rows(/^Left out/)).map(([source, reason, ...rest]) => [reason, [source, ...rest]]))
  assert.deepEqual(Object.keys(found).sort(), ['damage', 'hidden', 'link', 'suffix'])
  assert.deepEqual(found.hidden, ['0:src', '1', '–', 'train/.cache/s-3.tar'])
  assert.deepEqual(found.link, ['0:src', '1', '–', 'train/s-4.tar'])
  assert.deepEqual(found.suffix, ['0:src', '1', '–', '`.txt` 1'])
  assert.deepEqual(found.damage.slice(0, 3), ['0:src', '2', '–'])
  assert.match(found.damage[3], /`train\/s-1\.tar`.*`train\/s-2\.tar`.* is empty/)
})

test('a page warns of what the document does not select', async () => {
  const warnings = await panel().locator('.notice').allTextContents()
  assert.equal(warnings.length, 3)
  for (const words of [/hidden file .*"hidden": true/, /link .*`--store-links`/, /2 damaged parts of the data/]) {
    assert.ok(warnings.some((warning) => words.test(warning)), `${words} is not in ${warnings}`)
  }
})

test('a page shows the fields of the samples with their types', async () => {
  const found = Object.fromEntries((await rows(/^Fields/)).map(([name, ...rest]) => [name, rest]))
  assert.deepEqual(found.cls?.slice(0, 2), ['int64', '0'])
  assert.deepEqual(found.jpg?.slice(0, 1), ['bytes'])
})

test('the panel fits each window and can be read by everyone', async () => {
  for (const colorScheme of ['light', 'dark']) {
    for (const [width, height] of [[1280, 900], [390, 844]]) {
      await page.emulateMedia({ colorScheme })
      await page.setViewportSize({ width, height })
      await panel().scrollIntoViewIfNeeded()
      assert.ok(!(await overflows(page)), `the page is wider than ${width} pixels`)
      assert.deepEqual(await violations(page), [])
      await shot(page, `run-data-${colorScheme}-${width}`)
    }
  }
})

test('the browser console has no errors', () => {
  assert.deepEqual(browser.complaints, [])
})
