// Figures as text: a number of three or four digits and its unit, or a dash for a missing figure.

export const NOT_MEASURED = '–'

const THIN = '\u202f'

export type Quantity = 'time' | 'rate' | 'share' | 'reads'

type Figure = number | null | undefined

export const figure = (value: Figure, quantity: Quantity): string => ({ time: seconds, rate, share, reads: number })[quantity](value)

/** A figure of an axis, without trailing zeros. */
export function axisFigure(value: number, quantity: Quantity): string {
  return value === 0 ? '0' : figure(value, quantity).replace(/\.(\d*?)0+(?=\D|$)/, (_, kept: string) => (kept ? `.${kept}` : ''))
}

/** A short time: `31 ns`, `340 µs`, `25.3 ms`, `1.204 s`, `3 min 20 s`. */
export function seconds(value: Figure): string {
  if (missing(value)) return NOT_MEASURED
  const size = Math.abs(value)
  if (size === 0) return `0${THIN}ms`
  if (size < 0.000_000_999_5) return `${digits(value * 1e9)}${THIN}ns`
  if (size < 0.000_999_5) return `${digits(value * 1e6)}${THIN}µs`
  if (size < 0.999_5) return `${digits(value * 1e3)}${THIN}ms`
  if (size < 60) return `${digits(value)}${THIN}s`
  return duration(value)
}

/** A long time: `42 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`. */
export function duration(value: Figure): string {
  if (missing(value)) return NOT_MEASURED
  const whole = Math.max(0, Math.floor(value))
  if (whole < 60) return `${whole}${THIN}s`
  if (whole < 3600) return `${Math.floor(whole / 60)}${THIN}min ${two(whole % 60)}${THIN}s`
  if (whole < 86_400) return `${Math.floor(whole / 3600)}${THIN}h ${two(Math.floor((whole % 3600) / 60))}${THIN}min`
  return `${Math.floor(whole / 86_400)}${THIN}d ${Math.floor((whole % 86_400) / 3600)}${THIN}h`
}

/** Time since the start of a run: `0:07`, `12:30`, `1:02:05`; with tenths of seconds if `fine`. */
export function clock(at_s: number, fine = false): string {
  const sign = at_s < 0 ? '−' : ''
  const tenths = Math.round(Math.abs(at_s) * 10)
  const whole = fine ? Math.floor(tenths / 10) : Math.round(Math.abs(at_s))
  const hours = Math.floor(whole / 3600)
  const minutes = Math.floor((whole % 3600) / 60)
  const text = hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`
  return sign + text + (fine ? `.${tenths % 10}` : '')
}

export const rate = (value: Figure) => inUnit(value, `${THIN}/s`)
export const samplesRate = (value: Figure) => inUnit(value, `${THIN}samples/s`)
export const itemsRate = (value: Figure) => inUnit(value, `${THIN}items/s`)
export const batchesRate = (value: Figure) => inUnit(value, `${THIN}batches/s`)
/** Megabytes of 10^6 bytes, the unit of networks and disks. */
export const megabytesRate = (value: Figure) => inUnit(value, `${THIN}MB/s`)
/** A number without a unit, with decimals. */
export const number = (value: Figure) => inUnit(value, '')

/** A share of 0 to 1 as a percentage with one decimal place, and without it for 0 % and 100 %. The server rounds in the same way. */
export function share(value: Figure): string {
  if (missing(value)) return NOT_MEASURED
  const percent = value * 100
  if (percent < 0.05 || percent > 99.95) return `${Math.round(percent)}${THIN}%`
  return `${percent.toFixed(1)}${THIN}%`
}

/** A whole number with spaces between thousands. */
export function count(value: Figure): string {
  if (missing(value)) return NOT_MEASURED
  return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, THIN)
}

export function bytes(value: Figure): string {
  if (missing(value)) return NOT_MEASURED
  let size = value
  for (const unit of ['B', 'KiB', 'MiB', 'GiB', 'TiB']) {
    if (Math.abs(size) < 1024 || unit === 'TiB') return `${unit === 'B' ? Math.round(size) : digits(size)}${THIN}${unit}`
    size /= 1024
  }
  return NOT_MEASURED
}

/** Date and time of a moment in the browser's time zone. */
export function moment(rfc3339: string | null): string {
  if (!rfc3339) return NOT_MEASURED
  const date = new Date(rfc3339)
  if (Number.isNaN(date.getTime())) return rfc3339
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`
}

/** Age of a moment: `just now`, `4 min ago`, `3 d ago`. */
export function ago(rfc3339: string | null, now = Date.now()): string {
  if (!rfc3339) return NOT_MEASURED
  const gone = (now - new Date(rfc3339).getTime()) / 1000
  if (Number.isNaN(gone)) return rfc3339
  if (gone < 5) return 'just now'
  if (gone < 60) return `${Math.floor(gone)}${THIN}s ago`
  if (gone < 3600) return `${Math.floor(gone / 60)}${THIN}min ago`
  if (gone < 86_400) return `${Math.floor(gone / 3600)}${THIN}h ago`
  return `${Math.floor(gone / 86_400)}${THIN}d ago`
}

/** Last digits of a UUIDv7: the first ones are the same for all runs of a day. */
export const shortId = (id: string): string => (id.length > 12 ? id.slice(-8) : id)

/** `sha256:` and the first twelve digits. */
export const shortDigest = (digest: string): string => digest.replace(/^(sha256:)?([0-9a-f]{12})[0-9a-f]+$/, '$1$2…')

const inUnit = (value: Figure, unit: string): string => (missing(value) ? NOT_MEASURED : rateDigits(value) + unit)

/** Number of a rate, rounded as by the server: a whole number from 100 on, two decimal places from 0.1 on, else two significant digits. */
function rateDigits(value: number): string {
  const size = Math.abs(value)
  if (size >= 99.995) return count(value)
  return size === 0 || size >= 0.0995 ? value.toFixed(2) : value.toPrecision(2)
}

/** Numbers below 10 000 have at most four significant digits. */
function digits(value: number): string {
  const size = Math.abs(value)
  if (size >= 10_000) return count(value)
  return value.toFixed(size >= 1000 ? 0 : size >= 10 ? 1 : 2)
}

const two = (value: number): string => value.toString().padStart(2, '0')

const missing = (value: Figure): value is null | undefined => value === null || value === undefined || !Number.isFinite(value)
