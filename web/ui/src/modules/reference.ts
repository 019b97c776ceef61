// How runs and documents name a module: `name@3`, `name@alias`.

const ALIAS = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/

/** The page of `name@version`. */
export function pageOf(module: string): string {
  return `/modules/${module.split('@').map(encodeURIComponent).join('/')}`
}

/** Why `alias` cannot be one; `null` when it can. A number would be taken for a version, and `latest` always is the newest. */
export function aliasFault(alias: string): string | null {
  if (/^[0-9]+$/.test(alias)) return 'A number names a version.'
  if (alias === 'latest') return '“latest” always is the newest version.'
  if (!ALIAS.test(alias)) return 'Letters, digits, “.”, “_” and “-”, at most 128, and a letter or digit first.'
  return null
}
