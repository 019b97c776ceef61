import { describe, expect, it } from 'vitest'

import { pinched, rangeOf, stepped, windowOf, zoomed, zoomTo } from './window'

const read = (text: string, over = false) => windowOf(new URLSearchParams(text), over)

describe('windowOf', () => {
  it('defaults to the last minute, and to the whole run after its end', () => {
    expect(read('')).toEqual({ follow: true, span_s: 60 })
    expect(read('', true)).toEqual({ follow: true, span_s: null })
  })

  it('reads a fixed range from the address', () => {
    expect(read('from=10&to=70.5')).toEqual({ follow: false, from_s: 10, to_s: 70.5 })
    expect(read('last=60')).toEqual({ follow: true, span_s: 60 })
    expect(read('last=all')).toEqual({ follow: true, span_s: null })
  })

  it('ignores invalid values', () => {
    for (const text of ['from=70&to=10', 'from=1', 'from=a&to=b', 'from=-5&to=-1', 'last=x', 'last=-3', 'from=&to=']) {
      expect(read(text), text).toEqual({ follow: true, span_s: 60 })
    }
  })
})

describe('rangeOf', () => {
  it('ends at the present time and never starts before the run', () => {
    expect(rangeOf({ follow: true, span_s: 60 }, 1000)).toEqual({ from_s: 940, to_s: 1000 })
    expect(rangeOf({ follow: true, span_s: 60 }, 42)).toEqual({ from_s: 0, to_s: 42 })
    expect(rangeOf({ follow: true, span_s: null }, 5000)).toEqual({ from_s: 0, to_s: 5000 })
  })

  it('has a minimum length before the first sample', () => {
    expect(rangeOf({ follow: true, span_s: 60 }, 0)).toEqual({ from_s: 0, to_s: 1 })
  })
})

describe('zoomTo', () => {
  it('is at least 1 s long and within the run', () => {
    expect(zoomTo(10, 10.2, 100)).toEqual({ from_s: 9.6, to_s: 10.6 })
    expect(zoomTo(-5, 5, 100)).toEqual({ from_s: 0, to_s: 10 })
    expect(zoomTo(95, 115, 100)).toEqual({ from_s: 80, to_s: 100 })
    expect(zoomTo(-500, 500, 100)).toEqual({ from_s: 0, to_s: 100 })
  })

  it('steps by a quarter, halves and doubles', () => {
    const range = { from_s: 40, to_s: 80 }
    expect(stepped(range, 'earlier', 200)).toEqual({ from_s: 30, to_s: 70 })
    expect(stepped(range, 'later', 200)).toEqual({ from_s: 50, to_s: 90 })
    expect(stepped(range, 'closer', 200)).toEqual({ from_s: 50, to_s: 70 })
    expect(stepped(range, 'wider', 200)).toEqual({ from_s: 20, to_s: 100 })
  })
})

it('keys move and zoom within a load of any length', () => {
  expect(zoomed({ from_s: 0, to_s: 0.1 }, 'closer', 0.1)).toEqual({ from_s: 0.025, to_s: 0.07500000000000001 })
  expect(zoomed({ from_s: 0.025, to_s: 0.075 }, 'earlier', 0.1).from_s).toBeCloseTo(0.0125)
  expect(zoomed({ from_s: 0.06, to_s: 0.1 }, 'later', 0.1).to_s).toBeCloseTo(0.1)
  expect(zoomed({ from_s: 0.02, to_s: 0.08 }, 'wider', 0.1)).toEqual({ from_s: 0, to_s: 0.1 })
})

describe('pinched', () => {
  it('keeps the times below the fingers', () => {
    // Fingers at a quarter and at half of 0 to 100 s move apart to the ends.
    expect(pinched([25, 50], [0, 1])).toEqual({ from_s: 25, to_s: 50 })
    expect(pinched([25, 75], [0.4, 0.6])).toEqual({ from_s: 0, to_s: 250.00000000000006 })
  })

  it('has a minimum length', () => {
    expect(pinched([20, 80], [0.5, 0.5]).to_s).toBeCloseTo(3000)
    expect(pinched([20, 20.001], [0, 1]).to_s).toBe(21)
  })
})
