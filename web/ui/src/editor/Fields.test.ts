// @vitest-environment jsdom
import { cleanup, fireEvent, render, screen } from '@testing-library/svelte'
import { afterEach, expect, it, vi } from 'vitest'

import Fields from './Fields.svelte'
import { rooted } from './schema'

afterEach(cleanup)

const schema = {
  type: 'object',
  properties: {
    size: { type: 'integer', default: 224 },
    mode: { enum: ['crop', 'stretch'], default: 'crop' },
    flip: { type: 'boolean', default: false },
    mean: { type: 'array', items: { type: 'number' } },
    crop: { type: 'object', properties: { top: { type: 'integer' } } },
    assets: { type: 'object', additionalProperties: { type: 'object', properties: { key: { type: 'string' } }, required: ['key'] } },
    ops: {
      type: 'array',
      items: {
        type: 'object',
        maxProperties: 1,
        properties: {
          Resize: { type: 'object', properties: { side: { anyOf: [{ type: 'integer', minimum: 1 }, { type: 'array', items: { type: 'integer' } }] } }, required: ['side'] },
          Flip: { type: 'object', properties: {} },
        },
      },
    },
    odd: { type: 'array', items: { type: 'object' } },
  },
}

function shown(value: Record<string, unknown>, more = {}) {
  const acts = { set: vi.fn(), unset: vi.fn() }
  render(Fields, { pointer: '', value, schema: rooted(schema), ...acts, ...more })
  return acts
}

const change = (label: string, value: string) => fireEvent.change(screen.getByLabelText(label), { target: { value } })

it('writes each kind of value as JSON', async () => {
  const { set, unset } = shown({ size: 3, crop: { top: 1 } })
  await change('size', '96')
  await change('size', '')
  await change('mode', 'stretch')
  await fireEvent.click(screen.getByLabelText('flip'))
  await change('top', '7')
  expect(set.mock.calls).toEqual([['/size', '96'], ['/mode', '"stretch"'], ['/flip', 'true'], ['/crop/top', '7']])
  expect(unset.mock.calls).toEqual([['/size']])
})

it('changes, adds and removes the elements of a list', async () => {
  const { set } = shown({ mean: [0.5, 1] })
  await change('mean 2', '2.50')
  await fireEvent.click(screen.getByRole('button', { name: 'Add to mean' }))
  await fireEvent.click(screen.getByRole('button', { name: 'Remove mean 1' }))
  expect(set.mock.calls).toEqual([['/mean', '[0.5, 2.50]'], ['/mean', '[0.5, 1, 0]'], ['/mean', '[1]']])
})

it('adds, orders, edits and removes the elements of a list by their kinds', async () => {
  const faults = [{ pointer: '/ops/1/Flip', detail: 'No flip here' }]
  const { set } = shown({ ops: [{ Resize: { side: 64 } }, { Flip: {} }] }, { faults })
  await change('side', '[32, 64]')
  await fireEvent.click(screen.getByRole('button', { name: 'Move Flip up' }))
  await fireEvent.click(screen.getByRole('button', { name: 'Remove Resize' }))
  await fireEvent.change(screen.getByLabelText('Kind of a new entry of ops'), { target: { value: 'Resize' } })
  await fireEvent.click(screen.getByRole('button', { name: 'Add to ops' }))
  expect(set.mock.calls).toEqual([
    ['/ops/0/Resize/side', '[32, 64]'],
    ['/ops', '[{ "Flip": {} }, { "Resize": { "side": 64 } }]'],
    ['/ops', '[{ "Flip": {} }]'],
    ['/ops', '[{ "Resize": { "side": 64 } }, { "Flip": {} }, { "Resize": { "side": 1 } }]'],
  ])
  expect(screen.getAllByText('No flip here')).toHaveLength(1)
})

it('adds and removes entries with free names', async () => {
  const { set, unset } = shown({ assets: { vocab: { key: 'a' } } })
  const add = screen.getByRole<HTMLButtonElement>('button', { name: 'Add' })
  await fireEvent.input(screen.getByLabelText('Name of a new entry of assets'), { target: { value: 'vocab' } })
  expect(add.disabled).toBe(true)
  await fireEvent.input(screen.getByLabelText('Name of a new entry of assets'), { target: { value: 'a/b' } })
  await fireEvent.click(add)
  await change('key', 'b')
  await fireEvent.click(screen.getByRole('button', { name: 'Remove vocab from assets' }))
  expect(set.mock.calls).toEqual([['/assets/a~1b', '{ "key": "" }'], ['/assets/vocab/key', '"b"']])
  expect(unset.mock.calls).toEqual([['/assets/vocab']])
})

it('edits other values as JSON, or leads to their place in the text', async () => {
  const { set } = shown({ odd: [{ a: 1 }] })
  const field = screen.getByLabelText<HTMLInputElement>('odd')
  expect(field.value).toBe('[{ "a": 1 }]')
  await change('odd', '[{]')
  expect([set.mock.calls.length, field.validity.valid]).toEqual([0, false])
  await change('odd', '[]')
  expect(set.mock.calls).toEqual([['/odd', '[]']])
  cleanup()
  const show = vi.fn()
  shown({ odd: [{ a: 1 }] }, { show })
  await fireEvent.click(screen.getByText('[{ "a": 1 }]'))
  expect(show.mock.calls).toEqual([['/odd']])
})
