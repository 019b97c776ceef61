// Work that a visitor starts on the pages: benchmarks, checks of stores, parameters and assets of modules, documents from files.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, renameSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'

import { browse, drop, folder, modules, open as visit, overflows, photos, serve, shot, violations } from './kit.mjs'

const data = folder()
const corpus = join(data.path, 'corpus')
let server, browser, page

before(async () => {
  photos(join(data.path, 'photos'))
  mkdirSync(corpus)
  const made = spawnSync(process.env.MAKE_DATA, ['tokenizer', join(corpus, 'tokenizer.json')])
  assert.equal(made.status, 0, String(made.stderr))
  server = await serve({
    data: join(data.path, 'data'),
    args: ['--store', `photos=${join(data.path, 'photos')}`, '--store', `corpus=${corpus}`, '--threads=4'],
  })
  const sent = await server.ask('POST', '/modules', new Uint8Array(readFileSync(join(modules, 'image.wasm'))))
  assert.equal(sent.status, 201)
  browser = await browse(server.url)
  page = browser.page
})

after(async () => {
  await browser?.close()
  await server?.stop()
  data.remove()
})

const open = (path) => visit(page, server, path)
const phone = () => page.setViewportSize({ width: 390, height: 800 })
const desktop = () => page.setViewportSize({ width: 1280, height: 900 })

/** Checks the current state of the page: dark in the size of a phone, and light in that of a desktop. */
async function sound(name) {
  for (const [size, scheme] of [[{ width: 390, height: 800 }, 'dark'], [{ width: 1280, height: 900 }, 'light']]) {
    await page.setViewportSize(size)
    await page.emulateMedia({ colorScheme: scheme })
    assert.equal(await overflows(page), false, `${name} is wider than ${size.width} px`)
    assert.deepEqual(await violations(page), [], `${name} ${scheme}`)
    await shot(page, `${name}-${scheme}`)
  }
}

test('a benchmark is started from its page, and its report is shown', async () => {
  await open('/bench')
  await page.getByRole('link', { name: 'New benchmark' }).click()
  await page.getByRole('heading', { name: 'New benchmark', level: 1 }).waitFor()
  assert.equal(await page.title(), 'New benchmark · Penstock')
  const form = page.getByRole('form', { name: 'New benchmark' })
  await form.getByLabel('Store').selectOption('photos')
  await form.getByText('6 loads').waitFor()
  await sound('bench-new')
  for (const workers of ['1', '4']) await form.getByRole('checkbox', { name: workers, exact: true }).uncheck()
  await form.getByRole('checkbox', { name: /^sync/ }).uncheck()
  await form.getByLabel('Key suffix').fill('.jpg')
  await form.getByLabel('Maximum number of objects').fill('30')
  await form.getByText('1 load:').waitFor()
  await form.getByRole('button', { name: 'Start benchmark' }).click()
  const current = page.getByRole('region', { name: 'Benchmark on this server' })
  await current.getByText(/^Ended after/).waitFor()
  await current.getByText('completed').waitFor()
  await sound('bench-ended')
  await current.getByRole('link', { name: 'Show the report' }).click()
  await page.getByRole('heading', { name: 'photos', level: 1 }).waitFor()
  const [kept] = (await server.ask('GET', '/benchmarks')).body.items
  assert.deepEqual([kept.objects, kept.state, kept.fastest.load], [30, 'completed', 'async 2x8'])
})

test('a benchmark under way is stopped, and a refused one names its field', async () => {
  await desktop()
  await open('/bench/new')
  const form = page.getByRole('form', { name: 'New benchmark' })
  await form.getByLabel('Key prefix').fill('nothing/')
  await form.getByRole('button', { name: 'Start benchmark' }).click()
  const current = page.getByRole('region', { name: 'Benchmark on this server' })
  await current.getByText('failed').waitFor()
  await form.getByLabel('Key prefix').fill('')
  await form.getByLabel('Name', { exact: true }).fill('two words')
  await form.getByRole('button', { name: 'Start benchmark' }).click()
  await page.getByRole('alert').getByText('The benchmark was not started').waitFor()
  assert.equal(await form.getByLabel(/^Name/).getAttribute('aria-invalid'), 'true')
  await sound('bench-refused')
  await desktop()
  await form.getByLabel(/^Name/).fill('long')
  await form.getByLabel('Passes').fill('10')
  await form.getByLabel('Drop the objects').check()
  await form.getByRole('button', { name: 'Start benchmark' }).click()
  const stop = current.getByRole('button', { name: 'Stop' })
  await stop.waitFor()
  assert.equal(await form.getByRole('button', { name: 'Start benchmark' }).isDisabled(), true)
  await stop.click()
  await current.getByText(/^Ended after/).waitFor()
  assert.match(await current.textContent(), /stopped|completed/)
})

test('stores are checked on the System page', async () => {
  await open('/system')
  const stores = page.getByRole('region', { name: 'Stores' })
  const row = (name) => stores.getByRole('row', { name })
  await row('photos').getByText('0 of 64').waitFor()
  await row('photos').getByRole('button', { name: 'Check photos' }).click()
  await row('photos').getByText(/✓ in \d/).waitFor()
  await stores.getByText('000/000000.jpg').waitFor()
  renameSync(corpus, `${corpus}-gone`)
  await row('corpus').getByRole('button', { name: 'Check corpus' }).click()
  await row('corpus').getByText(/✕|✓/).waitFor()
  renameSync(`${corpus}-gone`, corpus)
  await sound('system-stores')
})

test('parameters are form fields in the editor, and completion knows them', async () => {
  await desktop()
  await open('/runs/new')
  const editor = page.locator('.cm-content')
  await editor.waitFor()
  const document = {
    name: 'opened',
    source: { list: { store: 'photos' } },
    stages: [{ fetch: {} }, { wasm: { module: 'std/image', params: { ops: [{ Resize: { size: 64 } }] } } }],
    consumer: { discard: {} },
  }
  const chooser = page.waitForEvent('filechooser')
  await page.getByRole('button', { name: 'Open file…' }).click()
  await (await chooser).setFiles({ name: 'opened.json', mimeType: 'application/json', buffer: Buffer.from(JSON.stringify(document, null, 2)) })
  await page.getByText('✓ Valid').waitFor()
  const list = page.getByRole('list', { name: 'Stages', exact: true })
  await list.getByRole('button', { name: /image/ }).click()
  const params = list.getByRole('group', { name: 'params' })
  assert.equal(await params.getByLabel('size', { exact: true }).inputValue(), '64')
  await params.getByLabel('size', { exact: true }).fill('-1')
  await params.getByLabel('size', { exact: true }).press('Tab')
  await page.getByRole('status').getByText('✕ 1 problem').waitFor()
  assert.equal(await params.getByLabel('size', { exact: true }).getAttribute('aria-invalid'), 'true')
  await sound('editor-params')
  await desktop()
  await params.getByLabel('size', { exact: true }).fill('96')
  await params.getByLabel('size', { exact: true }).press('Tab')
  await page.getByText('✓ Valid').waitFor()
  assert.match(await editor.textContent(), /"size": 96/)
  await params.getByLabel('Kind of a new entry of ops').selectOption('CenterCrop')
  await params.getByRole('button', { name: 'Add to ops' }).click()
  await page.getByText('✓ Valid').waitFor()
  await params.getByRole('button', { name: 'Move CenterCrop up' }).click()
  await page.getByText('✓ Valid').waitFor()
  assert.match(await editor.textContent(), /"CenterCrop".*"Resize"/)
  // Assets: an entry by name, whose store and key are fields.
  const assets = list.getByRole('group', { name: 'assets', exact: true })
  await assets.getByLabel('Name of a new entry of assets').fill('words')
  await assets.getByRole('button', { name: 'Add' }).click()
  await assets.getByLabel('store').fill('corpus')
  await assets.getByLabel('store').press('Tab')
  await assets.getByLabel('key').fill('tokenizer.json')
  await assets.getByLabel('key').press('Tab')
  await page.getByText('✓ Valid').waitFor()
  assert.match(await editor.textContent(), /"words": \{ "store": "corpus", "key": "tokenizer.json" \}/)
  await assets.getByRole('button', { name: 'Remove words from assets' }).click()
  // Completion within `params` offers the module's own names.
  await editor.click()
  await page.keyboard.press('Control+A')
  await page.keyboard.insertText('{ "source": { "list": { "store": "photos" } }, "stages": [{ "fetch": {} }, { "wasm": { "module": "std/image", "params": {  } } }], "consumer": { "discard": {} } }')
  await page.getByText('✓ Valid').waitFor()
  const text = await editor.textContent()
  const back = text.length - text.indexOf('"params": {  }') - '"params": { '.length
  for (let step = 0; step < back; step++) await page.keyboard.press('ArrowLeft')
  await page.keyboard.press('Control+Space')
  await page.locator('.cm-tooltip-autocomplete').getByText('"draft"').waitFor()
  await page.keyboard.press('Escape')
})

test('a document is dropped on the editor, and one that is not JSON is marked', async () => {
  await open('/runs/new')
  const editor = page.locator('.cm-content')
  await editor.waitFor()
  await drop(page, 'dropped.json', Buffer.from('{"name": "dropped", "source": {"range": {"count": 3}}, "consumer": {"discard": {}}}'))
  await page.getByText('✓ Valid').waitFor()
  assert.match(await editor.textContent(), /"dropped"/)
  await drop(page, 'broken.json', Buffer.from('{"name": '))
  await page.getByText('✕ Not JSON').waitFor()
  await sound('editor-broken')
  await desktop()
  await drop(page, 'large.json', 6_000_000)
  await page.getByRole('alert').getByText('The file was not opened').waitFor()
  assert.match(await editor.textContent(), /"name"/, 'the text stays')
})

test('a module is tried with parameters of a form and with an asset', async () => {
  await desktop()
  await open('/modules/std%2Ftext')
  const form = page.getByRole('form', { name: 'Try this version' })
  await form.getByLabel('max_length', { exact: true }).fill('8')
  await form.getByLabel('max_length', { exact: true }).press('Tab')
  await form.getByLabel('Text of the sample').fill('the water the river')
  await form.getByRole('button', { name: 'Try it' }).click()
  await page.getByRole('alert').getByText('The module was not run').waitFor()
  await sound('try-refused')
  await desktop()
  await form.getByText(/^Assets/).click()
  await form.getByRole('button', { name: 'Add from a store' }).click()
  await form.getByLabel('Name', { exact: true }).fill('tokenizer')
  await form.getByRole('group', { name: 'Assets' }).getByLabel('Store').selectOption('corpus')
  await form.getByLabel('Key', { exact: true }).fill('tokenizer.json')
  await form.getByRole('button', { name: 'Try it' }).click()
  await page.getByRole('region', { name: 'Results' }).waitFor()
  await sound('try-asset')
  await desktop()
  await form.getByRole('button', { name: 'Remove tokenizer' }).click()
  const chooser = page.waitForEvent('filechooser')
  await form.getByRole('button', { name: 'Add files…' }).click()
  await (await chooser).setFiles(join(corpus, 'tokenizer.json'))
  assert.equal(await form.getByLabel('Name', { exact: true }).inputValue(), 'tokenizer')
  await form.getByRole('button', { name: 'Try it' }).click()
  await page.getByRole('region', { name: 'Results' }).waitFor()
})

test('the tabs of all sections are in sight on a phone', async () => {
  for (const width of [320, 360, 390]) {
    await page.setViewportSize({ width, height: 800 })
    await open('/runs')
    const links = page.getByRole('navigation', { name: 'Sections' }).getByRole('link')
    assert.equal(await links.count(), 6)
    for (const link of await links.all()) {
      const box = await link.boundingBox()
      assert.ok(box.x >= 0 && box.x + box.width <= width, `${await link.textContent()} at ${width} px: ${JSON.stringify(box)}`)
      assert.ok(box.height >= 24, 'tall enough for a finger')
    }
    assert.equal(await overflows(page), false)
  }
})

test('a disabled button looks disabled and stays readable', async () => {
  await phone()
  await open('/modules/image')
  const button = page.getByRole('button', { name: 'Try it', exact: true })
  assert.equal(await button.isDisabled(), true)
  const style = (of) => of.evaluate((element) => (({ backgroundColor, borderStyle, cursor }) => ({ backgroundColor, borderStyle, cursor }))(getComputedStyle(element)))
  const [off, on] = [await style(button), await style(page.getByRole('button', { name: 'Delete…' }))]
  assert.deepEqual([off.borderStyle, off.cursor, on.borderStyle, on.cursor], ['dashed', 'not-allowed', 'solid', 'pointer'])
  assert.notEqual(off.backgroundColor, on.backgroundColor)
})

test('no page complained', () => {
  // Refused requests are answered with 4xx and 5xx, which the browser notes itself.
  assert.deepEqual(browser.complaints.filter((line) => !/status of [45]\d\d/.test(line)), [])
})
