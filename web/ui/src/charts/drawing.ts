// A drawn chart as a file of its own, with the colours and the type it has on the page.

const NS = 'http://www.w3.org/2000/svg'
const KEPT = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'font-family', 'font-size', 'font-weight', 'text-anchor', 'paint-order']
const LINE = 20
/** Room for a letter, more or less. */
const LETTER = 6.8

/** A colour and what it stands for; `none` where it is words alone. */
export interface Name {
  text: string
  color: string
}

export interface Drawing {
  text: string
  width: number
  height: number
}

/** The drawing as a document, under its title and what its colours stand for. */
export function drawingOf(svg: SVGSVGElement, title: string, names: readonly Name[], ink: { text: string; panel: string }): Drawing {
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
  const top = names.length > 0 ? 2 * LINE + 14 : LINE + 14
  const inner = made('g', { transform: `translate(0 ${top})` })
  inner.append(...copy.childNodes)
  const whole = made('svg', { xmlns: NS, width, height: height + top, viewBox: `0 0 ${width} ${height + top}` })
  const font = { fill: ink.text, 'font-family': 'ui-sans-serif, system-ui, sans-serif' }
  whole.append(made('rect', { width, height: height + top, fill: ink.panel }), made('text', { x: 12, y: 22, ...font, 'font-size': 14, 'font-weight': 600 }, title))
  let x = 12
  for (const { text, color } of names) {
    if (color !== 'none') whole.append(made('rect', { x, y: 33, width: 10, height: 10, fill: color }))
    if (color !== 'none') x += 15
    whole.append(made('text', { x, y: 42, ...font, 'font-size': 12 }, text))
    x += text.length * LETTER + 18
  }
  whole.append(inner)
  return { text: new XMLSerializer().serializeToString(whole), width, height: height + top }
}

/** The same as a picture, with two dots for each pixel at least. */
export async function pictureOf({ text, width, height }: Drawing): Promise<Blob | null> {
  const scale = Math.max(2, devicePixelRatio)
  const address = URL.createObjectURL(new Blob([text], { type: 'image/svg+xml' }))
  try {
    const image = new Image()
    image.src = address
    await image.decode()
    const canvas = document.createElement('canvas')
    canvas.width = Math.round(width * scale)
    canvas.height = Math.round(height * scale)
    canvas.getContext('2d')?.drawImage(image, 0, 0, canvas.width, canvas.height)
    return await new Promise((done) => canvas.toBlob(done, 'image/png'))
  } finally {
    URL.revokeObjectURL(address)
  }
}

function made(kind: string, values: Record<string, string | number>, text = ''): SVGElement {
  const element = document.createElementNS(NS, kind)
  for (const [name, value] of Object.entries(values)) element.setAttribute(name, String(value))
  element.textContent = text
  return element
}
