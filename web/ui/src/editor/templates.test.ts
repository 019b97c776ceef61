import { expect, it } from 'vitest'

import { templates, written } from './templates'

it('writes a stage a line, and nothing but the document', () => {
  const document = { name: 'x', stages: [{ fetch: { concurrency: 2 } }, { collate: {} }], sink: { queue: 3 } }
  expect(written(document)).toBe(`{
  "name": "x",
  "stages": [
    { "fetch": { "concurrency": 2 } },
    { "collate": {} }
  ],
  "sink": { "queue": 3 }
}
`)
  expect(written({})).toBe('{}\n')
})

it('offers the server\'s sample first, and always something that runs without data', () => {
  const offer = { name: 'photos', about: 'Photos.', document: { name: 'photos', source: { range: { count: 1 } } } }
  expect(templates(offer).map(({ name }) => name)).toEqual(['photos', 'numbers'])
  for (const { text } of templates(null)) expect(JSON.parse(text)).toHaveProperty('source')
})
