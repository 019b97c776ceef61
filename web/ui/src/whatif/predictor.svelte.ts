// Prediction of a run with other settings, requested once the settings rest.

import type { Fault, Predicted, PredictRequest, Problem } from '../api/types'
import { Request } from '../parts/request.svelte'

/** Time without a change after which the server is asked. */
export const SETTLE_MS = 200

type Ask = (request: PredictRequest, signal: AbortSignal) => Promise<Predicted>

export class Predictor {
  busy = $state(false)
  looking = $state(false)
  #set: Record<string, unknown> = {}
  #timer: ReturnType<typeof setTimeout> | undefined
  #asking = new Request((signal) => this.request({ set: this.#set }, signal))
  // Its problem is not shown: the request for the settings fails for the same reason.
  #looking = new Request((signal) => this.request({ sweep: { max_threads: null, max_memory_mib: null } }, signal))

  constructor(private readonly request: Ask) {}

  /** For the settings of the last request; for earlier ones while `busy`, and where there is a `problem`. */
  get predicted(): Predicted | null {
    return this.#asking.answer
  }

  /** For the run as it is, with faster settings. */
  get usual(): Predicted | null {
    return this.#looking.answer
  }

  get problem(): Problem | null {
    return this.#asking.problem
  }

  get faults(): Fault[] {
    return this.problem?.errors ?? []
  }

  /** Requests a prediction after a pause, or at once, and gives up the request before it. */
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
