// Settings tried on a run's page: sliders and advice change them, the panel predicts their effect.

import { areSame, readSettings, withValue, type Knob, type Settings } from './settings'

export class Trial {
  settings = $state.raw<Settings>({})
  open = $state(false)
  /** Number of times that settings came from elsewhere on the page: the panel then scrolls into view. */
  shown = $state(0)

  /** Starts with the settings in an address. */
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
