// The event stream of this tab.

import { EventStream, type Connection, type Listener, type Source } from './events'

/** Time after which a hidden tab closes its connection. */
const HIDDEN_MS = 60_000

class Live {
  connection = $state<Connection>('idle')
  #stream = new EventStream((address) => new EventSource(address) as unknown as Source, (connection) => (this.connection = connection))
  #hidden: number | null = null

  constructor() {
    document.addEventListener('visibilitychange', () => {
      if (this.#hidden !== null) window.clearTimeout(this.#hidden)
      this.#hidden = null
      if (document.visibilityState === 'hidden') this.#hidden = window.setTimeout(() => this.#stream.pause(), HIDDEN_MS)
      else this.#stream.resume()
    })
    window.addEventListener('pagehide', () => this.#stream.pause())
    window.addEventListener('pageshow', () => this.#stream.resume())
  }

  reconnect(): void {
    this.#stream.reconnect()
  }

  follow(run: string | null, listener: Listener): () => void {
    return this.#stream.follow(run, listener)
  }
}

export const live = new Live()
