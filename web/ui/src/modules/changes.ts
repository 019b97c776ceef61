import type { ModuleReport } from '../api/types'
import { record } from '../parts/json'

export interface Change {
  what: string
  added: string[]
  removed: string[]
}

/** Changes of a module's interface between two versions. The code is not compared. */
export function changes(before: ModuleReport, after: ModuleReport): Change[] {
  const pairs: [string, string[], string[]][] = [
    ['exports', before.exports, after.exports],
    ['imports', before.imports, after.imports],
    ['wants', before.manifest.wants ?? ['all fields'], after.manifest.wants ?? ['all fields']],
    ['makes', before.manifest.makes, after.manifest.makes],
    ['counters', before.manifest.counters, after.manifest.counters],
    ['params', params(before), params(after)],
    ['mode', [before.manifest.mode], [after.manifest.mode]],
    ['manifest version', [before.manifest.version], [after.manifest.version]],
    ['kind', [before.kind], [after.kind]],
  ]
  return pairs.map(([what, old, now]) => difference(what, old, now)).filter(({ added, removed }) => added.length + removed.length > 0)
}

function difference(what: string, before: string[], after: string[]): Change {
  return { what, added: after.filter((name) => !before.includes(name)), removed: before.filter((name) => !after.includes(name)) }
}

/** Each parameter with its rules, so that a changed bound counts as a change. */
function params(report: ModuleReport): string[] {
  const properties = record(record(report.manifest.params)?.properties) ?? {}
  return Object.entries(properties).map(([name, value]) => {
    const { description: _, ...rules } = record(value) ?? {}
    return `${name} ${JSON.stringify(rules)}`
  })
}
