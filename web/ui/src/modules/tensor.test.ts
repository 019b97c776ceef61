import { describe, expect, it } from 'vitest'

import { toBase64 } from '../parts/base64'
import { describe as words, elementsOf, envelopeOf, layoutOf, pictureOf, scaleOf, type Layout } from './tensor'

const base64 = (values: ArrayBufferView) => toBase64(new Uint8Array(values.buffer))
const elements = (dtype: string, shape: number[], values: ArrayBufferView) => elementsOf({ dtype, shape, data: base64(values) })

describe('the image layout of a shape', () => {
  it('has channels last, first or none', () => {
    expect(layoutOf([28, 30])).toEqual({ images: 1, height: 28, width: 30, channels: 1, first: false })
    expect(layoutOf([28, 30, 3])).toEqual({ images: 1, height: 28, width: 30, channels: 3, first: false })
    expect(layoutOf([3, 28, 30])).toEqual({ images: 1, height: 28, width: 30, channels: 3, first: true })
    expect(layoutOf([1, 28, 30])).toEqual({ images: 1, height: 28, width: 30, channels: 1, first: true })
  })

  it('may have several images', () => {
    expect(layoutOf([8, 28, 30])).toEqual({ images: 8, height: 28, width: 30, channels: 1, first: false })
    expect(layoutOf([8, 28, 30, 3])).toEqual({ images: 8, height: 28, width: 30, channels: 3, first: false })
    expect(layoutOf([8, 3, 28, 30])).toEqual({ images: 8, height: 28, width: 30, channels: 3, first: true })
  })

  it('is missing if a side is too short or the channels are not colours', () => {
    for (const shape of [[], [400], [2, 16_000], [0, 28, 28, 3], [8, 28, 30, 7], [2, 2, 28, 28, 3]]) expect(layoutOf(shape), `${shape}`).toBeNull()
  })
})

describe('elements', () => {
  it('are read by their type', () => {
    expect([...(elements('int16', [2], Int16Array.of(-3, 500)) as Int16Array)]).toEqual([-3, 500])
    expect([...(elements('int64', [1], BigInt64Array.of(-9_007_199_254_740_993n)) as BigInt64Array)]).toEqual([-9_007_199_254_740_993n])
    // 1.5, the smallest positive value, negative infinity and NaN.
    expect([...(elements('float16', [4], Uint16Array.of(0x3e00, 1, 0xfc00, 0x7e00)) as Float32Array)]).toEqual([1.5, 2 ** -24, -Infinity, NaN])
    expect([...(elements('bfloat16', [2], Uint16Array.of(0x3fc0, 0xc000)) as Float32Array)]).toEqual([1.5, -2])
  })

  it('are refused if they do not fill the shape and absent if the trial left them out', () => {
    expect(elements('uint8', [2, 2, 3], new Uint8Array(11))).toBeNull()
    expect(elements('float32', [1], new Uint8Array(3))).toBeNull()
    expect(elements('complex64', [1], new Uint8Array(8))).toBeNull()
    expect(elementsOf({ dtype: 'uint8', shape: [4] })).toBeNull()
  })
})

describe('a picture', () => {
  const layout = (channels: 1 | 3, first: boolean): Layout => ({ images: 1, height: 1, width: 2, channels, first })
  const bytes = { low: 0, high: 255 }

  it('is the same whether its channels come last or first', () => {
    const last = pictureOf(Uint8Array.of(1, 2, 3, 4, 5, 6), layout(3, false), 0, bytes)
    expect([...last.pixels]).toEqual([1, 2, 3, 255, 4, 5, 6, 255])
    expect(pictureOf(Uint8Array.of(1, 4, 2, 5, 3, 6), layout(3, true), 0, bytes)).toEqual(last)
  })

  it('is one of a batch', () => {
    expect([...pictureOf(Uint8Array.of(1, 2, 3, 4), layout(1, false), 1, bytes).pixels]).toEqual([3, 3, 3, 255, 4, 4, 4, 255])
  })

  it('scales other types from least to greatest and leaves NaN transparent', () => {
    const values = Float32Array.of(-2, NaN, 2, Infinity)
    const scale = scaleOf('float32', values)
    expect(scale).toEqual({ low: -2, high: 2 })
    expect([...pictureOf(values, layout(1, false), 0, scale).pixels]).toEqual([0, 0, 0, 255, 0, 0, 0, 0])
    expect([...pictureOf(values, layout(1, false), 1, scale).pixels]).toEqual([255, 255, 255, 255, 255, 255, 255, 255])
  })
})

it('draws a row of values as the range of each column', () => {
  const values = Float32Array.of(0, 10, 5, 5, NaN, 2)
  expect(envelopeOf(values, scaleOf('float32', values), 3)).toEqual([
    { from: 0, to: 1 },
    { from: 0.5, to: 0.5 },
    { from: 0.2, to: 0.2 },
  ])
})

it('describes a field', () => {
  const common = { name: 'field', bytes: 3, digest: '' }
  expect(words({ ...common, type: 'tensor', dtype: 'uint8', shape: [1, 1, 3], min: 1, max: 3, mean: 2, nan: 0, data: null })).toBe('tensor uint8 [1, 1, 3]')
  expect(words({ ...common, type: 'text', characters: 3, start: 'abc' })).toBe('text, 3 characters')
  expect(words({ ...common, type: 'blob' })).toBe('bytes')
})
