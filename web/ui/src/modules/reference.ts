// How documents and runs name a module: `name`, `name@3`, `name@alias` or `sha256:…`.

export type Reference = { name: string; version: string | null } | { digest: string }

const PART = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/
const VERSION = /^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$/
const DIGEST = /^sha256:[0-9a-f]{64}$/

/** What a reference names, or `null` when it is none. */
export function parseReference(text: string): Reference | null {
  if (DIGEST.test(text)) return { digest: text }
  const [name = '', version, ...more] = text.split('@')
  if (more.length > 0 || !PART.test(name)) return null
  if (version === undefined) return { name, version: null }
  return VERSION.test(version) ? { name, version } : null
}

/** The page of what a reference names; `null` for a digest, which may have many names. */
export function pageOf(reference: string): string | null {
  const parsed = parseReference(reference)
  if (!parsed || 'digest' in parsed) return null
  const page = `/modules/${encodeURIComponent(parsed.name)}`
  return parsed.version === null || parsed.version === 'latest' ? page : `${page}/${encodeURIComponent(parsed.version)}`
}

/** Why `alias` cannot be one; `null` when it can. A number would be taken for a version, and `latest` always is the newest. */
export function aliasFault(alias: string): string | null {
  if (/^[0-9]+$/.test(alias)) return 'A number names a version.'
  if (alias === 'latest') return '“latest” always is the newest version.'
  if (!PART.test(alias)) return 'Letters, digits, “.”, “_” and “-”, at most 128, and a letter or digit first.'
  return null
}
