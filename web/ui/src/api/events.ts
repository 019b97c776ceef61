// Event stream of a tab. All pages share one connection, because browsers allow about six to a host.

import { address } from './client'
import type { LiveEvent, LiveSample, LogEntry, RunSummary } from './types'

/** Callbacks for events. `refetch` reports that events may be missing, so that the page fetches its data again. */
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

type Timer = ReturnType<typeof setTimeout>

const EVENTS: LiveEvent['event'][] = ['hello', 'ping', 'sample', 'state', 'runs', 'log', 'gap', 'end']
const FIRST_RETRY_MS = 500
const LONGEST_RETRY_MS = 10_000
/** Timeouts of a silent connection. A live run sends four samples a second, and an idle server sends a `ping` every 15 s. */
const SAMPLES_SILENCE_MS = 10_000
const PINGS_SILENCE_MS = 40_000
/** Delay after which changed followers change the connection: several changes within it need one new connection. */
const SETTLE_MS = 30

/**
 * Follows runs over one connection, which is opened again when it breaks or when other runs are followed.
 *
 * Ids of events are `{epoch}-{n}`. The epoch changes with each start of the server, and `n` then restarts. A reconnect to the
 * same epoch continues after the last id; after a reconnect to another epoch, all listeners refetch.
 */
export class EventStream {
  connection: Connection = 'idle'
  #followers = new Set<{ run: string | null; listener: Listener }>()
  #source: Source | null = null
  #epoch: string | null = null
  #last: { epoch: string; n: number } | null = null
  #runsOfSource = ''
  #retry_ms = FIRST_RETRY_MS
  #retry: Timer | undefined
  #settle: Timer | null = null
  #silence: Timer | undefined
  #fresh = true

  constructor(
    private readonly open: (address: string) => Source,
    private readonly onConnection: (connection: Connection) => void = () => {},
  ) {}

  /** Follows a run, or with `null` only the list of runs; returns a function that stops following. */
  follow(run: string | null, listener: Listener): () => void {
    const follower = { run, listener }
    this.#followers.add(follower)
    this.#settleSoon()
    return () => {
      if (this.#followers.delete(follower)) this.#settleSoon()
    }
  }

  /** Reconnects now instead of after the current delay. */
  reconnect(): void {
    if (this.connection === 'reconnecting') this.#connect()
  }

  /** Closes the connection of a hidden tab. */
  pause(): void {
    if (this.connection === 'paused') return
    this.#close()
    this.#say('paused')
  }

  /** Opens the connection of a tab that is visible again. Listeners refetch; the server does not replay the missed events. */
  resume(): void {
    if (this.connection !== 'paused') return
    this.#last = null
    this.#say('idle')
    this.#connect()
  }

  #settleSoon(): void {
    if (this.connection === 'paused' || this.#settle !== null) return
    this.#settle = setTimeout(() => {
      this.#settle = null
      if (this.connection === 'paused') return
      if (this.#followers.size === 0) {
        this.#close()
        this.#say('idle')
      } else if (this.#source === null || this.#runs() !== this.#runsOfSource) {
        // Without a last id, all listeners refetch at `hello`, as those of a newly followed run must.
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
    this.#fresh = this.#last === null
    const source = this.open(address('/events', { runs: this.#runsOfSource, last: this.#last && `${this.#last.epoch}-${this.#last.n}` }))
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
    // A `gap` or an `end` at the start of a new connection repeats the last id of the connection before.
    if (type !== 'hello' && this.#isOld(lastEventId) && type !== 'gap' && type !== 'end') return
    switch (live.event) {
      case 'hello':
        return this.#hello(live.data.epoch)
      case 'sample':
        return this.#tell(live.data.run, (listener) => listener.sample?.(live.data))
      case 'log':
        return this.#tell(live.data.run, (listener) => listener.log?.(live.data.run, live.data.entry))
      case 'gap':
        // An empty run id refers to the list of runs.
        return this.#tell(live.data.run || null, (listener) => listener.refetch?.())
      case 'state':
        return this.#tell(live.data.id, (listener) => listener.state?.(live.data))
      case 'end':
        return this.#tell(live.data.id, (listener) => listener.end?.(live.data))
      case 'runs':
        return [...this.#followers].forEach(({ listener }) => listener.runs?.(live.data))
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
    this.#retry = setTimeout(() => this.#connect(), wait)
  }

  #listenForSilence(longest_ms: number): void {
    clearTimeout(this.#silence)
    this.#silence = setTimeout(() => this.#broken(), longest_ms)
  }

  #close(): void {
    clearTimeout(this.#retry)
    clearTimeout(this.#silence)
    this.#source?.close()
    this.#source = null
  }

  #say(connection: Connection): void {
    if (this.connection === connection) return
    this.connection = connection
    this.onConnection(connection)
  }
}
