import type { Completion, CompletionContext, CompletionResult } from '@codemirror/autocomplete'
import type { SyntaxNode, Tree } from '@lezer/common'

import { compact } from '../parts/json'
import { unmarked } from '../parts/prose'
import { pathOf, propertiesOf } from './pointer'
import { aboutOf, fieldsAt, startOf, type SchemaFor } from './schema'

/** Completions at the cursor: names that the object does not have yet, or values of the property. */
export function complete(context: CompletionContext, tree: Tree, schema: SchemaFor | null, names: (segments: string[]) => string[]): CompletionResult | null {
  if (!schema) return null
  const text = context.state.doc.toString()
  const node = tree.resolveInner(context.pos, -1)
  const property = node.parent?.name === 'Property' ? node.parent : null

  if (node.name === 'Object' || (node.name === 'PropertyName' && property)) {
    const object = node.name === 'Object' ? node : (property?.parent as SyntaxNode)
    // Between two names, only an explicit request opens the list, because the next character may be a comma.
    if (node.name === 'Object' && !context.explicit) return null
    const { from, to } = node.name === 'Object' ? { from: context.pos, to: context.pos } : node
    const options = missingNames(schema, object, property, text)
    return options.length > 0 ? { from, to, options, validFor: /^"?[\w-]*"?$/ } : null
  }

  const owner = node.name === 'Property' ? node : property
  if (!owner || (node.name !== 'String' && !context.explicit)) return null
  const path = pathOf(owner, text)
  const field = aboutOf(schema, path)
  const texts = [...(field?.choices ?? []), ...names(path)].map((choice) => JSON.stringify(choice))
  const values = node.name === 'String' ? [] : field?.input === 'switch' ? ['true', 'false'] : field?.default === undefined ? [] : [compact(field.default)]
  const labels = [...new Set([...texts, ...values])]
  if (labels.length === 0) return null
  const { from, to } = node.name === 'String' ? node : { from: context.pos, to: context.pos }
  return { from, to, options: labels.map((label) => ({ label })), validFor: /^"?[\w@.:+-]*"?$/ }
}

function missingNames(schema: SchemaFor, object: SyntaxNode, typed: SyntaxNode | null, text: string): Completion[] {
  const path = pathOf(object, text)
  const others = propertiesOf(object, text).filter(({ node }) => node.from !== typed?.from)
  const there = new Set(others.map(({ name }) => name))
  const hasValue = typed !== null && propertiesOf(object, text).some(({ node, value }) => node.from === typed.from && value !== null)
  return fieldsAt(schema, path)
    .filter(({ name }) => !there.has(name))
    .map((field) => {
      const label = JSON.stringify(field.name)
      const value = field.default ?? field.example ?? startOf(schema, [...path, field.name])
      return { label, detail: field.kind, info: unmarked(field.about), apply: hasValue ? label : `${label}: ${compact(value)}`, boost: field.required ? 1 : 0 }
    })
}
