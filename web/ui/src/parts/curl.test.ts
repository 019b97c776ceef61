import { expect, it, vi } from 'vitest'

import { curl, quoted } from './curl'

it('quotes a document as one shell word', () => {
  vi.stubGlobal('location', { origin: 'http://localhost:3000' })
  expect(quoted("it's; rm -rf $HOME `x`")).toBe("'it'\\''s; rm -rf $HOME `x`'")
  expect(curl('POST', '/api/v1/runs', `{"name":"a'b"}`)).toBe(
    `curl -sS -X POST -H 'content-type: application/json' -d '{"name":"a'\\''b"}' 'http://localhost:3000/api/v1/runs'`,
  )
})
