import { svelte } from '@sveltejs/vite-plugin-svelte'
import { svelteTesting } from '@testing-library/svelte/vite'
import { defineConfig } from 'vitest/config'

// `npm run dev` passes requests on to a server that runs beside it.
const server = process.env.PENSTOCK_URL ?? 'http://127.0.0.1:7878'

export default defineConfig(({ mode }) => ({
  plugins: [svelte(), ...(mode === 'test' ? [svelteTesting({ autoCleanup: false })] : [])],
  build: {
    target: 'es2022',
    // The server's policy is `default-src 'self'`: nothing may become a data: URL.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  server: { proxy: { '/api/v1': server, '/api/openapi.json': server, '/metrics': server, '/health': server } },
  // A file that needs a page says so in its first line: to make one takes longer than all of the other tests.
  test: { environment: 'node', include: ['src/**/*.test.ts'] },
}))
