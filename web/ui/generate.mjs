// Writes what the pages take from the API's description: the types of its values, and the settings of each kind of stage and source.

import { existsSync, readFileSync, writeFileSync } from 'node:fs'

import openapiTS, { astToString } from 'openapi-typescript'

// The description marks nullable members as optional, but the server always sends them.
const whole = (_, value) => (value?.properties ? { ...value, required: Object.keys(value.properties) } : value)
const api = JSON.parse(readFileSync(new URL('../openapi.json', import.meta.url), 'utf8'), whole)
const { Stage, DataSource, ...schemas } = api.components.schemas

/** Names of the settings by kind. Each variant of the schema is an object with one member, the kind. */
const kinds = [...Stage.oneOf, ...DataSource.oneOf].flatMap(({ properties }) => Object.entries(properties))
const settings = Object.fromEntries(kinds.map(([kind, { $ref }]) => [kind, Object.keys(schemas[$ref.split('/').at(-1)].properties)]))

/** Files are only replaced by another content, so that `make` does not build the pages again for the same description. */
function write(name, text) {
  const file = new URL(`src/api/${name}`, import.meta.url)
  if (!existsSync(file) || readFileSync(file, 'utf8') !== text) writeFileSync(file, text)
}

write('kinds.ts', `export const SETTINGS: Record<string, readonly string[]> = ${JSON.stringify(settings)}\n`)
write('schema.d.ts', astToString(await openapiTS(api, { rootTypes: true, rootTypesNoSchemaPrefix: true, rootTypesKeepCasing: true })))
