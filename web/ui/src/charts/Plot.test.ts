// @vitest-environment jsdom
import { fireEvent, render } from '@testing-library/svelte'
import { createRawSnippet } from 'svelte'
import { beforeAll, expect, it } from 'vitest'

import Plot, { type Mark } from './Plot.svelte'

beforeAll(() => {
  globalThis.ResizeObserver ??= class {
    observe() {}
    unobserve() {}
    disconnect() {}
  }
})

const marks = [0, 1].map((place): Mark => ({ x: 40 * place, y: 0, width: 30, height: 80, title: `mark ${place}`, lines: [['n', '1']] }))

function drawn(): { chart: Element; hits: NodeListOf<Element>; seen: () => string | undefined } {
  const { container } = render(Plot, { label: 'Marks', width: 600, height: 100, marks, children: createRawSnippet(() => ({ render: () => '<g></g>' })) })
  const chart = container.querySelector('[role="group"]') as Element
  return { chart, hits: container.querySelectorAll('.hit'), seen: () => container.querySelector('.tip strong')?.textContent }
}

it('keeps a mark selected by keys when the page scrolls', async () => {
  const { chart, seen } = drawn()
  await fireEvent.keyDown(chart, { key: 'ArrowRight' })
  await fireEvent.keyDown(chart, { key: 'ArrowRight' })
  await fireEvent.scroll(window)
  expect(seen()).toBe('mark 1')
  await fireEvent.focusOut(chart)
  expect(seen()).toBeUndefined()
})

it('deselects a mark below the pointer when the page scrolls', async () => {
  const { chart, hits, seen } = drawn()
  await fireEvent.keyDown(chart, { key: 'ArrowRight' })
  await fireEvent.pointerEnter(hits[1] as Element)
  expect(seen()).toBe('mark 1')
  await fireEvent.scroll(window)
  expect(seen()).toBeUndefined()
})
