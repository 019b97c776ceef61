// Changes settings in the text of a run's document, so that all other values keep every digit.

import { jsonLanguage } from '@codemirror/lang-json'

import { setValue } from '../editor/edits'
import { compact } from '../parts/json'
import type { Settings } from './settings'

/** Document with the settings; `null` if one of them cannot be set. */
export function withSettings(text: string, settings: Settings): string | null {
  let now = text
  for (const [pointer, value] of Object.entries(settings)) {
    const change = setValue(jsonLanguage.parser.parse(now), now, pointer, compact(value))
    if (!change) return null
    now = now.slice(0, change.from) + change.insert + now.slice(change.to)
  }
  return now
}
