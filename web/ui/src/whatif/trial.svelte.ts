// The settings that are tried on a run's page: sliders and advice change them, the panel predicts what would come of them.

import { areSame, readSettings, withValue, type Knob, type Settings } from './settings'

export class Trial {
  settings = $state.raw<Settings>({})
  /** Whether the panel is open. */
  open = $state(false)
  /** Counts how often settings came from elsewhere on the page: the panel shows itself then. */
  shown = $state(0)

  /** Begins with what an address says. */
  constructor(text: string | null) {
    this.settings = readSettings(text)
    this.open = this.isChanged
  }

  get isChanged(): boolean {
    return Object.keys(this.settings).length > 0
  }

  set(knob: Pick<Knob, 'pointer' | 'now'>, value: number): void {
    this.settings = withValue(this.settings, knob, value)
  }

  /** Takes one value back. */
  drop(pointer: string): void {
    const { [pointer]: _, ...rest } = this.settings
    this.settings = rest
  }

  /** Sets these and nothing else, from elsewhere on the page. */
  show(settings: Settings): void {
    this.settings = settings
    this.open = true
    this.shown++
  }

  isTrying(settings: Settings): boolean {
    return areSame(this.settings, settings)
  }
}
