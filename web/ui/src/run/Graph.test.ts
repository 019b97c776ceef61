// @vitest-environment jsdom
import { cleanup, fireEvent, render, screen } from '@testing-library/svelte'
import { afterEach, expect, it, vi } from 'vitest'

import type { QueueRecord, StageRecord, VerdictSpan } from '../api/types'
import Graph from './Graph.svelte'
import type { Step } from './pipeline'

// jsdom has no layout and no ResizeObserver.
vi.stubGlobal('ResizeObserver', class { observe() {} unobserve() {} disconnect() {} })

afterEach(cleanup)

/** A source and a stage with these task figures and this queue readiness. */
function stepsWith(task: Record<string, unknown>, readiness: number | null): Step[] {
  const queue = (id: string, readiness: number | null) => ({ id, label: `[${id}]`, capacity: 2, readiness }) as QueueRecord
  const stage = { id: '1:clean', concurrency: 4, task: { ave_time_s: null, failed_samples: 0, shares: null, ...task } } as unknown as StageRecord
  return [
    { id: '0:source', name: 'source', kind: 'source', stage: null, queue: queue('0:source_queue', null) },
    { id: '1:clean', name: 'clean', kind: 'wasm', stage, queue: queue('1:clean_queue', readiness) },
  ]
}

function show(steps = stepsWith({}, null), onselect = vi.fn(), selected: string | null = null, limit: VerdictSpan | null = null) {
  const labels = new Map(steps.map(({ id, name }) => [id, name]))
  render(Graph, { steps, labels, occupancy: () => null, period: 'last 10 s', limit, selected, onselect })
  return onselect
}

it('describes a stage and its queue in the accessible name', () => {
  show(stepsWith({ ave_time_s: 0.0082, shares: { busy: 0.5, thread_wait: 0, permit_wait: 0, blocked: 0, order_wait: 0, idle: 0.5 } }, 0.62))
  const name = screen.getByRole('button', { name: /wasm clean/ }).getAttribute('aria-label')
  expect(name?.replaceAll('\u202f', ' ')).toBe('wasm clean, concurrency 4, task time 8.20 ms, slots busy 50.0 %, queue readiness 62.0 %')
})

it('shows the sentence of the limit without its markup in a tooltip', () => {
  const limit = { from_s: 0, to_s: 1, kind: 'stage', stage: '1:clean', sentence: 'Stage `1:clean` lets 3 samples/s through.' } as VerdictSpan
  show(stepsWith({}, null), vi.fn(), null, limit)
  expect(screen.getByTitle('Stage 1:clean lets 3 samples/s through.')).toBeTruthy()
})

it('shows a dash, not zero, if nothing was measured', () => {
  show()
  const name = screen.getByRole('button', { name: /wasm clean/ }).getAttribute('aria-label')
  expect(name).toContain('task time –')
  expect(name).toContain('readiness –')
  expect(name).not.toContain('busy')
})

it('marks only the stage whose samples failed as bad', () => {
  show(stepsWith({ failed_samples: 43 }, 1))
  expect(screen.getByRole('button', { name: /43 failed samples/ }).className).toContain('failing')
  expect(document.querySelectorAll('.failing')).toHaveLength(1)
})

it('selects a stage', async () => {
  const choose = show()
  await fireEvent.click(screen.getByRole('button', { name: /wasm clean/ }))
  expect(choose).toHaveBeenCalledWith('1:clean')
})

it('deselects the selected stage', async () => {
  const choose = show(undefined, vi.fn(), '1:clean')
  const button = screen.getByRole('button', { name: /wasm clean/ })
  expect(button.getAttribute('aria-pressed')).toBe('true')
  await fireEvent.click(button)
  expect(choose).toHaveBeenCalledWith(null)
})

it('marks the stage that is the limit, with a sign and in words', () => {
  show(undefined, vi.fn(), null, { from_s: 0, to_s: 1, kind: 'stage', stage: '1:clean', sentence: 'It is slow.' })
  const stage = screen.getByRole('button', { name: /limit of the run/ })
  expect(stage.textContent).toMatch(/▲.*clean/)
  expect(screen.getAllByText(/limit of the run/)).toHaveLength(1)
})

it('marks the consumer if the consumer is the limit', () => {
  show(undefined, vi.fn(), null, { from_s: 0, to_s: 1, kind: 'consumer', stage: null, sentence: '' })
  expect(screen.queryByRole('button', { name: /limit of the run/ })).toBeNull()
  expect(screen.getByText(/^consumer/).textContent).toContain('limit of the run')
})

it('shows the paths of a route as lanes before its join', () => {
  const [source, stage] = stepsWith({}, null)
  const step = (id: string, name: string, kind: string): Step => ({ ...stage!, id, name, kind, queue: { ...stage!.queue, id: `${id}_queue` } })
  show([
    source!,
    step('1:route/image', 'image', 'path'),
    step('1:route/image/1:decode', 'decode', 'wasm'),
    step('1:route/else', 'else', 'path'),
    step('1:route', 'route', 'route'),
  ])
  const lanes = [...document.querySelectorAll('.lane')].map((lane) => [...lane.querySelectorAll('.name')].map((name) => name.textContent))
  expect(lanes).toEqual([['image', 'decode'], ['else']])
  expect([...document.querySelectorAll('.name')].map((name) => name.textContent)).toEqual(['source', 'image', 'decode', 'else', 'route'])
})
