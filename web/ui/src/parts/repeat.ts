// What is asked for again and again.

/**
 * Asks for one thing, never twice at once, so that no answer overtakes a newer one and a slow one is not given up for the next.
 * The task deals with its own failures, and with nothing any more once its signal is aborted.
 */
export class Repeat {
  #asking: AbortController | null = null
  #again = false

  constructor(private readonly task: (signal: AbortSignal) => Promise<void>) {}

  /** Whether an answer is awaited. */
  get isAsking(): boolean {
    return this.#asking !== null
  }

  /** Asks; where an answer is awaited, once more after it: it may be older than the reason to ask. */
  async ask(): Promise<void> {
    this.#again = true
    if (this.#asking) return
    const asking = new AbortController()
    this.#asking = asking
    while (this.#again && !asking.signal.aborted) {
      this.#again = false
      await this.task(asking.signal)
    }
    if (this.#asking === asking) this.#asking = null
  }

  /** Asks without waiting for what was asked before. */
  anew(): Promise<void> {
    this.end()
    return this.ask()
  }

  /** Waits for no answer any more. */
  end(): void {
    this.#asking?.abort()
    this.#asking = null
  }
}
