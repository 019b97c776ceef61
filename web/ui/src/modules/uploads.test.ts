import { beforeEach, expect, it, vi } from 'vitest'

import { ApiError } from '../api/client'
import { api, registry, upload } from '../api/endpoints'
import type { ModuleDetail, ModuleUpload, System } from '../api/types'
import { Uploads } from './uploads.svelte'

vi.mock('../api/endpoints', () => ({ api: { system: vi.fn() }, registry: { module: vi.fn() }, upload: vi.fn() }))

const file = (name: string, size = 4) => new File([new Uint8Array(size)], name)

function version(number: number, makes: string[]): ModuleUpload {
  const manifest = { name: 'm', version: '0.1.0', doc: '', mode: 'sample', params: null, wants: null, makes, counters: [] }
  const report = { digest: `sha256:${number}`, size_bytes: 4, kind: 'core', imports: [], exports: [], functions: 1, code_bytes: 1, manifest }
  return { name: 'm', version: number, report, created: true, previous: null } as unknown as ModuleUpload
}

const stages = (uploads: Uploads) => uploads.items.map(({ name, stage }) => `${name} ${stage}`).reverse()

beforeEach(() => {
  vi.mocked(upload).mockReset()
  vi.mocked(api.system).mockResolvedValue({ limits: { upload_mib: 1 } } as System)
})

it('sends one at a time and continues after a refusal', async () => {
  const refusal = new ApiError({ type: 'x', title: 'Not a stage', status: 422, detail: 'it has no manifest' })
  let finish = () => {}
  vi.mocked(upload).mockImplementationOnce((_, progress) => {
    progress(0.5)
    return new Promise((_, reject) => (finish = () => reject(refusal)))
  })
  vi.mocked(upload).mockResolvedValueOnce(version(1, []))
  const uploads = new Uploads()
  uploads.add([file('a.wasm'), file('b.wasm')])
  await vi.waitFor(() => expect(uploads.items.at(-1)).toMatchObject({ stage: 'sending', share: 0.5 }))
  expect(stages(uploads)).toEqual(['a.wasm sending', 'b.wasm waiting'])
  finish()
  await vi.waitFor(() => expect(stages(uploads)).toEqual(['a.wasm refused', 'b.wasm checked']))
  expect(uploads.items.at(-1)).toMatchObject({ problem: { detail: 'it has no manifest' } })
  expect(uploads.made).toBe(1)
})

it('reports changes since the previous version, and adds no version for known bytes', async () => {
  const [one, two] = [version(1, ['image']), { ...version(2, ['image', 'size']), previous: 'sha256:1' }]
  vi.mocked(registry.module).mockResolvedValue({ versions: [two, one] } as unknown as ModuleDetail)
  vi.mocked(upload).mockResolvedValueOnce(two).mockResolvedValueOnce({ ...two, created: false })
  const uploads = new Uploads()
  uploads.add([file('new.wasm'), file('again.wasm')])
  await vi.waitFor(() => expect(stages(uploads)).toEqual(['new.wasm checked', 'again.wasm checked']))
  expect(uploads.items[1]).toMatchObject({ before: 1, changes: [{ what: 'makes', added: ['size'], removed: [] }] })
  expect(uploads.items[0]).toMatchObject({ made: { created: false }, before: null, changes: [] })
  expect(uploads.made).toBe(1)
})

it('does not send a file that is too large', async () => {
  const uploads = new Uploads()
  uploads.add([file('large.wasm', 2 ** 20 + 1)])
  await vi.waitFor(() => expect(stages(uploads)).toEqual(['large.wasm refused']))
  expect(upload).not.toHaveBeenCalled()
})

it('does not send a file that was dismissed while the limit was read', async () => {
  let answer = (_: System) => {}
  vi.mocked(api.system).mockReturnValueOnce(new Promise((done) => (answer = done)))
  const uploads = new Uploads()
  uploads.add([file('a.wasm')])
  uploads.dismiss(uploads.items[0]?.id ?? 0)
  answer({ limits: { upload_mib: 1 } } as System)
  await new Promise((done) => setTimeout(done))
  expect(upload).not.toHaveBeenCalled()
})

it('cancels a dismissed upload, sending or waiting', async () => {
  let heard: AbortSignal | undefined
  vi.mocked(upload).mockImplementationOnce((_, __, signal) => {
    heard = signal
    return new Promise((_, reject) => signal.addEventListener('abort', () => reject(new DOMException('', 'AbortError'))))
  })
  const uploads = new Uploads()
  uploads.add([file('a.wasm'), file('b.wasm')])
  await vi.waitFor(() => expect(heard).toBeDefined())
  for (const { id } of uploads.items) uploads.dismiss(id)
  await vi.waitFor(() => expect(heard?.aborted).toBe(true))
  expect([uploads.items, vi.mocked(upload).mock.calls.length]).toEqual([[], 1])
})
