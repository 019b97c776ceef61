// Loads of a report: combinations of mode and number of workers, in one or more grids.

import type { BenchReport, LoadReport } from '../api/types'

export type Mode = LoadReport['mode']

const MODES: Mode[] = ['sync', 'async']

export interface Load {
  /** Name in the page's address, unique in the report. */
  id: string
  label: string
  /** Index of the grid that contains the load. */
  grid: number
  cell: LoadReport
  /** True if a consistency check failed, so that the figures cannot be trusted. */
  isVoid: boolean
}

/** All loads of a report, in the order in which they ran. */
export function loadsOf(report: BenchReport): Load[] {
  const grids = report.actions.flatMap((action) => ('whole_set' in action ? [action.whole_set] : []))
  const taken = new Map<string, number>()
  return grids.flatMap((cells, grid) =>
    cells.map((cell) => {
      const name = nameOf(cell)
      const times = (taken.get(name) ?? 0) + 1
      taken.set(name, times)
      const label = grids.length > 1 ? `${name}, batch ${cell.batch_size}` : name
      const suffix = times === 1 ? '' : ` #${times}`
      return { id: name + suffix, label: label + suffix, grid, cell, isVoid: !cell.books.balanced }
    }),
  )
}

/** Name of a load on all pages: `sync 4`, `async 4x8`. */
export function nameOf({ mode, workers, in_flight }: LoadReport): string {
  return mode === 'sync' ? `sync ${workers}` : `async ${workers}x${in_flight}`
}

/** The load with the most items per second. Void loads are ignored, unless all loads are void. */
export function fastestOf(loads: readonly Load[]): Load | null {
  const sound = loads.filter(({ isVoid }) => !isVoid)
  return (sound.length > 0 ? sound : loads).reduce<Load | null>((best, load) => (best && best.cell.items_per_s >= load.cell.items_per_s ? best : load), null)
}

/** The load with this id, otherwise the fastest load. */
export function chosen(loads: readonly Load[], id: string | null): Load | null {
  return loads.find((load) => load.id === id) ?? fastestOf(loads)
}

/** Properties of a chart whose loads can be selected. */
export interface LoadChart {
  /** Id of the selected load. */
  selected: string
  fileStem: string
  onselect: (id: string) => void
}

export interface Grid {
  place: number
  modes: Mode[]
  workers: number[]
  loads: Load[]
}

export function gridsOf(loads: readonly Load[]): Grid[] {
  const places = [...new Set(loads.map(({ grid }) => grid))]
  return places.map((place) => {
    const inside = loads.filter(({ grid }) => grid === place)
    const modes = MODES.filter((mode) => inside.some(({ cell }) => cell.mode === mode))
    const workers = [...new Set(inside.map(({ cell }) => cell.workers))].sort((one, other) => one - other)
    return { place, modes, workers, loads: inside }
  })
}

export function loadAt({ loads }: Grid, mode: Mode, workers: number): Load | null {
  return loads.find(({ cell }) => cell.mode === mode && cell.workers === workers) ?? null
}

export function violations(loads: readonly Load[]): { load: Load; identity: string; says: string; found: string | null }[] {
  return loads.flatMap((load) => load.cell.books.checks.filter(({ holds }) => !holds).map((check) => ({ load, ...check })))
}
