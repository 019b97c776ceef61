// Fields of results in words; tensors as pictures if their shape is that of images, else as a line of values.

import type { MadeField } from '../api/types'
import { fromBase64 } from '../parts/base64'
import { count } from '../parts/format'

export type TensorField = Extract<MadeField, { type: 'tensor' }>

/** Elements in row-major order. 64-bit integers are `bigint`s, which keep all digits. */
export type Elements = ArrayLike<number> | ArrayLike<bigint>

/** Interpretation of a shape as one or several images. */
export interface Layout {
  images: number
  height: number
  width: number
  channels: 1 | 3
  /** Set if channels come before rows and columns. */
  first: boolean
}

export interface Picture {
  width: number
  height: number
  /** Red, green, blue and opacity of each pixel, rows first. NaN is transparent. */
  pixels: Uint8ClampedArray<ArrayBuffer>
}

export interface Scale {
  low: number
  high: number
}

/** Minimum height and width of an image. Smaller tensors are shown as values. */
const LEAST_SIDE = 4

/** Layout of an image or of a batch of images; `null` for a shape of neither. */
export function layoutOf(shape: number[]): Layout | null {
  const [a = 0, b = 0, c = 0, d = 0] = shape
  if (shape.length === 2) return layout(1, a, b, 1, false)
  if (shape.length === 3) return imageOf(1, a, b, c) ?? layout(a, b, c, 1, false)
  return shape.length === 4 ? imageOf(a, b, c, d) : null
}

/** Layout of images with three dimensions: channels last, as in most files, or channels first, as in most networks. */
function imageOf(images: number, a: number, b: number, c: number): Layout | null {
  if (c === 1 || c === 3) return layout(images, a, b, c, false)
  if (a === 1 || a === 3) return layout(images, b, c, a, true)
  return null
}

function layout(images: number, height: number, width: number, channels: 1 | 3, first: boolean): Layout | null {
  return images > 0 && height >= LEAST_SIDE && width >= LEAST_SIDE ? { images, height, width, channels, first } : null
}

/** Elements of a tensor; `null` if `data` is missing, has an unknown type or does not fit the shape. */
export function elementsOf({ dtype, shape, data }: Pick<TensorField, 'dtype' | 'shape'> & { data?: string | null }): Elements | null {
  const read = readers[dtype]
  if (!read || !data) return null
  const bytes = fromBase64(data)
  const count = shape.reduce((product, side) => product * side, 1)
  const elements = bytes.length % read.size === 0 ? read.of(bytes) : null
  return elements?.length === count ? elements : null
}

const readers: Partial<Record<string, { size: number; of: (bytes: Uint8Array<ArrayBuffer>) => Elements }>> = {
  bool: { size: 1, of: (bytes) => bytes },
  uint8: { size: 1, of: (bytes) => bytes },
  int8: { size: 1, of: ({ buffer }) => new Int8Array(buffer) },
  uint16: { size: 2, of: ({ buffer }) => new Uint16Array(buffer) },
  int16: { size: 2, of: ({ buffer }) => new Int16Array(buffer) },
  float16: { size: 2, of: ({ buffer }) => Float32Array.from(new Uint16Array(buffer), fromHalf) },
  bfloat16: { size: 2, of: ({ buffer }) => new Float32Array(Uint32Array.from(new Uint16Array(buffer), (bits) => bits << 16).buffer) },
  int32: { size: 4, of: ({ buffer }) => new Int32Array(buffer) },
  float32: { size: 4, of: ({ buffer }) => new Float32Array(buffer) },
  int64: { size: 8, of: ({ buffer }) => new BigInt64Array(buffer) },
  float64: { size: 8, of: ({ buffer }) => new Float64Array(buffer) },
}

/** Value of a half-precision float (IEEE 754): 1 bit of sign, 5 of exponent, 10 of fraction. */
function fromHalf(bits: number): number {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023]
  const size = exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction ? NaN : Infinity) : (1 + fraction / 1024) * 2 ** (exponent - 15)
  return bits & 0x8000 ? -size : size
}

/** Values of black and white: 0 and 255 for bytes, the minimum and the maximum for other types. */
export function scaleOf(dtype: string, elements: Elements): Scale {
  if (dtype === 'uint8') return { low: 0, high: 255 }
  const { low, high } = boundsOf(elements, 0, elements.length)
  return low <= high ? { low, high } : { low: 0, high: 0 }
}

/** Minimum and maximum of the finite elements from `start` to `end`; infinite and reversed if there are none. */
function boundsOf(elements: Elements, start: number, end: number): Scale {
  let [low, high] = [Infinity, -Infinity]
  for (let at = start; at < end; at++) {
    const value = Number(elements[at])
    if (!Number.isFinite(value)) continue
    low = Math.min(low, value)
    high = Math.max(high, value)
  }
  return { low, high }
}

export function pictureOf(elements: Elements, { height, width, channels, first }: Layout, image: number, { low, high }: Scale): Picture {
  const count = width * height
  const start = image * count * channels
  const spread = high - low || 1
  const pixels = new Uint8ClampedArray(count * 4)
  for (let pixel = 0; pixel < count; pixel++) {
    let clear = false
    for (let colour = 0; colour < 3; colour++) {
      const channel = channels === 1 ? 0 : colour
      const value = Number(elements[start + (first ? channel * count + pixel : pixel * channels + channel)])
      clear ||= Number.isNaN(value)
      pixels[pixel * 4 + colour] = ((value - low) / spread) * 255
    }
    pixels[pixel * 4 + 3] = clear ? 0 : 255
  }
  return { width, height, pixels }
}

/** Minimum and maximum of each column of a line drawing with at most `columns` columns, as shares of the scale. */
export function envelopeOf(elements: Elements, { low, high }: Scale, columns: number): { from: number; to: number }[] {
  const spread = high - low || 1
  const count = Math.min(columns, elements.length)
  return Array.from({ length: count }, (_, column) => {
    const [start, end] = [0, 1].map((more) => Math.floor(((column + more) * elements.length) / count)) as [number, number]
    const bounds = boundsOf(elements, start, end)
    const [least, most] = bounds.low <= bounds.high ? [bounds.low, bounds.high] : [high, low]
    return { from: (least - low) / spread, to: (most - low) / spread }
  })
}

export function describe(field: MadeField): string {
  switch (field.type) {
    case 'text':
      return `text, ${count(field.characters)} characters`
    case 'tensor':
      return `tensor ${field.dtype} [${field.shape.join(', ')}]`
    case 'blob':
      return 'bytes'
    default:
      return field.type
  }
}
