import type { Component } from 'svelte'

export interface PageProps {
  params: Record<string, string>
}

/** A page that needs no place of its path may leave its props away. */
export type Page = Component<PageProps> | Component<Record<string, never>>

export interface Route {
  path: string
  title: string
  /** The parameter of the address that makes another page of it, like a place of its path. */
  query?: string
  page: () => Promise<{ default: Page }>
}

/** One line per page. Each is a chunk of its own, fetched when it is first opened. */
export const routes: Route[] = [
  { path: '/', title: 'Start', page: () => import('../pages/Start.svelte') },
  { path: '/runs', title: 'Runs', page: () => import('../pages/Runs.svelte') },
  { path: '/runs/{run}', title: 'Run', page: () => import('../pages/Run.svelte') },
  { path: '/runs/{run}/stages/{stage}', title: 'Stage', page: () => import('../pages/RunStage.svelte') },
  { path: '/runs/{run}/errors', title: 'Errors', page: () => import('../pages/RunErrors.svelte') },
  { path: '/runs/{run}/logs', title: 'Logs', page: () => import('../pages/RunLogs.svelte') },
  { path: '/runs/{run}/spec', title: 'Document', page: () => import('../pages/RunSpec.svelte') },
  { path: '/runs/new', title: 'New run', query: 'from', page: () => import('../pages/NewRun.svelte') },
  { path: '/bench', title: 'Benchmarks', page: () => import('../pages/Benchmarks.svelte') },
  { path: '/bench/compare', title: 'Compare benchmarks', page: () => import('../pages/CompareBenchmarks.svelte') },
  { path: '/bench/{benchmark}', title: 'Benchmark', page: () => import('../pages/Benchmark.svelte') },
  { path: '/compare', title: 'Compare', page: () => import('../pages/Compare.svelte') },
  { path: '/system', title: 'System', page: () => import('../pages/System.svelte') },
  { path: '/api/docs', title: 'API', page: () => import('../pages/ApiDocs.svelte') },
  { path: '/modules', title: 'Modules', page: () => import('../pages/Modules.svelte') },
  { path: '/modules/{name}', title: 'Module', page: () => import('../pages/Module.svelte') },
  { path: '/modules/{name}/{version}', title: 'Module', page: () => import('../pages/Module.svelte') },
]

/** What stands in front of every page while the server wants a token. */
export const signIn = (): Promise<{ default: Component<{ onsignedin: () => void }> }> => import('../pages/SignIn.svelte')
