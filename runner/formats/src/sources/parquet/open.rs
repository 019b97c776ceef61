//! Opening of files: their footers, and the rows that meet the comparisons of a document.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::lock::locked;
use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, RAISE_BUFFER, RangedObject, shown};
use penstock_types::data_set::DataFields;
use penstock_types::spec::ParquetSource;

use super::columns::{Lacking, Layout, Leaf};
use super::fault::{FileFault, escaped};
use super::filter;
use super::footer::{self, RowGroup, TAIL};
use super::groups::{File, Group};
use super::schema::{self, Node};
use crate::access::Access;
use crate::reason::blocking;
use crate::shards::Shards;

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

pub(super) struct Opened {
    pub(super) files: Vec<File>,
    pub(super) groups: Vec<Group>,
    pub(super) fields: DataFields,
}

/// Reads the footers of all files, and unites their columns by name. What is kept of them may take an eighth of the memory. Row groups in
/// which no row can meet the comparisons have no rows.
pub(super) async fn open(
    source: &Arc<ParquetSource>,
    Access { store, damage, most_bytes }: &Access,
) -> Result<Opened, SourceFault> {
    let keys = Shards::of(&**source, &damage.notes).keys(store).await?;
    let (layouts, most_bytes) = (Arc::new(Layouts::default()), most_bytes / 8);
    let most_footer = MAX_FOOTER.min(most_bytes / 2).max(TAIL_BYTES);
    let opens = stream::iter(keys).map(|key: Arc<str>| {
        let (source, layouts) = (source.clone(), layouts.clone());
        async move {
            match open_file(store, &key, source, layouts, most_footer).await {
                Ok(opened) => Ok(Some(opened)),
                Err(fault) => damage.part(&key, None, fault).map(|()| None),
            }
        }
    });
    let mut opens = opens.buffered(AT_A_TIME.min(store.reads().get()));
    let (mut files, mut groups, mut kept) = (Vec::new(), Vec::new(), 0);
    let mut parts: Vec<(Arc<str>, DataFields)> = Vec::new();
    let mut lacking: Option<(Arc<str>, Lacking)> = None;
    let mut meanings = Meanings::default();
    while let Some(opened) = opens.try_next().await? {
        let Some((file, rows, fields)) = opened else { continue };
        kept += (size_of::<File>() + file.key.len()) as u64;
        kept += rows.iter().map(Group::bytes).sum::<u64>();
        if kept > most_bytes {
            let key = shown(&file.key);
            let reason =
                format!("the places of the row groups up to {key} take more than {most_bytes} bytes");
            let remedy = "name fewer `columns`, or write larger row groups";
            return Err(SourceFault::new(format!("{reason}; {remedy}{RAISE_BUFFER}"), None));
        }
        // A column that no file has is a fault.
        let of_file = &file.layout.lacking;
        match &mut lacking {
            None => lacking = Some((file.key.clone(), of_file.clone())),
            Some((_, all)) => all.columns.retain(|column| of_file.columns.contains(column)),
        }
        let is_new = files.last().is_none_or(|last: &File| !Arc::ptr_eq(&last.layout, &file.layout));
        if is_new {
            meanings.add(&file).map_err(differs)?;
        }
        // Most files have the fields of the file before.
        if parts.last().is_none_or(|(_, last)| *last != fields) {
            parts.push((file.key.clone(), fields));
        }
        let number = files.len() as u32;
        groups.extend(rows.into_iter().map(|group| Group { file: number, ..group }));
        files.push(file);
    }
    if let Some((key, Lacking { columns, known })) = &lacking
        && let Some(name) = columns.first()
    {
        let fault = FileFault::NoColumn { name: escaped(name), known: known.clone() };
        return Err(SourceFault::new(format!("{} {fault}", store.named(key)), None));
    }
    let fields = DataFields::of_several(&parts)
        .map_err(|fault| differs(fault.to_string().replace("the source ", "the file ")))?;
    Ok(Opened { files, groups, fields })
}

fn differs(fault: String) -> SourceFault {
    let remedy = "write the files with equal columns, or name others in `columns`";
    SourceFault::new(format!("{fault}; {remedy}"), None)
}

/// Columns by name, each as the first file has it.
#[derive(Default)]
struct Meanings(HashMap<Arc<str>, (Leaf, Arc<str>)>);

impl Meanings {
    /// Adds the columns of a file. Fails if equal numbers or texts in a column mean something else than in a file before. Types are compared
    /// elsewhere.
    fn add(&mut self, file: &File) -> Result<(), String> {
        for leaf in &file.layout.leaves {
            let of_file = || (leaf.clone(), file.key.clone());
            let (known, at) = self.0.entry(leaf.name.clone()).or_insert_with(of_file);
            if known.meaning() != leaf.meaning() {
                let (name, at, key) = (escaped(&leaf.name), shown(at), shown(&file.key));
                let (known, other) = (known.in_words(), leaf.in_words());
                return Err(format!(
                    "the column `{name}` {known} in the file {at}, and {other} in the file {key}"
                ));
            }
        }
        Ok(())
    }
}

async fn open_file(
    store: &BoundedStore,
    key: &Arc<str>,
    source: Arc<ParquetSource>,
    layouts: Arc<Layouts>,
    most_footer: u64,
) -> Result<(File, Vec<Group>, DataFields), SourceFault> {
    let object = RangedObject::open(store.clone(), key.clone(), 0).await?;
    let fault = |reason: FileFault| {
        let message = format!("{} {reason}", store.named(key));
        SourceFault { is_damage: reason.is_damage(), ..SourceFault::new(message, None) }
    };
    let footer = footer_of(&object, most_footer, fault).await?;
    let end = object.size() - TAIL - footer.len() as u64;
    let parsed = blocking("reading a footer", move || parse(&footer, end, &source, &layouts)).await?;
    let (layout, groups, fields) = parsed.map_err(fault)?;
    let file = File { key: key.clone(), version: object.version().clone(), layout };
    Ok((file, groups, fields))
}

async fn footer_of(
    object: &RangedObject,
    most: u64,
    fault: impl Fn(FileFault) -> SourceFault,
) -> Result<Bytes, SourceFault> {
    let size = object.size();
    let start = size.saturating_sub(TAIL_BYTES);
    let mut tail = object.read(start..size).await?;
    let length = footer::length(&tail).map_err(&fault)?;
    if length > size.saturating_sub(TAIL) {
        let reason = format!("it has {size} bytes, and a footer of {length} bytes");
        return Err(fault(FileFault::damaged(reason)));
    }
    if length > most {
        return Err(fault(FileFault::LargeFooter { size: length, most }));
    }
    let end = size - TAIL;
    if end - length < start {
        return Ok(object.read(end - length..end).await?);
    }
    let tail = tail.split_off((end - length - start) as usize);
    Ok(tail.slice(..length as usize))
}

/// Columns, row groups and fields of the rows of a file with this footer.
fn parse(
    footer: &Bytes,
    end: u64,
    source: &ParquetSource,
    layouts: &Layouts,
) -> Result<(Arc<Layout>, Vec<Group>, DataFields), FileFault> {
    let layout = layout(schema::read(footer)?, source, layouts)?;
    let wanted: Vec<(usize, bool)> = layout
        .leaves
        .iter()
        .enumerate()
        .map(|(at, leaf)| (leaf.column, layout.filter.contains(&Some(at))))
        .collect();
    let mut first_row = 0_u64;
    let mut nulls = vec![Some(0_u64); layout.leaves.len()];
    let groups = footer::row_groups(footer, layout.columns, &wanted, end)?.into_iter().enumerate().map(
        |(number, mut read)| {
            for (leaf, chunk) in layout.leaves.iter().zip(&mut read.chunks) {
                if let (1.., Some(length)) = (chunk.expanded, leaf.fixed_length()) {
                    chunk.expanded = chunk.values.saturating_mul(length as u64);
                }
            }
            for (sum, statistics) in nulls.iter_mut().zip(&read.statistics) {
                *sum = sum.zip(statistics.nulls).map(|(sum, more)| sum.saturating_add(more));
            }
            let group = group(&layout, source, &read, number, first_row)?;
            first_row = first_row
                .checked_add(read.rows)
                .ok_or_else(|| FileFault::damaged("it has more rows than a number can state"))?;
            Ok(group)
        },
    );
    let groups = groups.collect::<Result<_, FileFault>>()?;
    let fields = layout.fields(&nulls);
    Ok((layout, groups, fields))
}

fn layout(schema: Vec<Node>, source: &ParquetSource, layouts: &Layouts) -> Result<Arc<Layout>, FileFault> {
    if let Some((_, layout)) = locked(layouts).iter().find(|(known, _)| *known == schema) {
        return Ok(layout.clone());
    }
    let layout = Arc::new(Layout::new(&schema, source)?);
    for (comparison, leaf) in source.filter.iter().zip(&layout.filter) {
        if let Some(leaf) = leaf {
            filter::check(comparison, &layout.leaves[*leaf])?;
        }
    }
    let mut known = locked(layouts);
    if known.len() < MAX_LAYOUTS {
        known.push((schema, layout.clone()));
    }
    Ok(layout)
}

fn group(
    layout: &Layout,
    source: &ParquetSource,
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
    let mut comparisons = source.filter.iter().zip(&layout.filter);
    let may_match = comparisons.all(|(comparison, &leaf)| {
        // A row without the column has a null, which meets no comparison.
        leaf.is_some_and(|leaf| {
            filter::may_meet(comparison, &layout.leaves[leaf], &read.chunks[leaf], &read.statistics[leaf])
        })
    });
    let count = if may_match { read.rows } else { 0 };
    let chunks = read.chunks.as_slice().into();
    Ok(Group { file: 0, number: number as u32, first_row, rows: read.rows, count, chunks, selected: None })
}
