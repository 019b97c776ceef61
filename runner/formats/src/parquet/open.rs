//! Opening of files: their footers, and the rows that meet the comparisons of a document.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, RAISE_BUFFER, RangedObject, shown};
use tokio::task::spawn_blocking;

use super::columns::{Layout, Query};
use super::fault::FileFault;
use super::filter;
use super::footer::{self, RowGroup, TAIL};
use super::groups::{File, Group};
use super::schema::{self, Node};

/// Bytes at the end of a file that are read first; most footers are shorter.
const TAIL_BYTES: u64 = 64 << 10;

/// Maximum size of a footer in bytes.
const MAX_FOOTER: u64 = 64 << 20;

/// Number of files that are opened at a time.
const AT_A_TIME: usize = 8;

/// Maximum number of different schemas whose columns are kept for the files that follow.
const MAX_LAYOUTS: usize = 16;

/// Columns by the schema in which they were found: most files of a data set have the same.
type Layouts = Mutex<Vec<(Vec<Node>, Arc<Layout>)>>;

/// Reads the footers of all files. What is kept of them may take `most_bytes`. Row groups in which no row can meet the comparisons have
/// no rows.
pub(super) async fn open(
    store: &BoundedStore,
    keys: Vec<Arc<str>>,
    query: Query,
    most_bytes: u64,
) -> Result<(Vec<File>, Vec<Group>), SourceFault> {
    let (query, layouts, most_footer) =
        (Arc::new(query), Arc::new(Layouts::default()), MAX_FOOTER.min(most_bytes / 2).max(TAIL_BYTES));
    let opens = stream::iter(keys).map(|key: Arc<str>| {
        let (store, query, layouts) = (store.clone(), query.clone(), layouts.clone());
        async move {
            let object = RangedObject::open(store.clone(), key.clone(), 0).await?;
            let fault = |reason: FileFault| {
                SourceFault::new(format!("{} in store `{}` {reason}", shown(&key), store.name()), None)
            };
            let footer = footer_of(&object, most_footer).await?.map_err(&fault)?;
            let end = object.size() - TAIL - footer.len() as u64;
            let parse = spawn_blocking(move || parse(&footer, end, &query, &layouts));
            let parsed = parse
                .await
                .map_err(|error| SourceFault::new("reading a footer was interrupted", Some(error.into())))?;
            let (layout, groups) = parsed.map_err(&fault)?;
            Ok::<_, SourceFault>((File { key, version: object.version().clone(), layout }, groups))
        }
    });
    let mut opens = opens.buffered(AT_A_TIME.min(store.reads().get()));
    let (mut files, mut groups, mut kept) = (Vec::new(), Vec::new(), 0);
    while let Some((file, rows)) = opens.try_next().await? {
        kept += (size_of::<File>() + file.key.len()) as u64;
        kept += rows.iter().map(Group::bytes).sum::<u64>();
        if kept > most_bytes {
            let reason = format!(
                "the places of the row groups up to {} take more than {most_bytes} bytes",
                shown(&file.key)
            );
            return Err(SourceFault::new(
                format!("{reason}; name fewer `columns`, or write larger row groups{RAISE_BUFFER}"),
                None,
            ));
        }
        let number = files.len() as u32;
        groups.extend(rows.into_iter().map(|group| Group { file: number, ..group }));
        files.push(file);
    }
    Ok((files, groups))
}

async fn footer_of(object: &RangedObject, most: u64) -> Result<Result<Bytes, FileFault>, SourceFault> {
    let size = object.size();
    let start = size.saturating_sub(TAIL_BYTES);
    let mut tail = object.read(start..size).await?;
    let length = match footer::length(&tail) {
        Ok(length) => length,
        Err(fault) => return Ok(Err(fault)),
    };
    if length > size.saturating_sub(TAIL) {
        return Ok(Err(FileFault::damaged(format!("it has {size} bytes, and a footer of {length} bytes"))));
    }
    if length > most {
        return Ok(Err(FileFault::LargeFooter { size: length, most }));
    }
    let end = size - TAIL;
    if end - length < start {
        return Ok(Ok(object.read(end - length..end).await?));
    }
    let tail = tail.split_off((end - length - start) as usize);
    Ok(Ok(tail.slice(..length as usize)))
}

fn parse(
    footer: &Bytes,
    end: u64,
    query: &Query,
    layouts: &Layouts,
) -> Result<(Arc<Layout>, Vec<Group>), FileFault> {
    let layout = layout(schema::read(footer)?, query, layouts)?;
    let wanted: Vec<(usize, bool)> = layout
        .leaves
        .iter()
        .enumerate()
        .map(|(at, leaf)| (leaf.column, layout.filter.contains(&at)))
        .collect();
    let mut first_row = 0_u64;
    let groups = footer::row_groups(footer, layout.columns, &wanted, end)?.into_iter().enumerate().map(
        |(number, read)| {
            let group = group(&layout, query, &read, number, first_row)?;
            first_row = first_row
                .checked_add(read.rows)
                .ok_or_else(|| FileFault::damaged("it has more rows than a number can state"))?;
            Ok(group)
        },
    );
    let groups = groups.collect::<Result<_, FileFault>>()?;
    Ok((layout, groups))
}

/// The columns of a file with this schema.
fn layout(schema: Vec<Node>, query: &Query, layouts: &Layouts) -> Result<Arc<Layout>, FileFault> {
    let known = || layouts.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, layout)) = known().iter().find(|(known, _)| *known == schema) {
        return Ok(layout.clone());
    }
    let layout = Arc::new(Layout::new(&schema, query)?);
    for (comparison, leaf) in query.filter.iter().zip(&layout.filter) {
        filter::check(comparison, &layout.leaves[*leaf])?;
    }
    let mut known = known();
    if known.len() < MAX_LAYOUTS {
        known.push((schema, layout.clone()));
    }
    Ok(layout)
}

fn group(
    layout: &Layout,
    query: &Query,
    read: &RowGroup,
    number: usize,
    first_row: u64,
) -> Result<Group, FileFault> {
    for (leaf, chunk) in layout.leaves.iter().zip(&read.chunks) {
        let is_flat = leaf.lists.is_empty();
        if (is_flat && chunk.values != read.rows) || chunk.values < read.rows {
            let reason =
                format!("has {} values in the {} rows of row group {number}", chunk.values, read.rows);
            return Err(FileFault::column(&leaf.name, reason));
        }
    }
    let mut comparisons = query.filter.iter().zip(&layout.filter);
    let may_match = comparisons.all(|(comparison, &leaf)| {
        filter::may_meet(comparison, &layout.leaves[leaf], &read.chunks[leaf], &read.statistics[leaf])
    });
    let count = if may_match { read.rows } else { 0 };
    let chunks = read.chunks.as_slice().into();
    Ok(Group { file: 0, number: number as u32, first_row, rows: read.rows, count, chunks, selected: None })
}
