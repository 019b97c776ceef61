// @vitest-environment jsdom
import { cleanup, fireEvent, render, screen } from '@testing-library/svelte'
import { afterEach, expect, it, vi } from 'vitest'

import type { Advice, Verdict } from '../api/types'
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

function show(hasFailures = false, kind: Verdict['kind'] = 'stage', tried: Advice | null = null) {
  const ontry = vi.fn()
  render(VerdictNote, { verdict: { ...verdict, kind }, period: 'last 30 s', hasFailures, isTried: (advice) => advice === tried, ontry })
  return ontry
}

it('shows a button only for advice with settings', async () => {
  const ontry = show()
  const buttons = screen.getAllByRole('button')
  expect(buttons.map((button) => button.getAttribute('aria-label'))).toEqual(['Try /stages/0/sleep/concurrency 2', 'Try /threads 1'])
  await fireEvent.click(buttons[0] as HTMLElement)
  expect(ontry).toHaveBeenCalledWith(more)
})

it('names a button by its label, also when its settings are tried', () => {
  show(false, 'stage', more)
  const names = screen.getAllByRole('button').map((button) => [button.textContent?.replace('✓', '').trim(), button.getAttribute('aria-label'), button.getAttribute('aria-pressed')])
  expect(names).toEqual([['Try', 'Try /stages/0/sleep/concurrency 2', 'true'], ['Try', 'Try /threads 1', 'false']])
})

it('names the window', () => {
  show()
  expect(screen.getByText(/last 30 s/)).toBeTruthy()
})

it('is not shown as good for a run with failed samples', () => {
  const tone = () => screen.getByRole('region').className
  show(false, 'consumer')
  expect(tone()).toContain('tone-good')
  cleanup()
  show(true, 'consumer')
  expect(tone()).toContain('tone-warn')
})
