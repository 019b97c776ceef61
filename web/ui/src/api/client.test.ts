import { readFileSync } from 'node:fs'

import { expect, it } from 'vitest'

import { DEFAULT_SERVER } from './client'

it('uses the default address of the command', () => {
  const flag = readFileSync('../../runner/cli/src/args/server.rs', 'utf8')
  expect(flag).toContain(`default_value = "${DEFAULT_SERVER}"`)
})
