/** Text of a module, schema or the server where no markup is possible, as in tooltips and options: without the backticks around code. */
export const unmarked = (text: string): string => text.replaceAll('`', '')
