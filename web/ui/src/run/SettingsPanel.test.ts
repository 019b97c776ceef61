// @vitest-environment jsdom
import { cleanup, fireEvent, render, screen } from '@testing-library/svelte'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'

import { ApiError } from '../api/client'
import { api, sessions } from '../api/endpoints'
import type { Role, RunFigures, RunSettings, Session, SettingChange, SettingNow } from '../api/types'
import { named } from './changes'
import type { RunFeed } from './feed.svelte'
import SettingsPanel from './SettingsPanel.svelte'

vi.mock('../api/endpoints', () => ({ api: { settings: vi.fn(), setSettings: vi.fn() }, sessions: { session: vi.fn() } }))

const steps = [{ id: '0:src', label: 'src' }, { id: '1:decode', label: 'decode' }, { id: '2:sink', label: 'sink' }]
const concurrency: SettingNow = { pointer: '/stages/0/sleep/concurrency', id: '1:decode', value: 1, most: 4096 }
const settings = [concurrency, { pointer: '/sink/queue', id: '2:sink_queue', value: 10, most: 1_000_000 }, { pointer: '/threads', id: null, value: 2, most: 4 }]
const change: SettingChange = { at_s: 12, until_s: 20, pointer: concurrency.pointer, from: 1, to: 8, evidence: '`1:decode` is busy.', before: 40, predicted: 130, measured: 124, outcome: 'kept' }

const refresh = vi.fn()

function show({ over = false, role = 'run' as Role, changes = [] as SettingChange[] } = {}) {
  vi.mocked(sessions.session).mockResolvedValue({ role } as Session)
  const feed = { id: 'r', over, detail: { state: over ? 'completed' : 'running' }, refresh } as unknown as RunFeed
  return render(SettingsPanel, { feed, figures: { batches_per_s: null } as RunFigures, steps, changes: named(changes, steps) })
}

const move = (slider: HTMLElement, value: number) => fireEvent.input(slider, { target: { value: String(value) } })
const values = () => screen.getAllByRole<HTMLInputElement>('slider', { hidden: true }).map((slider) => [slider.getAttribute('aria-label'), slider.value, slider.max])
const cells = () => screen.queryAllByRole('cell').map(({ textContent }) => textContent.replaceAll(/\s+/g, ' ').trim())

beforeEach(() => {
  vi.resetAllMocks()
  vi.mocked(api.settings).mockResolvedValue({ settings, changes: [] } as RunSettings)
})
afterEach(cleanup)

it('sends all changed values in one request', async () => {
  vi.mocked(api.setSettings).mockResolvedValue({ settings: [{ ...concurrency, value: 8 }], changes: [change] } as RunSettings)
  show()
  await move(await screen.findByRole('slider', { name: 'concurrency of decode' }), 8)
  await move(screen.getByRole('slider', { name: 'threads of the run' }), 3)
  expect(values()).toEqual([['concurrency of decode', '8', '16'], ['threads of the run', '3', '4'], ['queue of sink', '10', '40']])
  expect(screen.getByRole('status').textContent).toBe('2 not applied')
  await fireEvent.click(screen.getByRole('button', { name: 'Apply' }))
  expect(vi.mocked(api.setSettings).mock.calls).toEqual([['r', { [concurrency.pointer]: 8, '/threads': 3 }]])
  await vi.waitFor(() => expect(values()).toEqual([['concurrency of decode', '8', '32']]))
  expect(refresh).toHaveBeenCalledOnce()
})

it('keeps the sliders when the server refuses', async () => {
  vi.mocked(api.setSettings).mockRejectedValue(new ApiError({ type: 'x', title: 'Conflict', status: 409, detail: 'the run has ended' }))
  show()
  await move(await screen.findByRole('slider', { name: 'concurrency of decode' }), 8)
  await fireEvent.click(screen.getByRole('button', { name: 'Apply' }))
  expect((await screen.findByRole('alert')).textContent).toContain('the run has ended')
  expect(values()[0]).toEqual(['concurrency of decode', '8', '16'])
})

it('is disabled for a reader, with the reason', async () => {
  show({ role: 'read' })
  await screen.findByText(/has the role read\. .* requires the role run/)
  expect((await screen.findByRole<HTMLFieldSetElement>('group', { name: 'Settings of the run' })).disabled).toBe(true)
})

it('shows what a change has brought, also after the end of the run', () => {
  show({ over: true, changes: [{ ...change, at_s: 2, until_s: null, before: null, predicted: null, measured: null, outcome: 'set' }, change] })
  expect(screen.getAllByRole('rowheader').map(({ textContent }) => textContent)).toEqual(['Concurrency of decode', 'Concurrency of decode'])
  expect(cells().slice(0, 5)).toEqual(['0:12.0', '1 → 8', '✓ kept', '40.00 → 124 samples/s +210 %', '130 samples/s'])
  expect(cells().slice(6, 11)).toEqual(['0:02.0', '1 → 8', '● set', '–', '–'])
  expect(screen.queryAllByRole('slider')).toEqual([])
  expect(api.settings).not.toHaveBeenCalled()
})

it('is absent for a run that has ended without changes', () => {
  show({ over: true })
  expect(screen.queryByRole('region')).toBeNull()
})
