import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { brotliCompressSync } from 'node:zlib'

import { svelte } from '@sveltejs/vite-plugin-svelte'
import { svelteTesting } from '@testing-library/svelte/vite'
import type { Plugin } from 'vite'
import { defineConfig } from 'vitest/config'

import { DEFAULT_SERVER } from './src/api/client.ts'

// `npm run dev` forwards API requests to a running server. The server compares `Origin` with `Host`, so `Host` must not change.
const server = { target: process.env.PENSTOCK_URL ?? DEFAULT_SERVER, changeOrigin: false }

/** Writes the Brotli form of each file beside it: an eighth smaller than gzip, and compressed once instead of per request. */
const brotli: Plugin = {
  name: 'brotli',
  writeBundle({ dir = '' }, bundle) {
    for (const name of Object.keys(bundle)) writeFileSync(join(dir, `${name}.br`), brotliCompressSync(readFileSync(join(dir, name))))
  },
}

/** Links to the chunk that all pages load: the first script imports it dynamically, to request the chunks of the page at the same time. */
const links: Plugin = {
  name: 'links',
  transformIndexHtml: {
    order: 'post',
    handler: (_, { bundle = {} }) =>
      Object.keys(bundle).flatMap((name) => {
        const [rel, href] = [name.endsWith('.css') ? 'stylesheet' : 'modulepreload', `/${name}`]
        return /^assets\/(base|rolldown-runtime)-/.test(name) ? [{ tag: 'link', attrs: { rel, crossorigin: true, href }, injectTo: 'head' as const }] : []
      }),
  },
}

/** Modules of the chunk that all pages load, with small style sheets of several pages. */
const shared = [
  /node_modules\/(svelte|esm-env|clsx)\/|\/src\/app\.css|\/src\/(app|api|parts)\/(?!AuditLog|Listing|Paged|SearchField|ShortcutList|Stores|list\.|pager)/,
  /\/src\/(charts\/(palette|save|window)|compare\/delta|editor\/pointer|modules\/(DropZone|reference)|run\/pipeline)\b/,
  /\/src\/(editor\/Fields|modules\/\w+|pages\/(Module|Start)|run\/(QueueBar|RunHead|RunningCard|RunsTable|VerdictBadge))\.svelte\?.*type=style/,
]

export default defineConfig(({ mode }) => ({
  plugins: [svelte(), links, brotli, ...(mode === 'test' ? [svelteTesting({ autoCleanup: false })] : [])],
  build: {
    target: 'es2022',
    // The server's policy `default-src 'self'` refuses data: URLs.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
    rolldownOptions: {
      output: {
        // Each file costs a request and 0.6 kB of headers, so modules that several pages share are one chunk. A group includes all
        // dependencies of its modules: small files of charts/ that pages without charts import must be in `base`, or these pages load `plot`.
        codeSplitting: {
          groups: [
            // Loads the other chunks, so it must not import them.
            { name: 'first', test: /vite\/preload-helper|rolldown\/runtime|\/src\/(main|api\/ahead|app\/(paths|routes))\.ts/ },
            { name: 'base', test: (file) => shared.some((files) => files.test(file)) },
            { name: 'runs', test: /\/src\/run\/(feed|figures|verdict|QueueBar|RunsTable|VerdictBadge)\b|\/src\/compare\/specs\.ts/ },
            { name: 'run', test: /\/src\/run\/(FailureGroups|RunHead)\b/ },
            { name: 'paged', test: /\/src\/parts\/(Paged|SearchField|pager)\b/ },
            { name: 'uploads', test: /\/src\/modules\/(ChangeList|changes|uploads)\b/ },
            { name: 'form', test: /\/src\/editor\/(Fields|edits|schema)\b/ },
            // Before `plot`, so that pages with charts of their own do not load the chart library.
            { name: 'charts', test: /\/src\/charts\/(?!Chart|Timeline|LineSign)/ },
            { name: 'plot', test: /node_modules\/uplot\/|\/src\/charts\// },
          ],
        },
      },
    },
  },
  server: { proxy: { '/api/v1': server, '/api/openapi.json': server, '/metrics': server, '/health': server } },
  // Test files that need a DOM request jsdom in their first line: its start takes longer than all other tests.
  test: { environment: 'node', include: ['src/**/*.test.ts'] },
}))
