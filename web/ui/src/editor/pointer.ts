// Conversion between JSON pointers (RFC 6901) and ranges of characters in the text of a document.

import type { SyntaxNode, Tree } from '@lezer/common'

export interface Range {
  from: number
  to: number
}

export function segmentsOf(pointer: string): string[] | null {
  if (pointer === '') return []
  if (!pointer.startsWith('/')) return null
  const segments = pointer.slice(1).split('/')
  return segments.map((segment) => segment.replaceAll('~1', '/').replaceAll('~0', '~'))
}

export function pointerOf(segments: readonly (string | number)[]): string {
  return segments.map((segment) => `/${String(segment).replaceAll('~', '~0').replaceAll('/', '~1')}`).join('')
}

/** True if `pointer` refers to the value at `under` or to a part of it. */
export const isUnder = (pointer: string, under: string): boolean => pointer === under || pointer.startsWith(`${under}/`)

export function valueAt(tree: Tree, text: string, pointer: string): SyntaxNode | null {
  const start = valueIn(tree.topNode)
  return segmentsOf(pointer)?.reduce((node, segment) => node && childOf(node, text, segment), start) ?? null
}

/** Range to mark for a pointer: the value. For a missing value, the key of the nearest existing parent, or its bracket if it has no key. */
export function rangeOf(tree: Tree, text: string, pointer: string): Range {
  const segments = segmentsOf(pointer) ?? []
  let node = valueIn(tree.topNode)
  if (node === null) return { from: 0, to: Math.min(1, text.length) }
  for (const segment of segments) {
    const child = childOf(node, text, segment)
    if (child === null) {
      const key = keyOf(node)
      return key ? { from: key.from, to: key.to } : { from: node.from, to: Math.min(node.from + 1, node.to) }
    }
    node = child
  }
  return { from: node.from, to: node.to }
}

/** Pointer of the innermost value around a character; `key` is set if the character belongs to the name of the value. */
export function pointerAt(tree: Tree, text: string, position: number): { pointer: string; key: boolean } {
  let node = tree.resolveInner(position, -1)
  if (node.name === 'JsonText' || node.name === '⚠') node = tree.resolveInner(position, 1)
  return { pointer: pointerOf(pathOf(node, text)), key: node.name === 'PropertyName' }
}

export function pathOf(node: SyntaxNode, text: string): string[] {
  const path: string[] = []
  for (let at: SyntaxNode | null = node; at; at = at.parent) {
    const { parent, from } = at
    if (at.name === 'Property') {
      const name = at.getChild('PropertyName')
      if (name) path.unshift(nameIn(name, text))
    } else if (parent?.name === 'Array' && isValue(at)) {
      path.unshift(String(elementsOf(parent).findIndex((element) => element.from === from)))
    }
  }
  return path
}

/** Names and values of an object, in the order of the text. */
export function propertiesOf(object: SyntaxNode, text: string): { name: string; node: SyntaxNode; value: SyntaxNode | null }[] {
  return object.getChildren('Property').flatMap((node) => {
    const name = node.getChild('PropertyName')
    return name ? [{ name: nameIn(name, text), node, value: valueIn(node) }] : []
  })
}

export function elementsOf(array: SyntaxNode): SyntaxNode[] {
  const elements: SyntaxNode[] = []
  for (let child = array.firstChild; child; child = child.nextSibling) if (isValue(child)) elements.push(child)
  return elements
}

const keyOf = ({ parent }: SyntaxNode): SyntaxNode | null => (parent?.name === 'Property' ? parent.getChild('PropertyName') : null)

function childOf(node: SyntaxNode, text: string, segment: string): SyntaxNode | null {
  // The last of several values with the same name counts, as in `JSON.parse`.
  if (node.name === 'Object') return propertiesOf(node, text).findLast(({ name }) => name === segment)?.value ?? null
  if (node.name === 'Array' && /^(0|[1-9][0-9]*)$/.test(segment)) return elementsOf(node)[Number(segment)] ?? null
  return null
}

function valueIn(node: SyntaxNode): SyntaxNode | null {
  for (let child = node.firstChild; child; child = child.nextSibling) if (isValue(child)) return child
  return null
}

const isValue = ({ name }: SyntaxNode): boolean => ['Object', 'Array', 'String', 'Number', 'True', 'False', 'Null'].includes(name)

function nameIn(node: SyntaxNode, text: string): string {
  const written = text.slice(node.from, node.to)
  try {
    return JSON.parse(written) as string
  } catch {
    // The closing quote is not typed yet.
    return written.replaceAll('"', '')
  }
}
