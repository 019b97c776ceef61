// Edited documents that were not submitted, kept in this browser: one for each run whose document was edited, and one for all that started from a template.

export interface Draft {
  text: string
  saved_at: string
}

const KEY = 'penstock.drafts'
const MOST = 8

type Storage = Pick<globalThis.Storage, 'getItem' | 'setItem'>

export class Drafts {
  /** `storage` is a function because reading `localStorage` throws where it is forbidden. */
  constructor(private readonly storage: () => Storage = () => localStorage) {}

  /** Draft that started from the document of a run, or with `''` from a template. */
  get(from: string): Draft | null {
    return this.#read()[from] ?? null
  }

  /** Keeps a draft; the oldest are dropped when there are too many. */
  keep(from: string, text: string, now = new Date()): void {
    const all = { ...this.#read(), [from]: { text, saved_at: now.toISOString() } }
    const newest = Object.entries(all).sort(([, a], [, b]) => b.saved_at.localeCompare(a.saved_at))
    this.#write(Object.fromEntries(newest.slice(0, MOST)))
  }

  forget(from: string): void {
    const { [from]: _, ...rest } = this.#read()
    this.#write(rest)
  }

  #read(): Record<string, Draft> {
    try {
      const all: unknown = JSON.parse(this.storage().getItem(KEY) ?? '{}')
      const isDraft = (draft: unknown): draft is Draft => typeof (draft as Draft | null)?.text === 'string' && typeof (draft as Draft).saved_at === 'string'
      return Object.fromEntries(Object.entries(all ?? {}).filter((entry): entry is [string, Draft] => isDraft(entry[1])))
    } catch {
      return {}
    }
  }

  #write(all: Record<string, Draft>): void {
    try {
      this.storage().setItem(KEY, JSON.stringify(all))
    } catch {
      // Storage is forbidden or full: the draft is lost when the page is closed.
    }
  }
}
