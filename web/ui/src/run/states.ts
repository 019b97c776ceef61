import type { RunState } from '../api/types'

/** States of a run that waits or goes on, first to last. */
export const ALIVE: RunState[] = ['queued', 'running', 'draining']
/** States that a run never leaves. */
const ENDED: RunState[] = ['completed', 'failed', 'stopped', 'interrupted']

export const STATES: RunState[] = [...ALIVE, ...ENDED]

export function isOver(state: RunState): boolean {
  return ENDED.includes(state)
}
