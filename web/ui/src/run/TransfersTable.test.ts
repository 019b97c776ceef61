// @vitest-environment jsdom
import { cleanup, render, screen } from '@testing-library/svelte'
import { afterEach, expect, it } from 'vitest'

import type { RunSnapshot } from '../api/types'
import TransfersTable from './TransfersTable.svelte'

afterEach(cleanup)

const transfer: RunSnapshot['transfers'][string] = {
  device: 'cuda:0',
  batches: 1200,
  bytes: 3 * 1024 ** 3,
  staged_bytes: 0,
  copy_s: 0.2,
  bytes_per_s: 52.3e9,
  ave_slot_wait_s: 0.0004,
  ave_device_wait_s: null,
  slots: 3,
  gpu: null,
}

function cells(transfers: RunSnapshot['transfers']): string[] {
  render(TransfersTable, { snapshot: { transfers } as RunSnapshot, labels: new Map([['6:transfer', 'transfer']]) })
  return screen.queryAllByRole('cell').map(({ textContent }) => textContent.replaceAll('\u202f', ' '))
}

it('shows copied bytes, rate and waits', () => {
  expect(cells({ '6:transfer': transfer })).toEqual(['cuda:0', '1 200', '3.00 GiB', '0 B', '52 300 MB/s', '3', '400.0 µs', '–', '–', '–'])
  expect(screen.getByRole('rowheader').textContent).toBe('transfer')
})

it('shows the load of the GPU where it is measured', () => {
  const gpu = { utilisation: 0.87, used_bytes: 2 * 1024 ** 3, total_bytes: 8 * 1024 ** 3, received_bytes_per_s: null, sent_bytes_per_s: null }
  expect(cells({ '6:transfer': { ...transfer, gpu } }).slice(-2)).toEqual(['87.0 %', '2.00 GiB'])
})

it('is absent for a run without copies', () => {
  expect(cells({})).toEqual([])
})
