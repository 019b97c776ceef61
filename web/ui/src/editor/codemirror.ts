// JSON editor: CodeMirror in a shadow root. In a shadow root, CodeMirror adopts style sheets instead of adding a `<style>` element,
// which the server's policy `default-src 'self'` would refuse.

import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from '@codemirror/autocomplete'
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands'
import { json } from '@codemirror/lang-json'
import { bracketMatching, ensureSyntaxTree, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting, syntaxTree } from '@codemirror/language'
import { lintKeymap, setDiagnostics, type Diagnostic } from '@codemirror/lint'
import { EditorState, Prec, type ChangeSpec } from '@codemirror/state'
import {
  drawSelection, EditorView, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, hoverTooltip, keymap, lineNumbers, type Tooltip,
} from '@codemirror/view'
import type { Tree } from '@lezer/common'
import { tags } from '@lezer/highlight'

import type { DocumentFault } from '../api/types'
import { unmarked } from '../parts/prose'
import { complete } from './complete'
import { pointerAt, pathOf, rangeOf, type Range } from './pointer'
import { aboutOf, type SchemaFor } from './schema'

export interface EditorSettings {
  text: string
  schema: () => SchemaFor | null
  /** Names to offer for a value in addition to those of the schema: modules, stores. */
  names: (segments: string[]) => string[]
  changed: (text: string) => void
  moved: (pointer: string) => void
  submit: () => void
}

export type Editor = ReturnType<typeof openEditor>

const COMPLETE_PARSE_MS = 200

export function openEditor(host: HTMLElement, settings: EditorSettings) {
  const root = host.shadowRoot ?? host.attachShadow({ mode: 'open' })
  const submit = () => {
    settings.submit()
    return true
  }
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: settings.text,
      extensions: [
        lineNumbers(),
        highlightActiveLineGutter(),
        highlightActiveLine(),
        highlightSpecialChars(),
        history(),
        drawSelection(),
        indentOnInput(),
        indentUnit.of('  '),
        bracketMatching(),
        closeBrackets(),
        json(),
        EditorView.lineWrapping,
        syntaxHighlighting(colours),
        autocompletion({ override: [(context) => complete(context, read(context.state).tree, settings.schema(), settings.names)], icons: false }),
        hoverTooltip((view, position) => explain(view, position, settings)),
        EditorView.contentAttributes.of({ 'aria-label': 'Pipeline document, JSON', spellcheck: 'false', tabindex: '0' }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) settings.changed(update.state.doc.toString())
          if (update.selectionSet || update.docChanged) {
            const { tree, text } = read(update.state)
            settings.moved(pointerAt(tree, text, update.state.selection.main.head).pointer)
          }
        }),
        typeOver,
        Prec.highest(keymap.of([{ key: 'Mod-Enter', run: submit }])),
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...completionKeymap, ...lintKeymap]),
        theme,
      ],
    }),
  })

  const select = ({ from, to }: Range) => view.dispatch({ selection: { anchor: from, head: to }, effects: EditorView.scrollIntoView(from, { y: 'center' }) })

  return {
    text: () => view.state.doc.toString(),
    tree: () => read(view.state).tree,
    replace: (text: string) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }),
    change: (changes: ChangeSpec) => view.dispatch({ changes }),
    /** Marks faults in the text; returns the line of each fault. */
    mark(faults: DocumentFault[]): number[] {
      const { tree, text } = read(view.state)
      const found = faults.map((fault): Diagnostic => ({ ...rangeOf(tree, text, fault.pointer), severity: 'error', message: unmarked(fault.detail) }))
      view.dispatch(setDiagnostics(view.state, found))
      return found.map(({ from }) => view.state.doc.lineAt(from).number)
    },
    markSyntax(message: string): void {
      const { tree, text } = read(view.state)
      view.dispatch(setDiagnostics(view.state, [{ ...firstError(tree, text), severity: 'error', message }]))
    },
    show(pointer: string): void {
      const { tree, text } = read(view.state)
      select(rangeOf(tree, text, pointer))
    },
    focus: () => view.focus(),
    destroy: () => view.destroy(),
  }
}

/**
 * Inserts text that is typed over a selection. The browser would copy the selection's colour into a `style` attribute, which the
 * policy refuses.
 */
const typeOver = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const { from, to, empty } = view.state.selection.main
    const typed = event.data
    if (event.inputType !== 'insertText' || typed === null || empty || view.composing) return false
    const insert = () => view.state.update(view.state.replaceSelection(typed), { userEvent: 'input.type', scrollIntoView: true })
    // An input handler may replace the insertion, e.g. by brackets around the selection.
    if (!view.state.facet(EditorView.inputHandler).some((handle) => handle(view, from, to, typed, insert))) view.dispatch(insert())
    return true
  },
})

function read(state: EditorState): { tree: Tree; text: string } {
  return { tree: ensureSyntaxTree(state, state.doc.length, COMPLETE_PARSE_MS) ?? syntaxTree(state), text: state.doc.toString() }
}

function firstError(tree: Tree, text: string): Range {
  let found: Range | null = null
  tree.iterate({
    enter: (node) => {
      if (node.type.isError) found ??= { from: Math.max(0, Math.min(node.from, text.length - 1)), to: Math.max(node.to, Math.min(node.from + 1, text.length)) }
      return found === null
    },
  })
  return found ?? { from: Math.max(0, text.length - 1), to: text.length }
}

function explain(view: EditorView, position: number, settings: EditorSettings): Tooltip | null {
  const schema = settings.schema()
  if (!schema) return null
  const { tree, text } = read(view.state)
  const node = tree.resolveInner(position, 1)
  if (node.name !== 'PropertyName') return null
  const field = aboutOf(schema, pathOf(node, text))
  if (!field || (!field.about && !field.range)) return null
  return {
    pos: node.from,
    end: node.to,
    above: true,
    create: () => {
      const dom = document.createElement('div')
      dom.className = 'about'
      const rules = [field.kind, field.range, field.default === undefined ? (field.required ? 'required' : '') : `default ${JSON.stringify(field.default)}`]
      const head = dom.appendChild(document.createElement('div'))
      head.className = 'rules'
      head.textContent = rules.filter(Boolean).join(', ')
      dom.appendChild(document.createElement('div')).textContent = unmarked(field.about)
      return { dom }
    },
  }
}

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: 'var(--accent)' },
  { tag: tags.string, color: 'var(--good)' },
  { tag: tags.number, color: 'var(--warn)' },
  { tag: [tags.bool, tags.null], color: 'var(--bad)' },
  { tag: [tags.separator, tags.squareBracket, tags.brace], color: 'var(--text-soft)' },
])

const theme = EditorView.theme({
  '&': { height: '100%', color: 'var(--text)', backgroundColor: 'var(--panel)', fontSize: '13px' },
  // The host element has the focus outline, so that it includes the line numbers.
  '&.cm-focused': { outline: 'none' },
  '.cm-scroller': { fontFamily: 'var(--mono)', lineHeight: '1.55' },
  '.cm-content': { padding: '10px 0', caretColor: 'var(--text)' },
  // Indents the wrapped part of a line by 8 characters.
  '.cm-line': { paddingLeft: 'calc(6px + 8ch)', textIndent: '-8ch' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '.cm-gutters': { backgroundColor: 'var(--sunken)', color: 'var(--text-faint)', border: 'none' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'color-mix(in srgb, var(--accent-wash) 45%, transparent)' },
  '&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground': { backgroundColor: 'color-mix(in srgb, var(--accent) 28%, transparent)' },
  '&.cm-focused .cm-matchingBracket': { backgroundColor: 'transparent', outline: '1px solid var(--line-strong)' },
  // CodeMirror's own underline is a data: URL, which the policy refuses.
  '.cm-lintRange': { backgroundImage: 'none', paddingBottom: '0' },
  '.cm-lintRange-error': { textDecoration: 'underline wavy var(--bad) 1.5px', textUnderlineOffset: '3px', backgroundColor: 'var(--bad-wash)' },
  '.cm-lintPoint': { display: 'none' },
  '.cm-tooltip': { border: '1px solid var(--line-strong)', borderRadius: '6px', backgroundColor: 'var(--panel-raised)', color: 'var(--text)', boxShadow: '0 6px 24px rgb(0 0 0 / 0.22)' },
  '.cm-tooltip .about': { maxWidth: '420px', padding: '7px 10px', fontFamily: 'var(--sans)' },
  '.cm-tooltip .rules': { color: 'var(--text-soft)', fontSize: '12px' },
  '.cm-diagnostic-error': { borderLeftColor: 'var(--bad)', fontFamily: 'var(--sans)' },
  '.cm-tooltip.cm-tooltip-autocomplete > ul': { fontFamily: 'var(--mono)' },
  '.cm-tooltip-autocomplete ul li[aria-selected]': { backgroundColor: 'var(--accent)', color: 'var(--accent-text)' },
  '.cm-completionDetail': { color: 'var(--text-faint)', fontStyle: 'normal' },
  '.cm-tooltip-autocomplete ul li[aria-selected] .cm-completionDetail': { color: 'inherit' },
  '.cm-tooltip.cm-completionInfo': { padding: '7px 10px', fontFamily: 'var(--sans)' },
})
