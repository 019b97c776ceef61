//! Footers: the places of the row groups of a file.

use bytes::Bytes;

use super::fault::FileFault;
use super::thrift::{BINARY, Compact, I32, I64, LIST, STRUCT};

/// Size of the end of a file: the length of the footer, and four letters.
pub(super) const TAIL: u64 = 8;

/// A row group: as many values of each column as it has rows.
#[derive(Debug)]
pub(super) struct RowGroup {
    pub(super) rows: u64,
    /// Chunks of the columns that were asked for.
    pub(super) chunks: Vec<Chunk>,
    /// Statistics of each chunk; the bounds are empty unless they were asked for.
    pub(super) statistics: Vec<Statistics>,
}

/// Place and size of the values of one column in a row group, as the footer states them. The pages are compared with it.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunk {
    pub(super) start: u64,
    pub(super) len: u64,
    /// Size of the pages in bytes when they are decompressed.
    pub(super) uncompressed: u64,
    /// Number of values, with nulls and empty lists.
    pub(super) values: u64,
    /// Number of the compression in the format.
    pub(super) codec: u8,
    /// Bytes that the values of pages in the encoding DELTA_BYTE_ARRAY take beyond `uncompressed`, as far as they are known before the pages
    /// are read; 0 if there are no such pages.
    pub(super) expanded: u64,
}

/// Assumed size of the values of pages in the encoding DELTA_BYTE_ARRAY, as a multiple of that of the pages.
const EXPANSION: u64 = 2;

const DELTA_BYTE_ARRAY: i64 = 7;

/// Bounds of the values in a column chunk, as they are encoded.
#[derive(Clone, Debug, Default)]
pub(super) struct Statistics {
    pub(super) least: Option<Bytes>,
    pub(super) most: Option<Bytes>,
    pub(super) nulls: Option<u64>,
}

/// Length of the footer, from the end of a file.
pub(super) fn length(tail: &[u8]) -> Result<u64, FileFault> {
    match tail.last_chunk::<8>() {
        Some([a, b, c, d, b'P', b'A', b'R', b'1']) => Ok(u32::from_le_bytes([*a, *b, *c, *d]).into()),
        Some([.., b'P', b'A', b'R', b'E']) => Err(FileFault::Encrypted),
        _ if tail.is_empty() => Err(FileFault::Empty),
        _ => Err(FileFault::NoParquet),
    }
}

/// Reads the row groups from a footer. `columns` is the number of columns in the schema, `wanted` the ascending positions of those to
/// return, each with true if the bounds of its values are needed. `end` is the place of the footer in the file.
pub(super) fn row_groups(
    footer: &Bytes,
    columns: usize,
    wanted: &[(usize, bool)],
    end: u64,
) -> Result<Vec<RowGroup>, FileFault> {
    let damaged = || FileFault::damaged("its footer has no valid row groups");
    let (mut input, mut last, mut groups) = (Compact::new(footer), 0, Vec::new());
    while let Some((number, kind)) = input.field(&mut last).ok_or_else(damaged)? {
        match (number, kind) {
            (4, LIST) => {
                let (kind, count) = input.list().ok_or_else(damaged)?;
                if kind != STRUCT && count > 0 {
                    return Err(damaged());
                }
                for _ in 0..count {
                    groups.push(row_group(footer, &mut input, columns, wanted, end)?);
                }
            }
            (8, STRUCT) => return Err(FileFault::Encrypted),
            _ => input.skip(kind).ok_or_else(damaged)?,
        }
    }
    Ok(groups)
}

fn row_group(
    footer: &Bytes,
    input: &mut Compact<'_>,
    columns: usize,
    wanted: &[(usize, bool)],
    end: u64,
) -> Result<RowGroup, FileFault> {
    let damaged = || FileFault::damaged("a row group in its footer is not valid");
    let (mut last, mut rows, mut chunks) = (0, None, None);
    while let Some((number, kind)) = input.field(&mut last).ok_or_else(damaged)? {
        match (number, kind) {
            (1, LIST) => {
                let (kind, count) = input.list().ok_or_else(damaged)?;
                if kind != STRUCT || count != columns {
                    return Err(damaged());
                }
                let (mut read, mut wanted) = ((Vec::new(), Vec::new()), wanted.iter().peekable());
                for column in 0..count {
                    match wanted.next_if(|(wanted, _)| *wanted == column) {
                        Some((_, has_statistics)) => {
                            read.extend([chunk(footer, input, *has_statistics, end)?])
                        }
                        None => input.skip(STRUCT).ok_or_else(damaged)?,
                    }
                }
                chunks = Some(read);
            }
            (3, I64) => rows = Some(input.count().ok_or_else(damaged)?),
            _ => input.skip(kind).ok_or_else(damaged)?,
        }
    }
    let (Some(rows), Some((chunks, statistics))) = (rows, chunks) else { return Err(damaged()) };
    Ok(RowGroup { rows, chunks, statistics })
}

fn chunk(
    footer: &Bytes,
    input: &mut Compact<'_>,
    has_statistics: bool,
    end: u64,
) -> Result<(Chunk, Statistics), FileFault> {
    let damaged = || FileFault::damaged("a column in its footer is not valid");
    let (mut last, mut chunk) = (0, None);
    while let Some((number, kind)) = input.field(&mut last).ok_or_else(damaged)? {
        match (number, kind) {
            (1, BINARY) => {
                if !input.binary().ok_or_else(damaged)?.is_empty() {
                    return Err(FileFault::damaged(
                        "the values of a column are in another file, which is not supported",
                    ));
                }
            }
            (3, STRUCT) => chunk = Some(place(footer, input, has_statistics).ok_or_else(damaged)?),
            (8, STRUCT) => return Err(FileFault::Encrypted),
            _ => input.skip(kind).ok_or_else(damaged)?,
        }
    }
    let (chunk, statistics) = chunk.ok_or_else(damaged)?;
    match chunk.start.checked_add(chunk.len) {
        Some(last) if last <= end => Ok((chunk, statistics)),
        _ => Err(FileFault::damaged("a column lies outside of the file")),
    }
}

fn place(footer: &Bytes, input: &mut Compact<'_>, has_statistics: bool) -> Option<(Chunk, Statistics)> {
    let (mut last, mut chunk, mut found, mut dictionary) = (0, Chunk::default(), Statistics::default(), 0);
    let (mut has_prefixes, mut values_size) = (false, None);
    while let Some((number, kind)) = input.field(&mut last)? {
        match (number, kind) {
            (2, LIST) => {
                let (kind, count) = input.list()?;
                for _ in 0..count {
                    match kind {
                        I32 => has_prefixes |= input.int()? == DELTA_BYTE_ARRAY,
                        _ => input.skip(kind)?,
                    }
                }
            }
            (4, I32) => chunk.codec = u8::try_from(input.int()?).ok()?,
            (5, I64) => chunk.values = input.count()?,
            (6, I64) => chunk.uncompressed = input.count()?,
            (7, I64) => chunk.len = input.count()?,
            (9, I64) => chunk.start = input.count()?,
            // Some writers state the place 0 if there is no dictionary.
            (11, I64) => dictionary = input.count()?,
            (12, STRUCT) => found = statistics(footer, input, has_statistics)?,
            (16, STRUCT) => values_size = size_of_values(input)?,
            _ => input.skip(kind)?,
        }
    }
    if has_prefixes {
        // pyarrow 26 states less than there is for lists.
        let values = values_size.unwrap_or(0).max(chunk.uncompressed.saturating_mul(EXPANSION));
        // Each value has its length in front of it.
        chunk.expanded = values.saturating_add(chunk.values.saturating_mul(size_of::<u32>() as u64));
    }
    if (1..chunk.start).contains(&dictionary) {
        chunk.start = dictionary;
    }
    Some((chunk, found))
}

/// Size of all texts or blobs of a column chunk, if the writer has stated it.
fn size_of_values(input: &mut Compact<'_>) -> Option<Option<u64>> {
    let (mut last, mut size) = (0, None);
    while let Some((number, kind)) = input.field(&mut last)? {
        match (number, kind) {
            (1, I64) => size = Some(input.count()?),
            _ => input.skip(kind)?,
        }
    }
    Some(size)
}

/// Bounds in the order of the column's type. The older bounds, whose order is not defined, are left out.
fn statistics(footer: &Bytes, input: &mut Compact<'_>, has_bounds: bool) -> Option<Statistics> {
    let (mut last, mut found) = (0, Statistics::default());
    while let Some((number, kind)) = input.field(&mut last)? {
        match (number, kind) {
            (3, I64) => found.nulls = Some(input.count()?),
            (5, BINARY) if has_bounds => found.most = Some(footer.slice_ref(input.binary()?)),
            (6, BINARY) if has_bounds => found.least = Some(footer.slice_ref(input.binary()?)),
            _ => input.skip(kind)?,
        }
    }
    Some(found)
}
