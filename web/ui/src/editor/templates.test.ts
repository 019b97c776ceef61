import { expect, it } from 'vitest'

import { documentIn, laidOut, templates } from './templates'

it('writes one line for each stage', () => {
  const json = '{"name":"x","stages":[{"fetch":{"concurrency":2}},{"collate":{}}],"sink":{"queue":3}}'
  expect(laidOut(json)).toBe(`{
  "name": "x",
  "stages": [
    { "fetch": { "concurrency": 2 } },
    { "collate": {} }
  ],
  "sink": { "queue": 3 }
}
`)
  expect(laidOut('{}')).toBe('{}\n')
})

it('keeps every digit and every letter of a run\'s document', () => {
  const answer = '{"modules":{},"document":{"seed":18446744073709551615,"interval_s":1.0,"source":{"list":{"store":"p","prefix":"a\\"/é🎞"}},"shape":[1,[]]}}'
  expect(documentIn(answer)).toBe(`{
  "seed": 18446744073709551615,
  "interval_s": 1.0,
  "source": { "list": { "store": "p", "prefix": "a\\"/é🎞" } },
  "shape": [
    1,
    []
  ]
}
`)
  expect(documentIn('{}')).toBe('')
})

it('offers the server\'s sample first and one template without data', () => {
  const offer = { name: 'photos', about: 'Photos.', document: { name: 'photos', source: { range: { count: 1 } } } }
  expect(templates(offer).map(({ name }) => name)).toEqual(['photos', 'numbers'])
  for (const { text } of templates(null)) expect(JSON.parse(text)).toHaveProperty('source')
})
