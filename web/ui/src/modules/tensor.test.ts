import { describe, expect, it } from 'vitest'

import { fromBase64, layoutOf, pictureOf } from './tensor'

const rgb = (picture: ReturnType<typeof pictureOf>, pixel: number) => [...(picture?.pixels.slice(pixel * 4, pixel * 4 + 4) ?? [])]

describe('a tensor as a picture', () => {
  it('has its channels last or first', () => {
    const last = pictureOf({ dtype: 'uint8', shape: [1, 2, 3], data: Uint8Array.of(1, 2, 3, 4, 5, 6), min: 1, max: 6 })
    const first = pictureOf({ dtype: 'uint8', shape: [3, 1, 2], data: Uint8Array.of(1, 4, 2, 5, 3, 6), min: 1, max: 6 })
    expect(last).toEqual(first)
    expect([last?.width, last?.height]).toEqual([2, 1])
    expect(rgb(last, 1)).toEqual([4, 5, 6, 255])
  })

  it('is grey with one channel or none', () => {
    const grey = pictureOf({ dtype: 'uint8', shape: [1, 2], data: Uint8Array.of(0, 200), min: 0, max: 200 })
    expect(rgb(grey, 1)).toEqual([200, 200, 200, 255])
    expect(layoutOf([1, 28, 28])).toEqual({ channels: 1, first: true, height: 28, width: 28 })
  })

  it('spreads floats over what can be seen', () => {
    const data = new Uint8Array(Float32Array.of(-2, 0, 2).buffer)
    expect(rgb(pictureOf({ dtype: 'float32', shape: [1, 1, 3], data, min: -2, max: 2 }), 0)).toEqual([0, 128, 255, 255])
  })

  it('is refused when the bytes do not fit the shape', () => {
    expect(pictureOf({ dtype: 'uint8', shape: [2, 2, 3], data: new Uint8Array(11), min: 0, max: 0 })).toBeNull()
    expect(pictureOf({ dtype: 'int64', shape: [1, 1, 3], data: new Uint8Array(24), min: 0, max: 0 })).toBeNull()
    expect(layoutOf([4, 4, 4])).toBeNull()
    expect(layoutOf([0, 4, 3])).toBeNull()
  })
})

it('reads base64', () => {
  expect([...fromBase64('AP+A')]).toEqual([0, 255, 128])
})
