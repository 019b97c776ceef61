// Changes of a run's settings while it goes on, in words.

import type { SettingChange } from '../api/types'
import { segmentsOf } from '../editor/pointer'
import type { Tone } from '../parts/Badge.svelte'
import { ownerOf } from '../whatif/settings'

/** A change with its setting in words, such as `Concurrency of decode`. */
export type NamedChange = SettingChange & { setting: string }

type Steps = readonly { id: string; label: string }[]

export const OUTCOMES: Record<SettingChange['outcome'], { sign: string; tone: Tone }> = {
  set: { sign: '●', tone: 'idle' },
  suggested: { sign: '○', tone: 'idle' },
  trying: { sign: '…', tone: 'warn' },
  kept: { sign: '✓', tone: 'good' },
  undone: { sign: '↩', tone: 'idle' },
}

/** Name of a setting and of its owner, such as `concurrency` of `decode`, or `threads` of `the run`. */
export function settingOf(pointer: string, steps: Steps): { what: string; of: string } {
  const id = ownerOf(pointer, steps.map(({ id }) => id))
  const segments = segmentsOf(pointer) ?? [pointer]
  return { what: segments.at(-1) ?? '', of: steps.find((step) => step.id === id)?.label ?? (segments.slice(0, -1).join(' ') || 'the run') }
}

export const titleOf = ({ what, of }: ReturnType<typeof settingOf>): string => `${what.replace(/^./, (letter) => letter.toUpperCase())} of ${of}`

export const named = (changes: readonly SettingChange[], steps: Steps): NamedChange[] =>
  changes.map((change) => ({ ...change, setting: titleOf(settingOf(change.pointer, steps)) }))

/** True if the change stays; one that is still being measured may not. */
const holds = ({ outcome }: SettingChange): boolean => outcome === 'set' || outcome === 'kept'

/** Number of changes that hold, and the rate before the first and after the last of those that were measured; `null` if none were. */
export function broughtBy(changes: readonly SettingChange[]): { count: number; before: number; measured: number } | null {
  // Settings with which a resumed run begins have brought nothing in this run.
  const held = changes.filter((change) => holds(change) && (change.before ?? change.measured) !== null)
  const before = held.find((change) => change.before !== null)?.before ?? null
  const measured = held.findLast((change) => change.measured !== null)?.measured ?? null
  return before === null || measured === null ? null : { count: held.length, before, measured }
}

/** Last values of the settings that were changed, by their places in the document. */
export const heldBy = (changes: readonly SettingChange[]): Record<string, number> => Object.fromEntries(changes.filter(holds).map(({ pointer, to }) => [pointer, to]))

/** Flags with which another run begins with the settings that hold, or that would help. */
export function flagsOf(changes: readonly SettingChange[]): string {
  const wanted = changes.filter((change) => holds(change) || change.outcome === 'suggested')
  return [...new Map(wanted.map(({ pointer, to }) => [pointer, to]))].map(([pointer, to]) => `--set ${pointer}=${to}`).join(' ')
}

/** Change of the rate, such as `+210 %`; `null` if it was not measured. */
export function gainOf({ before, measured }: Pick<SettingChange, 'before' | 'measured'>): string | null {
  if (before === null || measured === null || before <= 0) return null
  const percent = Math.round((measured / before - 1) * 100)
  return `${percent < 0 ? '−' : '+'}${Math.abs(percent)}\u202f%`
}
