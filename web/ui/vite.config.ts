import { svelte } from '@sveltejs/vite-plugin-svelte'
import { svelteTesting } from '@testing-library/svelte/vite'
import { defineConfig } from 'vitest/config'

import { DEFAULT_SERVER } from './src/api/client.ts'

// `npm run dev` passes requests on to a server that runs beside it. The server compares `Origin` with `Host`, so `Host` must stay.
const server = { target: process.env.PENSTOCK_URL ?? DEFAULT_SERVER, changeOrigin: false }

export default defineConfig(({ mode }) => ({
  plugins: [svelte(), ...(mode === 'test' ? [svelteTesting({ autoCleanup: false })] : [])],
  build: {
    target: 'es2022',
    // The server's policy is `default-src 'self'`: nothing may become a data: URL.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
    rolldownOptions: {
      output: {
        // Every file costs a request and its headers: modules that most pages share are one file, those of charts another.
        codeSplitting: {
          groups: [
            { name: 'base', test: /node_modules\/(svelte|esm-env|clsx)\/|\/src\/(app|api|parts)\// },
            { name: 'plot', test: /node_modules\/uplot\/|\/src\/charts\/(Chart|Timeline|LineSign)\.svelte/ },
            { name: 'charts', test: /\/src\/charts\// },
          ],
        },
      },
    },
  },
  server: { proxy: { '/api/v1': server, '/api/openapi.json': server, '/metrics': server, '/health': server } },
  // A file that needs a page says so in its first line: to make one takes longer than all of the other tests.
  test: { environment: 'node', include: ['src/**/*.test.ts'] },
}))
