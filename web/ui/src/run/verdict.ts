// Signs and short names for the limit of a run. The server writes the full sentences.

import type { Answer, VerdictKind, VerdictSpan } from '../api/types'
import type { Tone } from '../parts/Badge.svelte'

export interface Look {
  /** Differs for each kind, so that colour is not the only distinction. */
  sign: string
  tone: Tone
  /** Short name with `{}` for the stage; the default is the name of the stage. */
  words?: string
}

const LOOKS: Record<VerdictKind, Look> = {
  consumer: { sign: '✓', tone: 'good', words: 'the consumer' },
  nothing_waits: { sign: '○', tone: 'good', words: 'nothing' },
  variance: { sign: '≈', tone: 'warn', words: 'bursts at {}' },
  stage: { sign: '▲', tone: 'warn' },
  storage: { sign: '◆', tone: 'warn', words: 'storage at {}' },
  source: { sign: '●', tone: 'warn' },
  threads: { sign: '‖', tone: 'warn', words: 'worker threads' },
  permits: { sign: '◈', tone: 'warn', words: 'permits for {}' },
  failures: { sign: '✕', tone: 'bad', words: 'failures at {}' },
  too_little: { sign: '…', tone: 'idle', words: 'not known yet' },
}

/** Sign and tone of a limit, also of kinds that only a newer server knows. */
export function lookOf(kind: VerdictKind): Look {
  return LOOKS[kind] ?? { sign: '?', tone: 'idle' }
}

export function inShort(kind: VerdictKind, stage: string | null): string {
  return lookOf(kind).words?.replace('{}', () => stage ?? 'a stage') ?? stage ?? kind
}

/** Answers to the question “Is data loading the bottleneck?”. */
export const ANSWERS: Record<Answer, string> = { yes: 'Yes', no: 'No', nothing_waits: 'No', unknown: 'Not known yet' }

/** Spans of the limit from the run's details, with the current span from the newest live sample. */
export function spansNow(spans: readonly VerdictSpan[], now: VerdictSpan | null): VerdictSpan[] {
  const last = spans.at(-1)
  if (!now || (last && now.from_s < last.from_s)) return [...spans]
  const before = last?.from_s === now.from_s ? spans.slice(0, -1) : spans.map((span, place) => (place === spans.length - 1 ? { ...span, to_s: Math.min(span.to_s, now.from_s) } : span))
  return [...before, now]
}
