import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig, type Plugin } from 'vite'

/** Inlines scripts and style sheets, so that the page is one file. */
function inline(): Plugin {
  return {
    name: 'inline',
    enforce: 'post',
    generateBundle(_, bundle) {
      const page = bundle['report.html']
      if (page?.type !== 'asset') throw new Error('the build has no report.html')
      let html = String(page.source)
      for (const [name, file] of Object.entries(bundle)) {
        if (file === page) continue
        delete bundle[name]
        const text = file.type === 'chunk' ? file.code : String(file.source)
        // `</script` occurs only within strings, where `<\/` has the same meaning as `</`.
        const safe = text.replaceAll(/<\/(script|style)/gi, '<\\/$1')
        if (/<script|<!--\s*<script/i.test(safe)) throw new Error(`${name} contains \`<script\`, which an inline script cannot contain`)
        const wanted = file.type === 'chunk' ? new RegExp(`<script[^>]*src="[^"]*${name}"[^>]*></script>`) : new RegExp(`<link[^>]*href="[^"]*${name}"[^>]*>`)
        if (!wanted.test(html)) throw new Error(`the page does not load ${name}`)
        html = html.replace(wanted, () => (file.type === 'chunk' ? `<script type="module">${safe}</script>` : `<style>${safe}</style>`))
      }
      if (html.split('"the report goes here"').length !== 2) throw new Error('the page must contain the placeholder of the report exactly once')
      page.source = html
    },
  }
}

// Page for the report of a benchmark as one file; the binary inserts the report. See `src/report.ts`.
export default defineConfig({
  plugins: [svelte(), inline()],
  publicDir: false,
  build: {
    target: 'es2022',
    // The folder contains the pages of the server, which are built first.
    emptyOutDir: false,
    modulePreload: false,
    rollupOptions: { input: 'report.html' },
  },
})
