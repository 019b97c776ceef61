// One event stream for the whole tab, shared by every page: browsers allow about six connections to a host.

import type { LiveEvent, LiveSample, LogEntry, RunSummary } from './types'

/** Events that a page receives. `refetch` reports that events may be missing: the page fetches its data again. */
export interface Listener {
  sample?(sample: LiveSample): void
  state?(run: RunSummary): void
  runs?(run: RunSummary): void
  log?(run: string, entry: LogEntry): void
  end?(run: RunSummary): void
  refetch?(): void
}

export type Connection = 'idle' | 'connecting' | 'live' | 'reconnecting' | 'paused'

export interface Source {
  addEventListener(type: string, listener: (event: MessageEvent<string>) => void): void
  onerror: ((event: Event) => void) | null
  close(): void
}

export interface Timers {
  set(task: () => void, after_ms: number): number
  clear(timer: number): void
}

const EVENTS: LiveEvent['event'][] = ['hello', 'ping', 'sample', 'state', 'runs', 'log', 'gap', 'end']
const FIRST_RETRY_MS = 500
const LONGEST_RETRY_MS = 10_000
/**
 * A live run sends four samples a second, and an idle server sends a `ping` every 15 s. A connection without either is dead, even
 * if the browser keeps it open.
 */
const SAMPLES_SILENCE_MS = 10_000
const PINGS_SILENCE_MS = 40_000
/** Changes of the followed runs within this time change the connection once. */
const SETTLE_MS = 30

interface Follower {
  run: string | null
  listener: Listener
}

/**
 * Follows runs over one connection, which is opened again when it breaks or when other runs are followed.
 *
 * Ids are `{epoch}-{n}`: `n` restarts with the server, so an id counts only within its epoch. A reconnect within an epoch
 * continues after the last id; after any other one, all listeners refetch.
 */
export class EventStream {
  connection: Connection = 'idle'
  #followers = new Set<Follower>()
  #source: Source | null = null
  #epoch: string | null = null
  #last: { epoch: string; n: number } | null = null
  #runsOfSource = ''
  #retry_ms = FIRST_RETRY_MS
  #retry: number | null = null
  #settle: number | null = null
  #silence: number | null = null
  #fresh = true

  constructor(
    private readonly open: (address: string) => Source,
    private readonly timers: Timers,
    private readonly onConnection: (connection: Connection) => void = () => {},
  ) {}

  /** Follows one run, or with `null` only the list of runs; returns a function that ends it. */
  follow(run: string | null, listener: Listener): () => void {
    const follower = { run, listener }
    this.#followers.add(follower)
    this.#settleSoon()
    return () => {
      if (this.#followers.delete(follower)) this.#settleSoon()
    }
  }

  /** Connects at once instead of after the next wait. */
  reconnect(): void {
    if (this.connection === 'reconnecting') this.#connect()
  }

  /** Closes the connection of a hidden tab. */
  pause(): void {
    if (this.connection === 'paused') return
    this.#close()
    this.#say('paused')
  }

  /** Opens the connection of a tab that is visible again. Events in between are fetched, not replayed. */
  resume(): void {
    if (this.connection !== 'paused') return
    this.#last = null
    this.#say('idle')
    this.#connect()
  }

  #settleSoon(): void {
    if (this.connection === 'paused' || this.#settle !== null) return
    this.#settle = this.timers.set(() => {
      this.#settle = null
      if (this.connection === 'paused') return
      if (this.#followers.size === 0) {
        this.#close()
        this.#say('idle')
      } else if (this.#source === null || this.#runs() !== this.#runsOfSource) {
        // A newly followed run has no last id: its page refetches at `hello`.
        this.#last = null
        this.#connect()
      }
    }, SETTLE_MS)
  }

  #runs(): string {
    const runs = new Set<string>()
    for (const { run } of this.#followers) if (run !== null) runs.add(run)
    return [...runs].sort().join(',')
  }

  #connect(): void {
    this.#close()
    if (this.#followers.size === 0) return
    if (this.connection !== 'reconnecting') this.#say('connecting')
    this.#runsOfSource = this.#runs()
    const search = new URLSearchParams()
    if (this.#runsOfSource) search.set('runs', this.#runsOfSource)
    if (this.#last) search.set('last', `${this.#last.epoch}-${this.#last.n}`)
    this.#fresh = this.#last === null
    const text = search.toString()
    const source = this.open('/api/v1/events' + (text ? `?${text}` : ''))
    this.#source = source
    for (const type of EVENTS) {
      source.addEventListener(type, (event) => {
        if (this.#source === source) this.#receive(type, event)
      })
    }
    source.onerror = () => {
      if (this.#source === source) this.#broken()
    }
  }

  #receive(type: LiveEvent['event'], { data, lastEventId }: MessageEvent<string>): void {
    this.#listenForSilence(type === 'sample' ? SAMPLES_SILENCE_MS : PINGS_SILENCE_MS)
    if (type === 'ping') return
    const live = { event: type, data: JSON.parse(data) as unknown } as LiveEvent
    // After a reconnect the server starts with a `gap` or an `end`, which have the last id seen.
    if (type !== 'hello' && this.#isOld(lastEventId) && type !== 'gap' && type !== 'end') return
    switch (live.event) {
      case 'hello':
        this.#hello(live.data.epoch)
        break
      case 'sample':
        this.#tell(live.data.run, (listener) => listener.sample?.(live.data))
        break
      case 'log':
        this.#tell(live.data.run, (listener) => listener.log?.(live.data.run, live.data.entry))
        break
      case 'gap':
        // An empty run stands for the list of runs.
        this.#tell(live.data.run === '' ? null : live.data.run, (listener) => listener.refetch?.())
        break
      case 'state':
        this.#tell(live.data.id, (listener) => listener.state?.(live.data))
        break
      case 'end':
        this.#tell(live.data.id, (listener) => listener.end?.(live.data))
        break
      case 'runs':
        for (const { listener } of [...this.#followers]) listener.runs?.(live.data)
        break
    }
  }

  #hello(epoch: string): void {
    this.#retry_ms = FIRST_RETRY_MS
    const restarted = this.#epoch !== null && this.#epoch !== epoch
    this.#epoch = epoch
    if (restarted) this.#last = null
    this.#say('live')
    if (restarted || this.#fresh) for (const { listener } of [...this.#followers]) listener.refetch?.()
    this.#fresh = false
  }

  /** True if the event was received before; otherwise records it. */
  #isOld(id: string): boolean {
    const cut = id.lastIndexOf('-')
    const n = Number(id.slice(cut + 1))
    if (cut < 1 || !Number.isSafeInteger(n)) return false
    const epoch = id.slice(0, cut)
    if (this.#last && this.#last.epoch === epoch && n <= this.#last.n) return true
    this.#last = { epoch, n }
    return false
  }

  #tell(run: string | null, what: (listener: Listener) => void): void {
    for (const follower of [...this.#followers]) if (follower.run === run) what(follower.listener)
  }

  #broken(): void {
    this.#close()
    this.#say('reconnecting')
    const wait = this.#retry_ms
    this.#retry_ms = Math.min(this.#retry_ms * 2, LONGEST_RETRY_MS)
    this.#retry = this.timers.set(() => {
      this.#retry = null
      this.#connect()
    }, wait)
  }

  #listenForSilence(longest_ms: number): void {
    this.#forgetSilence()
    this.#silence = this.timers.set(() => this.#broken(), longest_ms)
  }

  #forgetSilence(): void {
    if (this.#silence !== null) this.timers.clear(this.#silence)
    this.#silence = null
  }

  #close(): void {
    if (this.#retry !== null) this.timers.clear(this.#retry)
    this.#retry = null
    this.#forgetSilence()
    this.#source?.close()
    this.#source = null
  }

  #say(connection: Connection): void {
    if (this.connection === connection) return
    this.connection = connection
    this.onConnection(connection)
  }
}
