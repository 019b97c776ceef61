import { describe, expect, it } from 'vitest'

import { ago, axisFigure, bytes, clock, count, duration, figure, seconds, share, shortDigest } from './format'

/** Replaces thin spaces by plain ones, which are readable in a test. */
const plain = (text: string) => text.replaceAll('\u202f', ' ')

describe('figures', () => {
  it('show a dash, never 0, for missing values', () => {
    for (const missing of [null, undefined, NaN, Infinity]) {
      for (const text of [seconds(missing), share(missing), count(missing), bytes(missing), duration(missing), figure(missing, 'rate')]) {
        expect(text).toBe('–')
      }
    }
    expect(plain(seconds(0))).toBe('0 ms')
    expect(plain(share(0))).toBe('0 %')
  })

  it('choose the unit of a time by its size', () => {
    expect([0.0000123, 0.00034, 0.0253, 0.9994, 1.204, 59.94].map((value) => plain(seconds(value)))).toEqual([
      '12.3 µs', '340.0 µs', '25.3 ms', '999.4 ms', '1.20 s', '59.9 s',
    ])
    expect(plain(seconds(200))).toBe('3 min 20 s')
    expect([1e-9, 3.1e-8, 0.000_000_34].map((value) => plain(seconds(value)))).toEqual(['1.00 ns', '31.0 ns', '340.0 ns'])
  })

  it('never round up into the next unit', () => {
    expect(plain(seconds(0.000_999_7))).toBe('1.00 ms')
    expect(plain(seconds(0.999_7))).toBe('1.00 s')
  })

  it('show 100 % and 0 % only for shares that round to them at one decimal place', () => {
    expect([1, 0.9996, 0.9994, 0.991, 0.57, 0.085, 0.0004, 0.00061].map((value) => plain(share(value)))).toEqual([
      '100 %', '100 %', '99.9 %', '99.1 %', '57.0 %', '8.5 %', '0 %', '0.1 %',
    ])
  })

  it('never write 0.00 for a rate that is not zero', () => {
    expect([0, 0.0048, 0.0995, 5.754, 46.004, 99.994, 99.996, 1234.5].map((value) => plain(figure(value, 'rate')))).toEqual([
      '0.00 /s', '0.0048 /s', '0.10 /s', '5.75 /s', '46.00 /s', '99.99 /s', '100 /s', '1 235 /s',
    ])
  })

  it('drop trailing zeros at an axis', () => {
    expect(plain(axisFigure(0.2, 'time'))).toBe('200 ms')
    expect(plain(axisFigure(0.0025, 'time'))).toBe('2.5 ms')
    expect(plain(axisFigure(100, 'rate'))).toBe('100 /s')
    expect(axisFigure(0, 'rate')).toBe('0')
  })

  it('separate thousands', () => {
    expect([0, 999, 1000, 1234567].map((value) => plain(count(value)))).toEqual(['0', '999', '1 000', '1 234 567'])
    expect(plain(bytes(1536))).toBe('1.50 KiB')
    expect(plain(bytes(500))).toBe('500 B')
  })
})

describe('times', () => {
  it('count minutes and seconds from the start of the run', () => {
    expect([0, 7, 59.6, 750, 3725].map((value) => clock(value))).toEqual(['0:00', '0:07', '1:00', '12:30', '1:02:05'])
    expect(clock(59.96, true)).toBe('1:00.0')
  })

  it('have two units at most', () => {
    expect([12, 200, 7500, 100_000].map((value) => plain(duration(value)))).toEqual(['12 s', '3 min 20 s', '2 h 05 min', '1 d 3 h'])
    const now = Date.parse('2026-11-21T12:00:00Z')
    expect(plain(ago('2026-11-21T11:56:00Z', now))).toBe('4 min ago')
    expect(ago('2026-11-21T12:00:03Z', now)).toBe('just now')
  })
})

it('shortens a digest to its kind and twelve digits', () => {
  expect(shortDigest(`sha256:${'ab12'.repeat(16)}`)).toBe('sha256:ab12ab12ab12…')
  expect(shortDigest('odd')).toBe('odd')
})
