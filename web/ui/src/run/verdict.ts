// Signs and short words for the limit of a run, beside the server's sentences.

import type { VerdictAnswer, VerdictKind, VerdictSpan } from '../api/types'
import type { Tone } from '../parts/Badge.svelte'

export interface Look {
  /** Different for each kind: colour is never alone. */
  sign: string
  tone: Tone
  /** Two or three words, `{}` for the stage; the name of the stage alone where there are none. */
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

/** A newer server may know more kinds. */
export function lookOf(kind: VerdictKind): Look {
  return LOOKS[kind] ?? { sign: '?', tone: 'idle' }
}

export function inShort(kind: VerdictKind, stage: string | null): string {
  return lookOf(kind).words?.replace('{}', () => stage ?? 'a stage') ?? stage ?? kind
}

/** Answer to the question if data loading is the bottleneck. */
export function answerInWords(answer: VerdictAnswer): string {
  const words: Record<VerdictAnswer, string> = { yes: 'Yes', no: 'No', nothing_waits: 'No', unknown: 'Not known yet' }
  return words[answer] ?? answer
}

/** The spans of a run with the open one from the newest live sample. */
export function spansNow(spans: readonly VerdictSpan[], now: VerdictSpan | null): VerdictSpan[] {
  const last = spans.at(-1)
  if (!now || (last && now.from_s < last.from_s)) return [...spans]
  const before = last?.from_s === now.from_s ? spans.slice(0, -1) : spans.map((span, place) => (place === spans.length - 1 ? { ...span, to_s: Math.min(span.to_s, now.from_s) } : span))
  return [...before, now]
}
