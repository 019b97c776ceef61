import { expect, it } from 'vitest'

import { zoomed } from './zoom'

it('keys move and zoom within the load, however short it is', () => {
  expect(zoomed({ from_s: 0, to_s: 0.1 }, 'closer', 0.1)).toEqual({ from_s: 0.025, to_s: 0.07500000000000001 })
  expect(zoomed({ from_s: 0.025, to_s: 0.075 }, 'earlier', 0.1).from_s).toBeCloseTo(0.0125)
  expect(zoomed({ from_s: 0.06, to_s: 0.1 }, 'later', 0.1).to_s).toBeCloseTo(0.1)
  expect(zoomed({ from_s: 0.02, to_s: 0.08 }, 'wider', 0.1)).toEqual({ from_s: 0, to_s: 0.1 })
})
