import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig, type Plugin } from 'vite'

/** Puts scripts and styles into the page, so that it needs nothing but itself. */
function inline(): Plugin {
  return {
    name: 'inline',
    enforce: 'post',
    generateBundle(_, bundle) {
      const page = bundle['report.html']
      if (page?.type !== 'asset') throw new Error('there is no report.html')
      let html = String(page.source)
      for (const [name, file] of Object.entries(bundle)) {
        if (file === page) continue
        delete bundle[name]
        const text = file.type === 'chunk' ? file.code : String(file.source)
        // Within a string, which is the only place for it, `<\/` is the same as `</`.
        const safe = text.replaceAll(/<\/(script|style)/gi, '<\\/$1')
        if (/<script|<!--\s*<script/i.test(safe)) throw new Error(`${name} holds what would not end as a script does`)
        const wanted = file.type === 'chunk' ? new RegExp(`<script[^>]*src="[^"]*${name}"[^>]*></script>`) : new RegExp(`<link[^>]*href="[^"]*${name}"[^>]*>`)
        if (!wanted.test(html)) throw new Error(`nothing of the page asks for ${name}`)
        html = html.replace(wanted, () => (file.type === 'chunk' ? `<script type="module">${safe}</script>` : `<style>${safe}</style>`))
      }
      if (html.split('"the report goes here"').length !== 2) throw new Error('the place of the report must be there once')
      page.source = html
    },
  }
}

// The report of a benchmark as one file, which the binary writes with a report in it: see `src/report.ts`.
export default defineConfig({
  plugins: [svelte(), inline()],
  publicDir: false,
  build: {
    target: 'es2022',
    // The pages are there already.
    emptyOutDir: false,
    modulePreload: false,
    rollupOptions: { input: 'report.html' },
  },
})
