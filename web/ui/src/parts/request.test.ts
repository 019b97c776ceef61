import { expect, it } from 'vitest'

import { Action, Request } from './request.svelte'

/** Requests that were sent. Each is pending until the test answers it. */
function asked() {
  const asked: { signal: AbortSignal; answer: () => Promise<void> }[] = []
  const request = new Request<void>(
    (signal) =>
      new Promise((resolve) => {
        asked.push({ signal, answer: () => (resolve(), new Promise((later) => setTimeout(later))) })
      }),
  )
  return { asked, request }
}

it('sends one more request for all calls during a pending one', async () => {
  const { asked: tasks, request } = asked()
  const first = request.ask()
  void request.ask()
  void request.ask()
  expect(tasks).toHaveLength(1)
  await tasks[0]?.answer()
  expect([tasks.length, request.isAsking]).toEqual([2, true])
  await tasks[1]?.answer()
  await first
  expect([tasks.length, request.isAsking, tasks.some(({ signal }) => signal.aborted)]).toEqual([2, false, false])
})

it('cancels the pending answer for a new request', async () => {
  const { asked: tasks, request } = asked()
  void request.ask()
  void request.ask()
  void request.anew()
  expect(tasks.map(({ signal }) => signal.aborted)).toEqual([true, false])
  await tasks[0]?.answer()
  expect([tasks.length, request.isAsking]).toEqual([2, true])
  await tasks[1]?.answer()
  expect([tasks.length, request.isAsking]).toEqual([2, false])
})

it('sends no request after its end', async () => {
  const { asked: tasks, request } = asked()
  void request.ask()
  void request.ask()
  request.end()
  await tasks[0]?.answer()
  expect([tasks.length, request.isAsking]).toEqual([1, false])
})

it('keeps the answer and shows the problem when a later request fails', async () => {
  const answers = [() => 'first', () => { throw new Error('down') }, () => 'third']
  const request = new Request(async () => answers.shift()?.())
  const seen = []
  for (let time = 0; time < 3; time++) {
    await request.ask()
    seen.push([request.answer, request.problem?.detail])
  }
  expect(seen).toEqual([['first', undefined], ['first', 'down'], ['third', undefined]])
})

it('runs an action, and shows its failure', async () => {
  const action = new Action()
  const done = action.run('It could not be done', async () => { throw new Error('down') })
  expect(action.busy).toBe(true)
  expect([await done, action.busy, action.failure?.title, action.failure?.problem.detail]).toEqual([false, false, 'It could not be done', 'down'])
  expect([await action.run('It could not be done', async () => {}), action.failure]).toEqual([true, null])
})
