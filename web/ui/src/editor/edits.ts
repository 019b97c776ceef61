// Edits in the form as changes of the document's text: the rest of the text keeps its layout, and the edits can be undone.

import type { SyntaxNode, Tree } from '@lezer/common'

import { compact } from '../parts/json'
import { elementsOf, pointerOf, propertiesOf, segmentsOf, valueAt } from './pointer'

export interface Change {
  from: number
  to: number
  insert: string
}

/** Sets a value, given as JSON to keep all digits. Creates missing parents; returns `null` if a parent is not an object. */
export function setValue(tree: Tree, text: string, pointer: string, json: string): Change | null {
  const found = valueAt(tree, text, pointer)
  if (found) return { from: found.from, to: found.to, insert: json }
  const segments = segmentsOf(pointer)
  if (!segments || segments.length === 0) return null
  const name = segments.pop() as string
  const around = pointerOf(segments)
  const parent = valueAt(tree, text, around)
  if (!parent) return setValue(tree, text, around, `{ ${JSON.stringify(name)}: ${json} }`)
  if (parent.name !== 'Object') return null
  return append(parent, propertiesOf(parent, text).map(({ node }) => node), text, `${JSON.stringify(name)}: ${json}`)
}

/** Text of a number field as JSON: a number or a list of numbers as typed, anything else as a string, which the server may refuse. */
export function typedNumber(text: string): string {
  const trimmed = text.trim()
  const number = '-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?'
  return new RegExp(`^(${number}|\\[\\s*${number}(\\s*,\\s*${number})*\\s*\\])$`).test(trimmed) ? trimmed : JSON.stringify(text)
}

export function removeValue(tree: Tree, text: string, pointer: string): Change | null {
  const value = valueAt(tree, text, pointer)
  if (!value?.parent || value.parent.name === 'JsonText') return null
  const part = value.parent.name === 'Property' ? value.parent : value
  const around = part.parent as SyntaxNode
  const all = around.name === 'Object' ? propertiesOf(around, text).map(({ node }) => node) : elementsOf(around)
  const place = all.findIndex((each) => each.from === part.from)
  const [before, after] = [all[place - 1], all[place + 1]]
  if (before) return { from: before.to, to: part.to, insert: '' }
  if (after) return { from: part.from, to: after.from, insert: '' }
  return { from: around.from + 1, to: around.to - 1, insert: '' }
}

/** Inserts an element into an existing array, before the element `at` or at its end. */
export function insertElement(tree: Tree, text: string, pointer: string, at: number, value: unknown): Change | null {
  const array = valueAt(tree, text, pointer)
  if (array?.name !== 'Array') return null
  const all = elementsOf(array)
  const next = all[at]
  if (!next) return append(array, all, text, compact(value))
  const gap = all[at - 1] ? text.slice((all[at - 1] as SyntaxNode).to, next.from) : `,${indentBefore(text, next.from)}`
  return { from: next.from, to: next.from, insert: compact(value) + gap }
}

export function swapWithNext(tree: Tree, text: string, pointer: string, at: number): Change[] | null {
  const array = valueAt(tree, text, pointer)
  const [one, other] = array?.name === 'Array' ? elementsOf(array).slice(at, at + 2) : []
  if (!one || !other) return null
  return [
    { from: one.from, to: one.to, insert: text.slice(other.from, other.to) },
    { from: other.from, to: other.to, insert: text.slice(one.from, one.to) },
  ]
}

function append(around: SyntaxNode, parts: SyntaxNode[], text: string, insert: string): Change {
  const last = parts.at(-1)
  if (last) return { from: last.to, to: last.to, insert: `,${indentBefore(text, last.from)}${insert}` }
  if (around.name === 'Object') return { from: around.from + 1, to: around.to - 1, insert: ` ${insert} ` }
  // The elements of a list stand on lines of their own if its name does.
  const line = around.parent?.name === 'Property' ? indentBefore(text, around.parent.from) : ' '
  return { from: around.from + 1, to: around.to - 1, insert: line === ' ' ? insert : `${line}  ${insert}${line}` }
}

/** White space before an element or a property: a line break with its indent, or a space. */
const indentBefore = (text: string, from: number): string => /\n[ \t]*$/.exec(text.slice(0, from))?.[0] ?? ' '
