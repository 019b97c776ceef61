// The figures behind a chart, as a table and as a file.

export type Value = string | number | boolean | null

export interface Sheet {
  columns: {
    /** In files; a figure's carries its unit. */
    name: string
    /** Head of the column. */
    head: string
    /** Formats the numbers of the column; strings are shown unchanged. */
    text?: (value: number | null) => string
  }[]
  rows: Value[][]
}

/** A sheet with a row for each thing, of which each column takes a value. */
export function sheetOf<Thing>(things: readonly Thing[], columns: (Sheet['columns'][number] & { of: (thing: Thing) => Value })[]): Sheet {
  return { columns, rows: things.map((thing) => columns.map(({ of }) => of(thing))) }
}

/** A line for each row, under a line of names. */
export function sheetCsv({ columns, rows }: Sheet): string {
  return [columns.map(({ name }) => name), ...rows].map((row) => row.map(quoted).join(',')).join('\r\n') + '\r\n'
}

/** An object for each row. */
export function sheetJson({ columns, rows }: Sheet): string {
  return JSON.stringify(rows.map((row) => Object.fromEntries(columns.map(({ name }, place) => [name, row[place] ?? null]))))
}

export function quoted(value: Value): string {
  const text = String(value ?? '')
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}
