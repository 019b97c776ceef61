//! Delimiters that tables seem to have.

use std::cmp::Reverse;

use penstock_types::spec::TableForm;
use penstock_types::text::printable;

use super::RecordFault;
use super::layout::{MAX_COLUMNS, reader};
use super::rows::RowParser;

/// Maximum length of a line in messages, in bytes.
const MAX_SHOWN_LINE: usize = 100;

/// True for a first row such as `sep=;`, by which spreadsheets name the delimiter. Fails unless the document names the same one.
pub(super) fn is_separator_row(row: &[u8], form: TableForm) -> Result<bool, RecordFault> {
    let Some(separator) = separator(row) else { return Ok(false) };
    match separator {
        found if !form.is_named => Err(RecordFault::Separator { line: shown(row), found }),
        Some(found) if found != char::from(form.delimiter) => {
            Err(RecordFault::OtherSeparator { line: shown(row), delimiter: char::from(form.delimiter) })
        }
        _ => Ok(true),
    }
}

/// The character that a row such as `sep=;` names, if it is one: an editor may have removed the character, a spreadsheet repeated it.
fn separator(row: &[u8]) -> Option<Option<char>> {
    const MOST_BYTES: usize = 64;
    let row = str::from_utf8(row).ok().filter(|row| row.len() <= MOST_BYTES)?;
    let row = row.trim_end_matches(['\r', '\n']).replace('"', "");
    let named = row.get(..4).filter(|start| start.eq_ignore_ascii_case("sep=")).map(|_| &row[4..])?;
    let first = named.chars().next();
    let is_one = first.is_none_or(|first| !first.is_alphanumeric() && named.chars().all(|all| all == first));
    is_one.then_some(first)
}

/// Fails if a header whose columns have these names seems to have another delimiter, unless the document names one.
pub(super) fn check(header: &[u8], names: &[&str], form: TableForm) -> Result<(), RecordFault> {
    if form.is_named {
        return Ok(());
    }
    let mut named = names.iter().filter(|name| !name.is_empty());
    let only = named.next().filter(|_| named.next().is_none());
    let is_other = |byte: &u8| *byte != form.delimiter && Some(*byte) != form.quote;
    // Number of columns that a delimiter makes, and false if it divides a quoted name.
    let counted = |byte: u8| {
        let other = TableForm { delimiter: byte, ..form };
        let mut parser = RowParser::new(other, reader(other));
        let names = parser.row(header, MAX_COLUMNS).ok().flatten().unwrap_or_default();
        let is_quote = |character: char| form.quote.map(char::from) == Some(character);
        (byte, names.len().max(1), !names.iter().any(|name| name.contains(is_quote)))
    };
    let found = match only {
        // Control characters within a name separate columns, too: no name has one.
        Some(name) => {
            let separates = |byte: &u8| matches!(byte, b';' | b'|' | b',' | 1..=9 | 11 | 12 | 14..=31);
            let first = |byte: u8| name.bytes().position(|own| own == byte);
            let held = (1..=127).filter(separates).filter(is_other).filter(|&byte| first(byte).is_some());
            held.map(counted).max_by_key(|&(byte, columns, _)| (columns, Reverse(first(byte))))
        }
        None => {
            let others = [b'|', b'\t', b';'].into_iter().filter(is_other).map(counted);
            others
                .filter(|(_, columns, is_clean)| *is_clean && *columns > names.len())
                .max_by_key(|(_, columns, _)| *columns)
        }
    };
    match found {
        None => Ok(()),
        Some((other, others, _)) => Err(RecordFault::Delimiter {
            line: shown(header),
            own: char::from(form.delimiter),
            columns: names.len(),
            other: char::from(other),
            others,
        }),
    }
}

fn shown(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(&line[..line.len().min(4 * MAX_SHOWN_LINE)]);
    printable(&line.trim_end_matches(['\r', '\n']).replace('\t', "\\t"), MAX_SHOWN_LINE)
}
