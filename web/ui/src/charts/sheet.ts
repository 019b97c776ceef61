// Figures of a chart, for its table and for saved files.

export type Value = string | number | boolean | null

export interface Sheet {
  columns: {
    /** Name of the column in files, with the unit. */
    name: string
    /** Heading on the page. */
    head: string
    /** Formats the numbers of the column; strings are shown unchanged. */
    text?: (value: number | null) => string
  }[]
  rows: Value[][]
}

/** Sheet with a row for each thing; `of` returns the value of a column. */
export function sheetOf<Thing>(things: readonly Thing[], columns: (Sheet['columns'][number] & { of: (thing: Thing) => Value })[]): Sheet {
  return { columns, rows: things.map((thing) => columns.map(({ of }) => of(thing))) }
}

export function sheetCsv({ columns, rows }: Sheet): string {
  return [columns.map(({ name }) => name), ...rows].map((row) => row.map(quoted).join(',')).join('\r\n') + '\r\n'
}

export function sheetJson({ columns, rows }: Sheet): string {
  return JSON.stringify(rows.map((row) => Object.fromEntries(columns.map(({ name }, place) => [name, row[place] ?? null]))))
}

export function quoted(value: Value): string {
  const text = String(value ?? '')
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}
