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

/** Modules of the chunk that all pages load, with small style sheets of several pages. */
const shared = [
  /node_modules\/(svelte|esm-env|clsx)\/|\/src\/app\.css|\/src\/(app|api|parts)\/(?!AuditLog|Listing|Paged|SearchField|ShortcutList|Stores|list\.|pager)/,
  /\/src\/(charts\/(palette|save|window)|modules\/(DropZone|reference)|run\/pipeline)\b/,
  /\/src\/(editor\/Fields|modules\/\w+|pages\/(Module|Start)|run\/(QueueBar|RunHead|RunningCard|RunsTable|VerdictBadge))\.svelte\?.*type=style/,
]

export default defineConfig(({ mode }) => ({
  plugins: [svelte(), brotli, ...(mode === 'test' ? [svelteTesting({ autoCleanup: false })] : [])],
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
            { name: 'base', test: (file) => shared.some((files) => files.test(file)) },
            { name: 'runs', test: /\/src\/run\/(feed|figures|verdict|QueueBar|RunsTable|VerdictBadge)\b|\/src\/compare\/specs\.ts/ },
            { name: 'paged', test: /\/src\/parts\/(Paged|SearchField|pager)\b/ },
            { name: 'uploads', test: /\/src\/modules\/(ChangeList|changes|uploads)\b/ },
            { name: 'pointer', test: /\/src\/editor\/pointer\.ts/ },
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
