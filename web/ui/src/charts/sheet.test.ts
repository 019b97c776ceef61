import { expect, it } from 'vitest'

import { sheetCsv, sheetJson, type Sheet } from './sheet'

const sheet: Sheet = {
  columns: [
    { name: 'load', head: 'Load' },
    { name: 'mean_s', head: 'Mean', text: () => 'as people read it' },
  ],
  rows: [
    ['async 2x8, batch 50', 0.00025],
    ['said "so"', null],
  ],
}

it('files have unformatted figures, and empty fields for null', () => {
  expect(sheetCsv(sheet)).toBe('load,mean_s\r\n"async 2x8, batch 50",0.00025\r\n"said ""so""",\r\n')
  expect(JSON.parse(sheetJson(sheet))).toEqual([
    { load: 'async 2x8, batch 50', mean_s: 0.00025 },
    { load: 'said "so"', mean_s: null },
  ])
})
