export type Theme = 'system' | 'light' | 'dark'

const KEY = 'penstock.theme'
const darkWanted = window.matchMedia?.('(prefers-color-scheme: dark)')

/** Colour scheme: light, dark, or that of the system. It is set on the root element, where `light-dark()` reads it. */
class ThemeChoice {
  choice = $state<Theme>(stored())
  #systemDark = $state(darkWanted?.matches ?? false)
  /** Set while the dark scheme is shown; canvases redraw when it changes. */
  dark = $derived(this.choice === 'system' ? this.#systemDark : this.choice === 'dark')

  constructor() {
    apply(this.choice)
    darkWanted?.addEventListener('change', (event) => (this.#systemDark = event.matches))
  }

  set(choice: Theme): void {
    this.choice = choice
    apply(choice)
    try {
      if (choice === 'system') localStorage.removeItem(KEY)
      else localStorage.setItem(KEY, choice)
    } catch {
      // The browser may forbid storage: the choice then lasts until the page is closed.
    }
  }
}

export const theme = new ThemeChoice()

function stored(): Theme {
  try {
    const value = localStorage.getItem(KEY)
    return value === 'light' || value === 'dark' ? value : 'system'
  } catch {
    return 'system'
  }
}

function apply(choice: Theme): void {
  document.documentElement.style.colorScheme = choice === 'system' ? 'light dark' : choice
}
