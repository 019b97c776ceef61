import { expect, it } from 'vitest'

import { Repeat } from './repeat'

/** What was asked so far; each waits until it is answered. */
function asked() {
  const asked: { signal: AbortSignal; answer: () => Promise<void> }[] = []
  const repeat = new Repeat(
    (signal) =>
      new Promise((resolve) => {
        asked.push({ signal, answer: () => (resolve(), new Promise((later) => setTimeout(later))) })
      }),
  )
  return { asked, repeat }
}

it('asks once more for all that was asked for meanwhile', async () => {
  const { asked: tasks, repeat } = asked()
  const first = repeat.ask()
  void repeat.ask()
  void repeat.ask()
  expect(tasks).toHaveLength(1)
  await tasks[0]?.answer()
  expect([tasks.length, repeat.isAsking]).toEqual([2, true])
  await tasks[1]?.answer()
  await first
  expect([tasks.length, repeat.isAsking, tasks.some(({ signal }) => signal.aborted)]).toEqual([2, false, false])
})

it('asks anew without the answer that is awaited', async () => {
  const { asked: tasks, repeat } = asked()
  void repeat.ask()
  void repeat.ask()
  void repeat.anew()
  expect(tasks.map(({ signal }) => signal.aborted)).toEqual([true, false])
  await tasks[0]?.answer()
  expect([tasks.length, repeat.isAsking]).toEqual([2, true])
  await tasks[1]?.answer()
  expect([tasks.length, repeat.isAsking]).toEqual([2, false])
})

it('asks nothing more behind its end', async () => {
  const { asked: tasks, repeat } = asked()
  void repeat.ask()
  void repeat.ask()
  repeat.end()
  await tasks[0]?.answer()
  expect([tasks.length, repeat.isAsking]).toEqual([1, false])
})
