// Names of modules in runs and documents: `name@3`, `name@alias`.

import type { ModuleDetail, ModuleVersion } from '../api/types'

const ALIAS = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/

export function versionOf({ versions, aliases }: ModuleDetail, wanted: string): ModuleVersion | null {
  if (wanted === 'latest') return versions[0] ?? null
  const number = /^[0-9]+$/.test(wanted) ? Number(wanted) : aliases[wanted]
  return versions.find(({ version }) => version === number) ?? null
}

export const pageOf = (module: string): string => `/modules/${module.split('@').map(encodeURIComponent).join('/')}`

/** Fault of the name of a new alias; `null` for a valid name. */
export function aliasFault(alias: string): string | null {
  if (/^[0-9]+$/.test(alias)) return 'An alias cannot be a number, because numbers refer to versions.'
  if (alias === 'latest') return 'The alias “latest” is reserved for the newest version.'
  if (!ALIAS.test(alias)) return 'Use at most 128 letters, digits, “.”, “_” or “-”, and start with a letter or a digit.'
  return null
}
