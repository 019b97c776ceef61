// @vitest-environment jsdom
import { cleanup, fireEvent, render, screen } from '@testing-library/svelte'
import { afterEach, expect, it, vi } from 'vitest'

import type { Advice, Verdict, VerdictSpan } from '../api/types'
import VerdictNote from './VerdictNote.svelte'

afterEach(cleanup)

const more: Advice = { goal: 'rate', text: 'Raise it from 1 to 2.', set: [{ pointer: '/stages/0/sleep/concurrency', value: 2 }] }
const verdict: Verdict = {
  kind: 'stage',
  answer: 'yes',
  stage: '1:nap',
  sentence: 'Data loading is the bottleneck: stage `1:nap` is slow.',
  evidence: ['It is busy 99 %.'],
  advice: [more, { goal: 'rate', text: 'Make the op faster.', set: [] }, { goal: 'saving', text: 'One thread would do.', set: [{ pointer: '/threads', value: 1 }] }],
  from_s: 0,
  to_s: 10,
  rate: 20,
  demand: 40,
  consumer_wait: 0.5,
  slots: [],
  threads: null,
}

function show(now: VerdictSpan | null = null) {
  const ontry = vi.fn()
  render(VerdictNote, { verdict, now, isTried: () => false, ontry })
  return ontry
}

it('gives advice a button only where settings do it', async () => {
  const ontry = show()
  const buttons = screen.getAllByRole('button')
  expect(buttons.map((button) => button.getAttribute('aria-label'))).toEqual(['Try /stages/0/sleep/concurrency 2', 'Try /threads 1'])
  await fireEvent.click(buttons[0] as HTMLElement)
  expect(ontry).toHaveBeenCalledWith(more)
})

it('tells apart what limits the run now, if that is something else', () => {
  show({ from_s: 42, to_s: 50, kind: 'consumer', stage: null, sentence: 'The consumer is the limit.' })
  expect(screen.getByText(/Now, since 0:42/)).toBeTruthy()
  expect(screen.getByText(/The consumer is the limit/)).toBeTruthy()
})

it('says it once while it is the same', () => {
  show({ from_s: 0, to_s: 10, kind: 'stage', stage: '1:nap', sentence: 'The same.' })
  expect(screen.queryByText(/Now, since/)).toBeNull()
})
