import type { Component } from 'svelte'

import type SignIn from '../pages/SignIn.svelte'

export interface PageProps {
  params: Record<string, string>
}

/** Component of a page. A page without parameters in its path has no props. */
export type Page = Component<PageProps> | Component<Record<string, never>>

export interface Route {
  path: string
  title: string
  /** Query parameter whose change creates the page anew, as a change of a path parameter does. */
  query?: string
  page: () => Promise<{ default: Page }>
  /** Paths of the API that the page reads first. */
  reads?: (params: Record<string, string>) => string[]
}

export const SIGN_IN = '#sign-in='

/** Details and figures of a run, and task times of a stage. Other windows than the default one have other figures. */
const ofRun = ({ run = '', stage }: Record<string, string>) =>
  ['', ...(location.search ? [] : ['/figures']), ...(stage ? [`/stages/${encodeURIComponent(stage)}/times`] : [])].map((part) => `/runs/${encodeURIComponent(run)}${part}`)

/** Pages by path. Each is a separate chunk, fetched when the page is first opened. */
export const routes: Route[] = [
  { path: '/', title: 'Start', page: () => import('../pages/Start.svelte') },
  { path: '/runs', title: 'Runs', page: () => import('../pages/Runs.svelte') },
  { path: '/runs/{run}', title: 'Run', page: () => import('../pages/Run.svelte'), reads: ofRun },
  { path: '/runs/{run}/stages/{stage}', title: 'Stage', page: () => import('../pages/RunStage.svelte'), reads: ofRun },
  { path: '/runs/{run}/errors', title: 'Errors', page: () => import('../pages/RunErrors.svelte'), reads: ofRun },
  { path: '/runs/{run}/logs', title: 'Logs', page: () => import('../pages/RunLogs.svelte'), reads: ofRun },
  { path: '/runs/{run}/spec', title: 'Document', page: () => import('../pages/RunSpec.svelte'), reads: ofRun },
  { path: '/runs/new', title: 'New run', query: 'from', page: () => import('../pages/NewRun.svelte') },
  { path: '/bench', title: 'Benchmarks', page: () => import('../pages/Benchmarks.svelte') },
  { path: '/bench/compare', title: 'Compare benchmarks', page: () => import('../pages/CompareBenchmarks.svelte') },
  { path: '/bench/new', title: 'New benchmark', page: () => import('../pages/NewBenchmark.svelte') },
  { path: '/bench/{benchmark}', title: 'Benchmark', page: () => import('../pages/Benchmark.svelte') },
  { path: '/compare', title: 'Compare', page: () => import('../pages/Compare.svelte') },
  { path: '/system', title: 'System', page: () => import('../pages/System.svelte') },
  { path: '/api/docs', title: 'API', page: () => import('../pages/ApiDocs.svelte') },
  { path: '/modules', title: 'Modules', page: () => import('../pages/Modules.svelte') },
  { path: '/modules/{name}', title: 'Module', page: () => import('../pages/Module.svelte') },
  { path: '/modules/{name}/{version}', title: 'Module', page: () => import('../pages/Module.svelte') },
]

/** Page shown in place of every page while the server requires a token. */
export const signIn = (): Promise<{ default: typeof SignIn }> => import('../pages/SignIn.svelte')
