import { registry } from '../api/endpoints'
import { versionOf } from '../modules/reference'
import { record } from '../parts/json'
import type { Schema } from './schema'

/** JSON Schemas of the parameters of the modules in a document, fetched when a module first occurs. */
export class ModuleParams {
  #found = $state.raw<Record<string, Schema | null>>({})
  #asked = new Set<string>()

  /** Schema of `name`, `name@version` or `name@alias`; `null` while it is unknown. */
  of = (module: string): Schema | null => this.#found[module] ?? null

  /** Fetches the schemas of the modules in a document that were not fetched before. */
  fetch(document: Schema | null): void {
    const stages = Array.isArray(document?.stages) ? (document.stages as unknown[]) : []
    for (const stage of stages) {
      const module = record(Object.values(record(stage) ?? {})[0])?.module
      if (typeof module === 'string' && !module.startsWith('sha256:') && !this.#asked.has(module)) void this.#fetch(module)
    }
  }

  async #fetch(module: string): Promise<void> {
    this.#asked.add(module)
    const [name = '', version = 'latest'] = module.split('@')
    try {
      const found = versionOf(await registry.module(name), version)
      this.#found = { ...this.#found, [module]: record(found?.report.manifest.params) }
    } catch {
      // The server reports an unknown module as a fault of the document.
    }
  }
}
