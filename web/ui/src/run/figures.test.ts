// @vitest-environment jsdom
import { expect, it } from 'vitest'

import { isShown } from './figures'

const shown = (kind: 'whole' | 'steady' | 'last' | 'range') => ({ kind, from_s: 0, to_s: 60 })
/** For a minute, 5 minutes and the whole run: true for the choice that is shown. */
const choices = (...[window, chosen]: [Parameters<typeof isShown>[0], Parameters<typeof isShown>[1]]) => [60, 300, null].map((span_s) => isShown(window, chosen, span_s))

it('a window longer than the run so far is the whole run', () => {
  expect(choices(shown('last'), { follow: true, span_s: 60 })).toEqual([true, false, false])
  expect(choices(shown('steady'), { follow: true, span_s: 60 })).toEqual([false, false, true])
  expect(choices(shown('whole'), { follow: true, span_s: 60 })).toEqual([false, false, true])
  expect(choices(shown('steady'), { follow: true, span_s: null })).toEqual([false, false, true])
})

it('a range is no such window', () => {
  expect(choices(shown('range'), { follow: false, from_s: 0, to_s: 60 })).toEqual([false, false, false])
})
