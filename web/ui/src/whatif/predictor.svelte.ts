// What a run would do with other settings, asked for when they have settled.

import { ApiError, problemOf } from '../api/client'
import type { Fault, Predicted, PredictRequest, Problem } from '../api/types'

/** How long no slider has to move before the server is asked. */
export const SETTLE_MS = 200

type Ask = (request: PredictRequest, signal: AbortSignal) => Promise<Predicted>

export class Predictor {
  /** Of the settings that were asked for last; of earlier ones while `busy` or when there is a `problem`. */
  predicted = $state.raw<Predicted | null>(null)
  /** Of the run as it is, with what would make it faster. */
  usual = $state.raw<Predicted | null>(null)
  problem = $state.raw<Problem | null>(null)
  busy = $state(false)
  looking = $state(false)
  #timer: ReturnType<typeof setTimeout> | undefined
  #asking: AbortController | null = null
  #looking: AbortController | null = null

  constructor(private readonly request: Ask) {}

  /** Faults of single values. */
  get faults(): Fault[] {
    return this.problem?.errors ?? []
  }

  /** Asks for settings once they have settled, or at once; whatever was asked for before is not waited for any more. */
  ask(set: Record<string, unknown>, after_ms = SETTLE_MS): void {
    clearTimeout(this.#timer)
    this.#asking?.abort()
    this.busy = true
    const asking = new AbortController()
    this.#asking = asking
    this.#timer = setTimeout(() => void this.#ask(set, asking), after_ms)
  }

  async #ask(set: Record<string, unknown>, asking: AbortController): Promise<void> {
    try {
      const predicted = await this.request({ set }, asking.signal)
      if (asking.signal.aborted) return
      this.predicted = predicted
      this.problem = null
    } catch (cause) {
      if (asking.signal.aborted) return
      this.problem = problemOf(cause)
    }
    this.busy = false
  }

  /** Looks for changes of the run as it is that would make it faster. */
  async look(): Promise<void> {
    this.#looking?.abort()
    const looking = new AbortController()
    this.#looking = looking
    this.looking = true
    try {
      const usual = await this.request({ sweep: { max_threads: null, max_memory_mib: null } }, looking.signal)
      if (looking.signal.aborted) return
      this.usual = usual
    } catch (cause) {
      if (looking.signal.aborted) return
      // What cannot be predicted at all is told once, by the settings that were asked for.
      if (!(cause instanceof ApiError)) throw cause
    }
    this.looking = false
  }

  end(): void {
    clearTimeout(this.#timer)
    this.#asking?.abort()
    this.#looking?.abort()
  }
}
