//! Row groups of all files: their places, and their reading.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::future::try_join_all;
use penstock_engine::lock::locked;
use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, Version};
use tokio::sync::Semaphore;

use super::columns::Layout;
use super::decode::{Column, decode};
use super::fault::FileFault;
use super::filter::Selected;
use super::footer::Chunk;
use super::growing::Growing;
use super::pages::{self, Pages};
use crate::cache::Reserved;
use crate::ranges::{Read, ReadLimits, Reads};
use crate::reason::{Reason, blocking};

#[derive(Debug)]
pub(super) struct File {
    pub(super) key: Arc<str>,
    pub(super) version: Version,
    pub(super) layout: Arc<Layout>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) file: u32,
    pub(super) number: u32,
    /// Number of the rows before it in its file.
    pub(super) first_row: u64,
    pub(super) rows: u64,
    pub(super) count: u64,
    /// Places of the columns of the layout.
    pub(super) chunks: Box<[Chunk]>,
    /// Rows that become samples; `None` if all or none do.
    pub(super) selected: Option<Selected>,
}

/// Decoded columns of a row group, in the order of the layout; `None` for those that were not asked for.
pub(super) type Columns = Vec<Option<Column>>;

pub(super) struct Reader {
    pub(super) store: BoundedStore,
    /// A permit for each row group that is decoded at a time.
    decoders: Semaphore,
    /// Sizes of `expanded` that were found to be larger than the footer lets assume, by file, row group and column of the layout.
    found: Mutex<HashMap<(u32, u32, usize), u64>>,
}

struct Decoding {
    key: Arc<str>,
    version: Version,
    layout: Arc<Layout>,
    chunks: Box<[Chunk]>,
    rows: u64,
    wanted: Box<[usize]>,
    /// Reads of the wanted columns, in their order.
    reads: Vec<Read<()>>,
    memory: Arc<Mutex<Growing>>,
}

enum Decoded {
    /// The columns, with the memory that they take in bytes.
    Columns(Columns, u64),
    /// There was no memory for columns, of which these positions take this many bytes for values in the encoding DELTA_BYTE_ARRAY.
    Short(Vec<(usize, u64)>),
}

impl Group {
    /// The column at this position of the layout, among those of all files.
    fn column(&self, at: usize) -> (u32, u32, usize) {
        (self.file, self.number, at)
    }

    /// True if the columns may take more memory than [`Self::needed_bytes`].
    pub(super) fn may_grow(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.expanded > 0)
    }

    /// Memory that the places take, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        (size_of::<Self>() + size_of_val(&self.chunks[..])) as u64
            + self.selected.as_ref().map_or(0, Selected::bytes)
    }

    /// Memory that the columns at these positions take at most when they are decoded, in bytes.
    pub(super) fn decoded_bytes(&self, layout: &Layout, is_wanted: impl Fn(usize) -> bool) -> u64 {
        let columns = layout.leaves.iter().zip(&self.chunks).enumerate().filter(|(at, _)| is_wanted(*at));
        columns.fold(0, |sum: u64, (_, (leaf, chunk))| {
            sum.saturating_add(chunk.uncompressed)
                .saturating_add(chunk.expanded)
                .saturating_add(chunk.values.saturating_mul(leaf.value_bytes()))
        })
    }

    /// Memory that reading the columns at these positions takes at most, in bytes.
    pub(super) fn needed_bytes(&self, layout: &Layout, is_wanted: impl Fn(usize) -> bool) -> u64 {
        let columns = self.chunks.iter().enumerate().filter(|(at, _)| is_wanted(*at));
        let stored = columns.fold(0, |sum: u64, (_, chunk)| sum.saturating_add(chunk.len));
        self.decoded_bytes(layout, is_wanted).saturating_add(stored)
    }

    pub(super) fn named(&self, file: &File, store: &BoundedStore) -> String {
        format!("row group {} of {}", self.number, store.named(&file.key))
    }
}

impl Reader {
    pub(super) fn new(store: BoundedStore) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self { store, decoders: Semaphore::new(cores), found: Mutex::default() }
    }

    /// Memory that reading the columns at these positions takes, in bytes. It is more after a failed read that has found out so.
    pub(super) fn needed_bytes(
        &self,
        group: &Group,
        layout: &Layout,
        is_wanted: impl Fn(usize) -> bool,
    ) -> u64 {
        let found = locked(&self.found);
        let more = |(at, chunk): (usize, &Chunk)| match is_wanted(at) {
            true => {
                found.get(&group.column(at)).map_or(0, |expanded| expanded.saturating_sub(chunk.expanded))
            }
            false => 0,
        };
        let more = if found.is_empty() { 0 } else { group.chunks.iter().enumerate().map(more).sum() };
        group.needed_bytes(layout, &is_wanted).saturating_add(more)
    }

    /// Reads and decodes the columns at these positions. Returns `reserved` with what they take.
    pub(super) async fn read(
        &self,
        file: &File,
        group: &Group,
        is_wanted: impl Fn(usize) -> bool,
        reserved: Reserved,
    ) -> Result<(Columns, Reserved), SourceFault> {
        let wanted: Box<[usize]> = (0..group.chunks.len()).filter(|at| is_wanted(*at)).collect();
        let (layout, mut chunks, rows) = (file.layout.clone(), group.chunks.clone(), group.rows);
        for (at, chunk) in chunks.iter_mut().enumerate().filter(|(_, chunk)| chunk.expanded > 0) {
            chunk.expanded = locked(&self.found).get(&group.column(at)).copied().unwrap_or(chunk.expanded);
        }
        let mut reads = Reads::new(ReadLimits::OF_COLUMNS);
        for chunk in wanted.iter().map(|at| &chunks[*at]) {
            reads.push(0, chunk.start..chunk.start + chunk.len, ());
        }
        let reads = reads.reads;
        let (key, version) = (file.key.clone(), file.version.clone());
        let memory = Arc::new(Mutex::new(Growing::new(reserved)));
        let mut decoding =
            Box::new(Decoding { key, version, layout, chunks, rows, wanted, reads, memory: memory.clone() });
        // The pages are still in the cache of the processor when they are decoded on the thread that has read them.
        let tried = match self.store.may_be_cached() {
            true => {
                let store = self.store.clone();
                self.on_decoder(move || match decoding.cached(&store) {
                    Some(bytes) => Ok(decoding.run(bytes)),
                    None => Err(decoding),
                })
                .await?
            }
            false => Err(decoding),
        };
        let decoded = match tried {
            Ok(decoded) => decoded,
            Err(mut decoding) => {
                let bytes = decoding.fetch(&self.store).await?;
                self.on_decoder(move || decoding.run(bytes)).await?
            }
        };
        let decoded = decoded.map_err(|fault| {
            let remedy = "a column that `columns` does not name is not read";
            let message = format!("{} {fault}; {remedy}", group.named(file, &self.store));
            SourceFault { is_damage: fault.is_damage(), ..SourceFault::new(message, None) }
        })?;
        let (columns, bytes) = match decoded {
            Decoded::Columns(columns, bytes) => (columns, bytes),
            Decoded::Short(columns) => {
                locked(&self.found).extend(columns.into_iter().map(|(at, bytes)| (group.column(at), bytes)));
                let message = format!("{} takes more memory than is free", group.named(file, &self.store));
                return Err(SourceFault::new(message, None));
            }
        };
        let memory = Arc::into_inner(memory).expect("decoding is over");
        let mut reserved = memory.into_inner().unwrap_or_else(PoisonError::into_inner).reserved;
        reserved.shrink_to(bytes);
        Ok((columns, reserved))
    }

    /// Runs `work` on a blocking thread, with a permit.
    async fn on_decoder<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, SourceFault> {
        // The semaphore is never closed.
        let _permit = self.decoders.acquire().await;
        // A cancelled caller does not end the work, and what that owns.
        blocking("decoding a row group", work).await
    }
}

impl Decoding {
    /// Bytes of the wanted columns, if all of them are in the page cache.
    fn cached(&mut self, store: &BoundedStore) -> Option<Vec<Bytes>> {
        let read = |read: &Read<()>| store.cached_range(&self.key, &self.version, read.range.clone());
        let found = self.reads.iter().map(read).collect::<Option<_>>()?;
        Some(self.split(found))
    }

    async fn fetch(&mut self, store: &BoundedStore) -> Result<Vec<Bytes>, SourceFault> {
        let read = |read: &Read<()>| {
            store.get_range(self.key.clone(), Some(self.version.clone()), read.range.clone())
        };
        let found = try_join_all(self.reads.iter().map(read)).await?;
        Ok(self.split(found))
    }

    fn split(&mut self, found: Vec<Bytes>) -> Vec<Bytes> {
        let reads = std::mem::take(&mut self.reads).into_iter().zip(found);
        reads.flat_map(|(read, bytes)| read.split(bytes)).map(|((), column)| column).collect()
    }

    fn run(self, bytes: Vec<Bytes>) -> Result<Decoded, FileFault> {
        let (mut columns, mut size) = (Columns::new(), 0);
        columns.resize_with(self.chunks.len(), || None);
        for (place, (&at, of_column)) in self.wanted.iter().zip(&bytes).enumerate() {
            let (leaf, chunk) = (&self.layout.leaves[at], &self.chunks[at]);
            pages::check_codec(chunk.codec).map_err(|reason| FileFault::column(&leaf.name, reason))?;
            let memory = || locked(&self.memory);
            memory().begin(chunk.expanded);
            // The library panics on some damaged values.
            let decoded = catch_unwind(AssertUnwindSafe(|| {
                decode(self.pages(at, of_column.clone())?, chunk, leaf, self.rows)
            }));
            if memory().is_short {
                return self.short(place, bytes);
            }
            let decoded = decoded.unwrap_or_else(|_| Err("has values that contradict themselves".into()));
            let column = decoded.map_err(|reason| FileFault::pages(&leaf.name, reason))?;
            let pages = chunk.uncompressed.max(chunk.len).saturating_add(memory().taken);
            size += column.bytes() + if column.keeps_pages() { pages } else { 0 };
            columns[at] = Some(column);
        }
        Ok(Decoded::Columns(columns, size))
    }

    fn pages(&self, at: usize, bytes: Bytes) -> Result<Pages, Reason> {
        Pages::new(bytes, &self.chunks[at], &self.layout.leaves[at], self.memory.clone())
    }

    /// Memory for the values in the encoding DELTA_BYTE_ARRAY of this column, and of all behind it.
    fn short(&self, place: usize, bytes: Vec<Bytes>) -> Result<Decoded, FileFault> {
        let columns =
            self.wanted.iter().zip(bytes).skip(place).filter(|(at, _)| self.chunks[**at].expanded > 0);
        let columns = columns.map(|(&at, bytes)| {
            let expanded = self.pages(at, bytes).and_then(Pages::expanded_bytes);
            let expanded =
                expanded.map_err(|reason| FileFault::pages(&self.layout.leaves[at].name, reason))?;
            Ok((at, expanded.max(self.chunks[at].expanded)))
        });
        columns.collect::<Result<_, _>>().map(Decoded::Short)
    }
}
