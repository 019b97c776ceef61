// Charts as files: SVG with the colours and fonts of the page, and PNG.

import type { Ink } from './palette'

const NS = 'http://www.w3.org/2000/svg'
const KEPT = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'font-family', 'font-size', 'font-weight', 'text-anchor', 'paint-order']
const LINE = 20
/** Font of saved charts, equal to `--sans` in app.css, which canvases cannot read. */
export const FONT = 'ui-sans-serif, system-ui, sans-serif'
/** Approximate width of a letter, in pixels. */
export const LETTER = 6.8

/** Entry of a legend; the colour `none` draws the text alone. */
export interface Name {
  text: string
  color: string
}

/** SVG document with a title, a subtitle, a legend and the drawing. */
export function drawingOf(svg: SVGSVGElement, title: string, about: string, names: readonly Name[], ink: Ink): { text: string; width: number; height: number } {
  const { width, height } = svg.getBoundingClientRect()
  const copy = svg.cloneNode(true) as SVGSVGElement
  const seen = [...svg.querySelectorAll('*')]
  for (const [place, element] of [...copy.querySelectorAll('*')].entries()) {
    const style = getComputedStyle(seen[place] as Element)
    for (const name of KEPT) element.setAttribute(name, style.getPropertyValue(name))
    element.removeAttribute('class')
    element.removeAttribute('style')
  }
  copy.querySelectorAll('[data-screen]').forEach((element) => element.remove())
  const top = names.length > 0 ? 3 * LINE + 14 : 2 * LINE + 14
  const inner = made('g', { transform: `translate(0 ${top})` })
  inner.append(...copy.childNodes)
  const whole = made('svg', { xmlns: NS, width, height: height + top, viewBox: `0 0 ${width} ${height + top}` })
  const font = { fill: ink.text, 'font-family': FONT }
  whole.append(made('rect', { width, height: height + top, fill: ink.panel }), made('text', { x: 12, y: 22, ...font, 'font-size': 14, 'font-weight': 600 }, title), made('text', { x: 12, y: 41, ...font, fill: ink.soft, 'font-size': 12 }, about))
  let x = 12
  for (const { text, color } of names) {
    if (color !== 'none') whole.append(made('rect', { x, y: 53, width: 10, height: 10, fill: color }))
    if (color !== 'none') x += 15
    whole.append(made('text', { x, y: 62, ...font, 'font-size': 12 }, text))
    x += text.length * LETTER + 18
  }
  whole.append(inner)
  return { text: new XMLSerializer().serializeToString(whole), width, height: height + top }
}

/** Pixels of a PNG for each CSS pixel. */
export const dots = () => Math.max(2, devicePixelRatio)

export async function pictureOf({ text, width, height }: ReturnType<typeof drawingOf>): Promise<Blob | null> {
  const address = URL.createObjectURL(new Blob([text], { type: 'image/svg+xml' }))
  try {
    const image = new Image()
    image.src = address
    await image.decode()
    return await png(width, height, (context) => context.drawImage(image, 0, 0, width, height))
  } finally {
    URL.revokeObjectURL(address)
  }
}

/** PNG with a title, a subtitle and content of `width` by `height` pixels, which `paint` draws. */
export function painted(title: string, about: string, width: number, height: number, ink: Ink, paint: (context: CanvasRenderingContext2D) => void): Promise<Blob | null> {
  const top = 2 * LINE + 14
  return png(width, height + top, (context) => {
    context.fillStyle = ink.panel
    context.fillRect(0, 0, width, height + top)
    for (const [text, y, color, font] of [[title, 22, ink.text, '600 14px'], [about, 41, ink.soft, '12px']] as const) {
      context.fillStyle = color
      context.font = `${font} ${FONT}`
      context.fillText(text, 12, y, width - 24)
    }
    context.translate(0, top)
    paint(context)
  })
}

function png(width: number, height: number, paint: (context: CanvasRenderingContext2D) => void): Promise<Blob | null> {
  const canvas = document.createElement('canvas')
  canvas.width = Math.round(width * dots())
  canvas.height = Math.round(height * dots())
  const context = canvas.getContext('2d') as CanvasRenderingContext2D
  context.scale(dots(), dots())
  paint(context)
  return new Promise((done) => canvas.toBlob(done, 'image/png'))
}

function made(kind: string, values: Record<string, string | number>, text = ''): SVGElement {
  const element = document.createElementNS(NS, kind)
  for (const [name, value] of Object.entries(values)) element.setAttribute(name, String(value))
  element.textContent = text
  return element
}
