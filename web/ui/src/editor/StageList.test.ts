// @vitest-environment jsdom
import { cleanup, fireEvent, render, screen } from '@testing-library/svelte'
import { afterEach, expect, it, vi } from 'vitest'

import { rooted } from './schema'
import StageList from './StageList.svelte'

afterEach(cleanup)

const object = (properties: object, required: string[] = []) => ({ type: 'object', properties, required })
const schema = object({
  name: { type: 'string' },
  source: { oneOf: [object({ range: object({ count: { type: 'integer', minimum: 1 } }, ['count']) })] },
  stages: { type: 'array', items: { oneOf: [object({ sleep: object({ mean_ms: { type: 'number' }, on: { enum: ['async', 'thread'], default: 'async' } }, ['mean_ms']) })] } },
  sink: object({ queue: { type: 'integer', default: 3 } }),
  consumer: { oneOf: [object({ discard: object({}) })] },
})

function shown(faults = [{ pointer: '/stages/1/sleep/mean_ms', detail: 'found `-1`, expected more' }]) {
  const document = { source: { range: { count: 2 } }, stages: [{ sleep: { mean_ms: 5 } }, { sleep: { mean_ms: -1 } }] }
  const acts = { set: vi.fn(), unset: vi.fn(), show: vi.fn(), choose: vi.fn(), add: vi.fn(), swap: vi.fn() }
  const view = render(StageList, { document, schema: rooted(schema), faults, at: '', names: () => [], ...acts })
  return { ...acts, ...view }
}

it('shows a fault at its stage and at its field', async () => {
  shown()
  expect(screen.getByText('✕ 1').closest('li')?.textContent).toContain('sleep')
  await fireEvent.click(screen.getAllByRole('button', { name: /sleep/, expanded: false })[1] as Element)
  const field = screen.getByLabelText('mean_ms')
  expect(field.getAttribute('aria-invalid')).toBe('true')
  expect(document.getElementById(field.getAttribute('aria-describedby') ?? '')?.textContent).toBe('found -1, expected more')
})

it('opens a card and shows its place in the text, and follows the cursor to another', async () => {
  const { show, rerender } = shown([])
  await fireEvent.click(screen.getByRole('button', { name: /Source/ }))
  expect(show.mock.calls).toEqual([['/source']])
  expect(screen.getByLabelText<HTMLInputElement>('count').value).toBe('2')
  await rerender({ at: '/stages/0/sleep' })
  expect(screen.queryByLabelText('count')).toBeNull()
  expect(screen.getByLabelText<HTMLInputElement>('mean_ms').value).toBe('5')
})

it('keeps a card open while its fields change the document', async () => {
  const { rerender } = shown([])
  await rerender({ at: '/stages/0' })
  await fireEvent.click(screen.getByRole('button', { name: /Pipeline/ }))
  await rerender({ document: { name: 'x', source: { range: { count: 2 } }, stages: [{ sleep: { mean_ms: 5 } }] } })
  expect(screen.getByLabelText<HTMLInputElement>('name').value).toBe('x')
})

it('sets typed values as JSON and removes cleared ones', async () => {
  const { set, unset } = shown([])
  await fireEvent.click(screen.getAllByRole('button', { name: /sleep/, expanded: false })[0] as Element)
  await fireEvent.change(screen.getByLabelText('mean_ms'), { target: { value: '7.50' } })
  await fireEvent.change(screen.getByLabelText('on'), { target: { value: 'thread' } })
  await fireEvent.change(screen.getByLabelText('on'), { target: { value: '' } })
  expect(set.mock.calls).toEqual([['/stages/0/sleep/mean_ms', '7.50'], ['/stages/0/sleep/on', '"thread"']])
  expect(unset.mock.calls).toEqual([['/stages/0/sleep/on']])
})

it('moves and removes stages by buttons with names', async () => {
  const { swap, unset } = shown([])
  expect(screen.getByRole<HTMLButtonElement>('button', { name: 'Move stage 1 up' }).disabled).toBe(true)
  await fireEvent.click(screen.getByRole('button', { name: 'Move stage 2 up' }))
  await fireEvent.click(screen.getByRole('button', { name: 'Remove stage 2' }))
  expect([swap.mock.calls, unset.mock.calls]).toEqual([[[0]], [['/stages/1']]])
})
