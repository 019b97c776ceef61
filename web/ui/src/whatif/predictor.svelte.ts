// What a run would do with other settings, asked for when they have settled.

import type { Fault, Predicted, PredictRequest, Problem } from '../api/types'
import { Request } from '../parts/request.svelte'

/** How long no slider has to move before the server is asked. */
export const SETTLE_MS = 200

type Ask = (request: PredictRequest, signal: AbortSignal) => Promise<Predicted>

export class Predictor {
  busy = $state(false)
  looking = $state(false)
  #set: Record<string, unknown> = {}
  #timer: ReturnType<typeof setTimeout> | undefined
  #asking = new Request((signal) => this.request({ set: this.#set }, signal))
  // What cannot be predicted at all is told once, by the settings that were asked for.
  #looking = new Request((signal) => this.request({ sweep: { max_threads: null, max_memory_mib: null } }, signal))

  constructor(private readonly request: Ask) {}

  /** Of the settings that were asked for last; of earlier ones while `busy` or when there is a `problem`. */
  get predicted(): Predicted | null {
    return this.#asking.answer
  }

  /** Of the run as it is, with what would make it faster. */
  get usual(): Predicted | null {
    return this.#looking.answer
  }

  get problem(): Problem | null {
    return this.#asking.problem
  }

  /** Faults of single values. */
  get faults(): Fault[] {
    return this.problem?.errors ?? []
  }

  /** Asks for settings once they have settled, or at once; whatever was asked for before is not waited for any more. */
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

  /** Looks for changes of the run as it is that would make it faster. */
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
