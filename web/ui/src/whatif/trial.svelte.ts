// Settings that are tried on the page of a run. Sliders and advice change them.

import { areSame, readSettings, withValue, type Knob, type Settings } from './settings'

export class Trial {
  settings = $state.raw<Settings>({})
  open = $state(false)
  /** Number of calls of `show`: each one scrolls the panel into view. */
  shown = $state(0)

  /** `text` holds the settings of the address. */
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

  /** Replaces all settings and opens the panel. */
  show(settings: Settings): void {
    this.settings = settings
    this.open = true
    this.shown++
  }

  isTrying(settings: Settings): boolean {
    return areSame(this.settings, settings)
  }
}
