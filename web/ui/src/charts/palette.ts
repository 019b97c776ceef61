// Colours of charts, for canvases, which cannot read custom properties of CSS.

export interface Stroke {
  color: string
  dash: number[]
}

// Distinct for colour-blind readers, with a contrast of at least 3:1. Dashes differ, too.
const LIGHT = ['#0b6e75', '#b4530a', '#5b4bc4', '#a3195b', '#2f6f1f', '#1565c0', '#7a5b00', '#5d6970', '#8e24aa', '#b3261e']
const DARK = ['#4cc4ca', '#f0a35e', '#a79bff', '#ff86b7', '#8bd06f', '#6fb1ff', '#e0c050', '#b0bec5', '#d79bf0', '#ff8a85']
const DASHES = [[], [6, 3], [2, 2], [9, 3, 2, 3]]

export function strokeOf(place: number, dark: boolean): Stroke {
  const colors = dark ? DARK : LIGHT
  return {
    color: colors[place % colors.length] as string,
    dash: DASHES[(place + Math.floor(place / colors.length)) % DASHES.length] as number[],
  }
}

export type Ink = Record<'text' | 'soft' | 'grid' | 'panel', string>

export function inkOf(dark: boolean): Ink {
  return dark
    ? { text: '#e4eaec', soft: '#a8b4ba', grid: '#2a3237', panel: '#171c1f' }
    : { text: '#14191b', soft: '#4a555b', grid: '#e6eaec', panel: '#ffffff' }
}

/** Text colour of a tone, as `--good` and the others in app.css, and a background colour. */
export function toneOf(tone: 'good' | 'warn' | 'bad' | 'idle', dark: boolean): { ink: string; wash: string } {
  const light = { good: ['#136b3a', '#d3ecde'], warn: ['#7d5000', '#f6e4bd'], bad: ['#ad1f28', '#f8d4d4'], idle: ['#566269', '#e3e8ea'] }
  const night = { good: ['#5fcf8d', '#143a25'], warn: ['#e5b257', '#453413'], bad: ['#ff8a85', '#4a1b1e'], idle: ['#9aa7ad', '#2a3237'] }
  const [ink, wash] = (dark ? night : light)[tone] as [string, string]
  return { ink, wash }
}

type Rgb = [number, number, number]

// Lightness increases or decreases monotonically, so that the ramp is readable in grey, and an empty queue has more contrast than a full
// one. The ramp has no red, which marks failures.
const RAMP_LIGHT: Rgb[] = [[150, 82, 14], [208, 142, 52], [244, 212, 146], [190, 227, 222]]
const RAMP_DARK: Rgb[] = [[255, 196, 104], [204, 140, 52], [120, 112, 62], [24, 72, 74]]

/** Colour of a readiness from 0 to 1. */
export function readinessColor(value: number, dark: boolean): string {
  const ramp = dark ? RAMP_DARK : RAMP_LIGHT
  const at = Math.min(Math.max(value, 0), 1) * (ramp.length - 1)
  const low = Math.min(Math.floor(at), ramp.length - 2)
  const [a, b] = [ramp[low] as Rgb, ramp[low + 1] as Rgb]
  const mixed = a.map((channel, place) => Math.round(channel + ((b[place] as number) - channel) * (at - low)))
  return `rgb(${mixed.join(' ')})`
}
