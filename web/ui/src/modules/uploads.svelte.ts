import { ApiError, problem, problemOf } from '../api/client'
import { api, registry, upload } from '../api/endpoints'
import type { ModuleUpload, Problem } from '../api/types'
import { bytes } from '../parts/format'
import { changes, type Change } from './changes'

export type Upload = { id: number; name: string; size: number } & (
  | { stage: 'waiting' }
  | { stage: 'sending'; share: number }
  | { stage: 'checked'; made: ModuleUpload; before: number | null; changes: Change[] }
  | { stage: 'refused'; problem: Problem }
)

/** Uploads files one at a time, also while other pages are open. */
export class Uploads {
  items = $state.raw<Upload[]>([])
  /** Number of new modules on the server. */
  made = $state(0)
  #waiting: { id: number; file: File }[] = []
  #sending: AbortController | null = null
  #next = 1

  add(files: Iterable<File>): void {
    for (const file of files) {
      const id = this.#next++
      this.items = [{ id, name: file.name, size: file.size, stage: 'waiting' }, ...this.items]
      this.#waiting.push({ id, file })
    }
    if (!this.#sending) void this.#sendAll()
  }

  /** Removes an upload from the list, and cancels it if it is being sent. */
  dismiss(id: number): void {
    const item = this.items.find((each) => each.id === id)
    if (item?.stage === 'sending') this.#sending?.abort()
    this.#waiting = this.#waiting.filter((each) => each.id !== id)
    this.items = this.items.filter((each) => each.id !== id)
  }

  async #sendAll(): Promise<void> {
    for (let next = this.#waiting.shift(); next; next = this.#waiting.shift()) {
      const { id, file } = next
      this.#sending = new AbortController()
      this.#set(id, { stage: 'sending', share: 0 })
      try {
        await checkSize(file)
        this.#sending.signal.throwIfAborted()
        const made = await upload(file, (share) => this.#set(id, { stage: 'sending', share }), this.#sending.signal)
        this.#set(id, { stage: 'checked', made, ...(made.created ? await comparison(made) : { before: null, changes: [] }) })
        if (made.created) this.made += 1
      } catch (thrown) {
        if (!(thrown instanceof DOMException)) this.#set(id, { stage: 'refused', problem: problemOf(thrown) })
      }
      this.#sending = null
    }
  }

  #set(id: number, state: object): void {
    this.items = this.items.map((item) => (item.id === id ? ({ id, name: item.name, size: item.size, ...state } as Upload) : item))
  }
}

export const uploads = new Uploads()

/** Throws if the server would refuse the file for its size. Such a refusal closes the connection, which loses its message. */
async function checkSize(file: File): Promise<void> {
  const most = (await api.system()).limits.upload_mib * 2 ** 20
  if (file.size > most) throw new ApiError(problem('Too large', `The file has ${bytes(file.size)}; the limit of this server is ${bytes(most)}.`, 413))
}

/** Changes since the previous version; empty if the module cannot be read any more. */
async function comparison(made: ModuleUpload): Promise<{ before: number | null; changes: Change[] }> {
  const versions = made.previous === null ? [] : await registry.module(made.name).then((module) => module.versions, () => [])
  const before = versions.find(({ version, report }) => version < made.version && report.digest === made.previous)
  return before ? { before: before.version, changes: changes(before.report, made.report) } : { before: null, changes: [] }
}
