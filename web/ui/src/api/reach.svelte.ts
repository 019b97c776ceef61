// Reachability of the server, according to the requests of this tab.

import { on } from './client'

const FIRST_CHECK_MS = 1000
const LONGEST_CHECK_MS = 8000

export class Reach {
  /** Time of the first request without an answer, in milliseconds since the Unix epoch; `null` while the server answers. */
  lostAt = $state<number | null>(null)
  checking = $state(false)
  #waiting = new Set<() => void>()
  #next: ReturnType<typeof setTimeout> | undefined
  #wait_ms = FIRST_CHECK_MS

  /** `ask` resolves to true if the server answers. */
  constructor(private readonly ask: () => Promise<boolean>) {}

  heard(answered: boolean): void {
    if (answered) this.#found()
    else if (this.lostAt === null) {
      this.lostAt = Date.now()
      this.#wait_ms = FIRST_CHECK_MS
      this.#checkLater()
    }
  }

  /** Sends a check now; resolves to true if the server answers. */
  async check(): Promise<boolean> {
    clearTimeout(this.#next)
    this.checking = true
    const answered = await this.ask()
    this.checking = false
    this.heard(answered)
    if (!answered) this.#checkLater()
    return answered
  }

  /** Calls `task` once, when the server answers again. */
  onBack(task: () => void): void {
    this.#waiting.add(task)
  }

  #found(): void {
    clearTimeout(this.#next)
    if (this.lostAt === null) return
    this.lostAt = null
    const waiting = [...this.#waiting]
    this.#waiting.clear()
    waiting.forEach((task) => task())
  }

  #checkLater(): void {
    clearTimeout(this.#next)
    this.#next = setTimeout(() => void this.check(), this.#wait_ms)
    this.#wait_ms = Math.min(this.#wait_ms * 2, LONGEST_CHECK_MS)
  }
}

export const reach = new Reach(() => fetch('/health', { cache: 'no-store' }).then(({ ok }) => ok, () => false))

on.reach = (answered) => reach.heard(answered)
