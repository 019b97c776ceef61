// Writes what the pages take from the API's description: the types of its values, and what the kinds of stages and sources can do.

import { existsSync, readFileSync, writeFileSync } from 'node:fs'

import openapiTS, { astToString } from 'openapi-typescript'

// The description marks nullable members as optional, but the server always sends them.
const whole = (_, value) => (value?.properties ? { ...value, required: Object.keys(value.properties) } : value)
const api = JSON.parse(readFileSync(new URL('../openapi.json', import.meta.url), 'utf8'), whole)
const { schemas } = api.components

/** Names of settings by kind. Each variant of the schema is an object with one member, the kind. */
function settingsOf({ oneOf }) {
  const kinds = oneOf.flatMap(({ properties }) => Object.entries(properties))
  return Object.fromEntries(kinds.map(([kind, { $ref }]) => [kind, Object.keys(schemas[$ref.split('/').at(-1)].properties)]))
}
const sources = settingsOf(schemas.DataSource)
/** Sources that read many samples from one object: only these can meet a damaged sample. */
const formats = Object.keys(sources).filter((kind) => sources[kind].includes('on_damage'))

/** Files are only replaced by another content, so that `make` does not build the pages again for the same description. */
function write(name, text) {
  const file = new URL(`src/api/${name}`, import.meta.url)
  if (!existsSync(file) || readFileSync(file, 'utf8') !== text) writeFileSync(file, text)
}

const stages = `export const SETTINGS: Record<string, readonly string[]> = ${JSON.stringify(settingsOf(schemas.Stage))}\n`
write('kinds.ts', `${stages}export const FORMATS: readonly string[] = ${JSON.stringify(formats)}\n`)
write('schema.d.ts', astToString(await openapiTS(api, { rootTypes: true, rootTypesNoSchemaPrefix: true, rootTypesKeepCasing: true })))
