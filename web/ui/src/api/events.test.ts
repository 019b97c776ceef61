import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'

import { EventStream, type Connection, type Listener, type Source } from './events'
import type { LiveSample } from './types'

/** Event source whose events come from the test. */
class FakeSource implements Source {
  onerror: ((event: Event) => void) | null = null
  closed = false
  #listeners = new Map<string, (event: MessageEvent<string>) => void>()

  constructor(readonly address: string) {}

  addEventListener(type: string, listener: (event: MessageEvent<string>) => void): void {
    this.#listeners.set(type, listener)
  }

  close(): void {
    this.closed = true
  }

  send(type: string, data: unknown, id = ''): void {
    this.#listeners.get(type)?.(new MessageEvent(type, { data: JSON.stringify(data), lastEventId: id }))
  }

  hello(epoch = 'e1'): void {
    this.send('hello', { epoch, hz: 4 })
  }

  sample(run: string, t1_s: number, id: string): void {
    this.send('sample', { run, t0_s: t1_s - 0.25, t1_s }, id)
  }

  fail(): void {
    this.onerror?.(new Event('error'))
  }
}

let sources: FakeSource[]
let connections: Connection[]
let stream: EventStream

afterEach(() => void vi.useRealTimers())

beforeEach(() => {
  vi.useFakeTimers()
  sources = []
  connections = []
  stream = new EventStream(
    (address) => {
      const source = new FakeSource(address)
      sources.push(source)
      return source
    },
    (connection) => connections.push(connection),
  )
})

function newest(): FakeSource {
  const source = sources.at(-1)
  if (!source) throw new Error('no connection was made')
  return source
}

/** Listener that records its events. */
function ear(): Listener & { heard: number[]; refetches: number } {
  const notes = {
    heard: [] as number[],
    refetches: 0,
    sample: (sample: LiveSample) => void notes.heard.push(sample.t1_s),
    refetch: () => void notes.refetches++,
  }
  return notes
}

describe('one connection', () => {
  it('is shared by all followers and names each run once', () => {
    stream.follow('b', ear())
    stream.follow('a', ear())
    stream.follow('b', ear())
    stream.follow(null, ear())
    vi.advanceTimersByTime(100)
    expect(sources.map(({ address }) => address)).toEqual(['/api/v1/events?runs=a%2Cb'])
  })

  it('is opened again for other runs and closed without followers', () => {
    const endA = stream.follow('a', ear())
    vi.advanceTimersByTime(100)
    const endB = stream.follow('b', ear())
    vi.advanceTimersByTime(100)
    expect(sources.map(({ closed }) => closed)).toEqual([true, false])
    expect(newest().address).toBe('/api/v1/events?runs=a%2Cb')
    endA()
    endB()
    vi.advanceTimersByTime(100)
    expect(newest().closed).toBe(true)
    expect(stream.connection).toBe('idle')
  })

  it('stays when one page leaves and the next follows the same run', () => {
    const end = stream.follow('a', ear())
    vi.advanceTimersByTime(100)
    end()
    stream.follow('a', ear())
    vi.advanceTimersByTime(100)
    expect(sources).toHaveLength(1)
    expect(newest().closed).toBe(false)
  })

  it('passes samples to the followers of their run only', () => {
    const [a, b] = [ear(), ear()]
    stream.follow('a', a)
    stream.follow('b', b)
    vi.advanceTimersByTime(100)
    newest().hello()
    newest().sample('a', 1, 'e1-1')
    newest().sample('b', 2, 'e1-2')
    expect([a.heard, b.heard]).toEqual([[1], [2]])
  })
})

describe('a break', () => {
  it('continues after the last id without a refetch on the same server', () => {
    const a = ear()
    stream.follow('a', a)
    vi.advanceTimersByTime(100)
    newest().hello()
    expect(a.refetches).toBe(1)
    newest().sample('a', 1, 'e1-7')
    newest().fail()
    expect(stream.connection).toBe('reconnecting')
    vi.advanceTimersByTime(500)
    expect(newest().address).toBe('/api/v1/events?runs=a&last=e1-7')
    newest().hello()
    newest().sample('a', 1, 'e1-7')
    newest().sample('a', 1.25, 'e1-8')
    expect(a.heard).toEqual([1, 1.25])
    expect(a.refetches).toBe(1)
    expect(stream.connection).toBe('live')
  })

  it('refetches after a restart and accepts ids that start again', () => {
    const a = ear()
    stream.follow('a', a)
    vi.advanceTimersByTime(100)
    newest().hello('e1')
    newest().sample('a', 90, 'e1-400')
    newest().fail()
    vi.advanceTimersByTime(500)
    newest().hello('e2')
    expect(a.refetches).toBe(2)
    newest().sample('a', 91, 'e2-1')
    newest().sample('a', 91.25, 'e2-2')
    expect(a.heard).toEqual([90, 91, 91.25])
  })

  it('waits longer each time, ten seconds at most, and starts again after a hello', () => {
    stream.follow('a', ear())
    vi.advanceTimersByTime(100)
    const waits: number[] = []
    for (let turn = 0; turn < 7; turn++) {
      newest().fail()
      const made = sources.length
      const failed = Date.now()
      while (sources.length === made) vi.advanceTimersByTime(100)
      waits.push(Date.now() - failed)
    }
    expect(waits).toEqual([500, 1000, 2000, 4000, 8000, 10_000, 10_000])
    newest().hello()
    newest().fail()
    vi.advanceTimersByTime(500)
    expect(sources).toHaveLength(9)
  })

  it('is noticed when the samples of a live run stop without an end', () => {
    stream.follow('a', ear())
    vi.advanceTimersByTime(100)
    newest().hello()
    newest().sample('a', 1, 'e1-1')
    vi.advanceTimersByTime(9_900)
    expect(stream.connection).toBe('live')
    vi.advanceTimersByTime(200)
    expect(stream.connection).toBe('reconnecting')
    expect(sources[0]?.closed).toBe(true)
  })

  it('is noticed when the pings of an idle server stop', () => {
    stream.follow(null, ear())
    vi.advanceTimersByTime(100)
    newest().hello()
    for (let pings = 0; pings < 4; pings++) {
      vi.advanceTimersByTime(15_000)
      newest().send('ping', {})
    }
    vi.advanceTimersByTime(39_000)
    expect(stream.connection).toBe('live')
    vi.advanceTimersByTime(2_000)
    expect(stream.connection).toBe('reconnecting')
  })

  it('is not assumed while any event comes', () => {
    stream.follow(null, ear())
    stream.follow('a', ear())
    vi.advanceTimersByTime(100)
    newest().hello()
    newest().send('ping', {})
    for (let n = 1; n < 10; n++) {
      vi.advanceTimersByTime(14_000)
      newest().send('runs', { id: 'b' }, `e1-${n}`)
    }
    newest().sample('a', 1, 'e1-10')
    newest().send('end', { id: 'a' }, 'e1-11')
    vi.advanceTimersByTime(15_000)
    newest().send('ping', {})
    vi.advanceTimersByTime(39_000)
    expect(stream.connection).toBe('live')
    expect(sources).toHaveLength(1)
  })

  it('is noticed when no event follows the hello', () => {
    stream.follow(null, ear())
    vi.advanceTimersByTime(100)
    newest().hello()
    vi.advanceTimersByTime(40_000)
    expect(stream.connection).toBe('reconnecting')
  })

  it('ignores events of a closed connection', () => {
    const a = ear()
    stream.follow('a', a)
    vi.advanceTimersByTime(100)
    const old = newest()
    old.hello()
    old.fail()
    vi.advanceTimersByTime(500)
    old.sample('a', 5, 'e1-9')
    expect(a.heard).toEqual([])
  })
})

describe('missed events', () => {
  it('are fetched only by followers of the run that a gap names', () => {
    const [a, b] = [ear(), ear()]
    stream.follow('a', a)
    stream.follow('b', b)
    vi.advanceTimersByTime(100)
    newest().hello()
    newest().send('gap', { run: 'b' }, 'e1-3')
    expect([a.refetches, b.refetches]).toEqual([1, 2])
  })

  it('are reported after a reconnect by a gap or an end that repeats the last id', () => {
    const [lists, a] = [ear(), ear()]
    const ended: string[] = []
    stream.follow(null, lists)
    stream.follow('a', { ...a, refetch: () => void a.refetches++, end: ({ id }) => void ended.push(id) })
    vi.advanceTimersByTime(100)
    newest().hello()
    newest().sample('a', 1, 'e1-7')
    newest().fail()
    vi.advanceTimersByTime(500)
    newest().hello()
    expect([lists.refetches, a.refetches]).toEqual([1, 1])
    newest().send('end', { id: 'a' }, 'e1-7')
    newest().send('gap', { run: '' }, 'e1-7')
    expect([lists.refetches, a.refetches, ended]).toEqual([2, 1, ['a']])
    newest().send('gap', { run: 'a' }, 'e1-7')
    expect([lists.refetches, a.refetches]).toEqual([2, 2])
  })

  it('are fetched after a pause, not replayed', () => {
    const a = ear()
    stream.follow('a', a)
    vi.advanceTimersByTime(100)
    newest().hello()
    newest().sample('a', 1, 'e1-1')
    stream.pause()
    expect(newest().closed).toBe(true)
    vi.advanceTimersByTime(120_000)
    expect(sources).toHaveLength(1)
    stream.resume()
    expect(newest().address).toBe('/api/v1/events?runs=a')
    newest().hello()
    expect(a.refetches).toBe(2)
    expect(connections).toEqual(['connecting', 'live', 'paused', 'idle', 'connecting', 'live'])
  })
})
