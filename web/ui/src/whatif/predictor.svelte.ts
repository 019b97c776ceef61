// Predictions of a run with other settings, requested after the settings have stopped changing.

import type { Predicted, PredictRequest, Problem } from '../api/types'
import { Request } from '../parts/request.svelte'

/** Time without a change before a request. */
export const SETTLE_MS = 200

type Ask = (request: PredictRequest, signal: AbortSignal) => Promise<Predicted>

export class Predictor {
  busy = $state(false)
  looking = $state(false)
  #set: Record<string, unknown> = {}
  #timer: ReturnType<typeof setTimeout> | undefined
  #asking = new Request((signal) => this.request({ set: this.#set }, signal))
  // Problems of this request are not shown: the request for the settings fails for the same reason.
  #looking = new Request((signal) => this.request({ sweep: { max_threads: null, max_memory_mib: null } }, signal))

  constructor(private readonly request: Ask) {}

  /** Newest prediction. While `busy` or after a `problem`, it belongs to earlier settings. */
  get predicted(): Predicted | null {
    return this.#asking.answer
  }

  /** Prediction with the settings of the run, and proposals of faster settings. */
  get usual(): Predicted | null {
    return this.#looking.answer
  }

  get problem(): Problem | null {
    return this.#asking.problem
  }

  /** Cancels the previous request, and requests a prediction after a pause. */
  ask(set: Record<string, unknown>, after_ms = SETTLE_MS): void {
    this.#stop()
    this.busy = true
    this.#set = set
    const timer = setTimeout(async () => {
      await this.#asking.ask()
      if (this.#timer === timer) this.busy = false
    }, after_ms)
    this.#timer = timer
  }

  async look(): Promise<void> {
    this.looking = true
    await this.#looking.anew()
    this.looking = this.#looking.isAsking
  }

  end(): void {
    this.#stop()
    this.#looking.end()
  }

  #stop(): void {
    clearTimeout(this.#timer)
    this.#asking.end()
  }
}
