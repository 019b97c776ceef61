// @vitest-environment jsdom
import { cleanup, fireEvent, render, screen } from '@testing-library/svelte'
import { afterEach, expect, it, vi } from 'vitest'

import type { Metric, QueueRecord, StageRecord, VerdictSpan } from '../api/types'
import Graph from './Graph.svelte'
import type { Step } from './pipeline'

// jsdom lays nothing out, and has nothing that could tell a width.
vi.stubGlobal('ResizeObserver', class { observe() {} unobserve() {} disconnect() {} })

afterEach(cleanup)

const queue = (id: string) => ({ id, label: `[${id}]`, capacity: 2 }) as QueueRecord
const steps: Step[] = [
  { id: '0:source', name: 'source', kind: 'source', stage: null, queue: queue('0:source_queue') },
  { id: '1:clean', name: 'clean', kind: 'wasm', stage: { id: '1:clean', concurrency: 4 } as StageRecord, queue: queue('1:clean_queue') },
]

function show(figures: Record<string, number>, onselect = vi.fn(), selected: string | null = null, limit: VerdictSpan | null = null) {
  render(Graph, {
    steps,
    labels: new Map(steps.map(({ id, name }) => [id, name])),
    read: (id: string, metric: Metric) => figures[`${id} ${metric}`] ?? null,
    occupancy: () => null,
    period: 'the last 10 s',
    limit,
    selected,
    onselect,
  })
  return onselect
}

it('tells a stage and its queue in words', () => {
  show({ '1:clean ave_time_s': 0.0082, '1:clean busy': 0.5, '1:clean_queue readiness': 0.62 })
  const name = screen.getByRole('button', { name: /wasm clean/ }).getAttribute('aria-label')
  expect(name?.replaceAll('\u202f', ' ')).toBe('wasm clean, concurrency 4, task time 8.20 ms, slots busy 50 %, its queue is ready 62 %')
})

it('says a dash where nothing was measured, not zero', () => {
  show({})
  const name = screen.getByRole('button', { name: /wasm clean/ }).getAttribute('aria-label')
  expect(name).toContain('task time –')
  expect(name).toContain('ready –')
  expect(name).not.toContain('busy')
})

it('chooses a stage', async () => {
  const choose = show({})
  await fireEvent.click(screen.getByRole('button', { name: /wasm clean/ }))
  expect(choose).toHaveBeenCalledWith('1:clean')
})

it('lets the chosen stage go', async () => {
  const choose = show({}, vi.fn(), '1:clean')
  const button = screen.getByRole('button', { name: /wasm clean/ })
  expect(button.getAttribute('aria-pressed')).toBe('true')
  await fireEvent.click(button)
  expect(choose).toHaveBeenCalledWith(null)
})

it('marks the stage that is the limit, with a sign and in words', () => {
  show({}, vi.fn(), null, { from_s: 0, to_s: 1, kind: 'stage', stage: '1:clean', sentence: 'It is slow.' })
  const stage = screen.getByRole('button', { name: /here is the limit/ })
  expect(stage.textContent).toMatch(/▲.*clean/)
  expect(screen.getAllByText(/here is the limit/)).toHaveLength(1)
})

it('marks the consumer when it is that', () => {
  show({}, vi.fn(), null, { from_s: 0, to_s: 1, kind: 'consumer', stage: null, sentence: '' })
  expect(screen.queryByRole('button', { name: /here is the limit/ })).toBeNull()
  expect(screen.getByText(/^consumer/).textContent).toContain('here is the limit')
})
