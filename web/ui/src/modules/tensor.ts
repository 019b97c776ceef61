// Arrays that can be looked at: images of one or three channels, channels last or first.

export interface Picture {
  width: number
  height: number
  /** Four bytes a pixel, rows first. */
  pixels: Uint8ClampedArray<ArrayBuffer>
}

export interface TensorPreview {
  dtype: string
  shape: number[]
  /** All elements, little-endian, row-major. */
  data: Uint8Array
  min: number | null
  max: number | null
}

/** Where the channels of an image are; `null` for a shape that is no image. */
export function layoutOf(shape: number[]): { width: number; height: number; channels: number; first: boolean } | null {
  const [a = 0, b = 0, c] = shape
  if (shape.length === 2) return a > 0 && b > 0 ? { height: a, width: b, channels: 1, first: false } : null
  if (shape.length !== 3 || c === undefined || a < 1 || b < 1 || c < 1) return null
  if (c === 3 || c === 1) return { height: a, width: b, channels: c, first: false }
  if (a === 3 || a === 1) return { height: b, width: c, channels: a, first: true }
  return null
}

/** The picture an array of bytes or of 32-bit floats is; floats are spread from their smallest to their largest. */
export function pictureOf({ dtype, shape, data, min, max }: TensorPreview): Picture | null {
  const layout = layoutOf(shape)
  const size = dtype === 'uint8' ? 1 : dtype === 'float32' ? 4 : 0
  if (!layout || size === 0) return null
  const { width, height, channels, first } = layout
  const count = width * height
  if (data.byteLength !== count * channels * size) return null

  const view = new DataView(data.buffer, data.byteOffset, data.byteLength)
  const low = min ?? 0
  const spread = (max ?? 1) - low || 1
  const element = (place: number) => (size === 1 ? (data[place] as number) : ((view.getFloat32(place * 4, true) - low) / spread) * 255)

  const pixels = new Uint8ClampedArray(count * 4)
  for (let pixel = 0; pixel < count; pixel += 1) {
    for (let colour = 0; colour < 3; colour += 1) {
      const channel = channels === 1 ? 0 : colour
      pixels[pixel * 4 + colour] = element(first ? channel * count + pixel : pixel * channels + channel)
    }
    pixels[pixel * 4 + 3] = 255
  }
  return { width, height, pixels }
}

export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0))
}
