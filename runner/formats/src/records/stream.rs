//! Passes over the records of objects.

use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::numbered::differs;
use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, RangedObject};
use penstock_types::data_set::DataFields;
use penstock_types::resume::{DataSet, Hash};

use super::format::RecordFormat;
use super::part::{PART_BYTES, Part};
use super::split::{LongRecords, Piece, Splitter};

/// Passes over the records of objects. All passes read the versions that the first one found.
pub(super) struct RecordStream {
    store: BoundedStore,
    pub(super) format: Arc<RecordFormat>,
    ahead_bytes: u64,
    long: LongRecords,
    keys: Vec<Arc<str>>,
    /// The objects that were opened, in the order of the keys, those that are missing as `None`; unused if there is one pass.
    opened: Vec<Option<RangedObject>>,
    is_once: bool,
    /// Number of objects that are read in this pass, or being read.
    begun: usize,
    current: Option<Splitter>,
    /// Number of blocks read in the first pass, and their digest.
    blocks: u64,
    digest: Hash,
    /// Set once the first pass is over.
    is_digested: bool,
}

impl RecordStream {
    /// Starts at the first object. At most this number of bytes is read ahead; `is_once` is true if there is one pass.
    pub(super) fn new(
        store: BoundedStore,
        keys: Vec<Arc<str>>,
        format: Arc<RecordFormat>,
        ahead_bytes: u64,
        long: LongRecords,
        is_once: bool,
    ) -> Self {
        Self {
            store,
            format,
            ahead_bytes,
            long,
            keys,
            opened: Vec::new(),
            is_once,
            begun: 0,
            current: None,
            blocks: 0,
            digest: Hash::EMPTY,
            is_digested: false,
        }
    }

    /// Number and digest of the blocks that were read in the first pass.
    pub(super) fn digested(&self) -> (u64, Hash) {
        (self.blocks, self.digest)
    }

    /// Memory of what is read ahead, and of the opened objects.
    pub(super) fn kept_bytes(&self) -> u64 {
        let ahead = self.current.as_ref().map_or(0, Splitter::ahead_bytes);
        ahead + self.opened.len() as u64 * PART_BYTES
    }

    /// Begins another pass.
    pub(super) fn rewind(&mut self) {
        (self.begun, self.current, self.is_digested) = (0, None, true);
    }

    /// Compares the objects with those that an earlier run has read. Fails if they differ.
    pub(super) async fn compare(&mut self, before: DataSet) -> Result<(), SourceFault> {
        let Some(digest) = before.digest else { return Ok(()) };
        let (mut count, mut found) = (0, None);
        loop {
            if before.blocks == Some(self.blocks) {
                found = Some(self.digest);
            }
            if found.is_some() && before.count.is_none() {
                break;
            }
            let Some(block) = self.next_block().await? else { break };
            count += block.len() as u64;
        }
        match before.count.filter(|before| *before != count) {
            Some(before) => return Err(differs(&format!("has {count} samples, and had {before}"))),
            None if found.unwrap_or(self.digest) != digest => {
                return Err(differs("has other files, keys, sizes or bytes than it had"));
            }
            None => {}
        }
        self.rewind();
        (self.blocks, self.digest, self.is_digested) = (0, Hash::EMPTY, false);
        Ok(())
    }

    /// Returns the records that end in the next block; `None` after the last object.
    pub(super) async fn next_block(&mut self) -> Result<Option<Vec<(Arc<Part>, Piece)>>, SourceFault> {
        loop {
            let splitter = match &mut self.current {
                Some(splitter) => splitter,
                None => {
                    let Some(key) = self.keys.get(self.begun) else { return Ok(None) };
                    let object = match self.opened.get(self.begun) {
                        Some(object) => object.clone(),
                        None => {
                            let opened = RangedObject::open(self.store.clone(), key.clone(), 0).await;
                            match opened {
                                Ok(object) => Some(object),
                                Err(error) => {
                                    self.format.damage.part(key, None, error.into())?;
                                    None
                                }
                            }
                        }
                    };
                    if !self.is_once && self.opened.len() == self.begun {
                        self.opened.push(object.clone());
                    }
                    self.begun += 1;
                    let Some(object) = object else { continue };
                    self.current.insert(Splitter::new(
                        object,
                        self.format.clone(),
                        self.ahead_bytes,
                        self.long.clone(),
                    ))
                }
            };
            let read = splitter.checksums().len();
            let block = splitter.next_block().await;
            if !self.is_digested {
                let more = &splitter.checksums()[read..];
                self.blocks += more.len() as u64;
                self.digest = more.iter().fold(self.digest, |digest, sum| digest.with(&sum.to_le_bytes()));
            }
            match block {
                Ok(Some(pieces)) => {
                    let part = splitter.part().clone();
                    return Ok(Some(pieces.into_iter().map(|piece| (part.clone(), piece)).collect()));
                }
                Ok(None) => self.current = None,
                Err(fault) => {
                    self.format.damage.part(&splitter.part().object.key, None, fault)?;
                    self.current = None;
                }
            }
        }
    }

    /// Fields of the rows of all tables, by their headers.
    pub(super) async fn columns(&self) -> Result<DataFields, SourceFault> {
        let headers = self.keys.clone().into_iter().map(|key| {
            let (store, format, long) = (self.store.clone(), self.format.clone(), self.long.clone());
            async move { header(store, key, format, long).await }
        });
        let parts: Vec<_> = stream::iter(headers).buffered(self.store.reads().get()).try_collect().await?;
        let parts: Vec<Arc<Part>> = parts.into_iter().flatten().collect();
        let found = self.format.fields_of(parts.iter().filter_map(|part| part.columns.as_deref()));
        found.map_err(|reason| match parts.first() {
            Some(first) => first.fault(1, &reason.to_string()),
            None => SourceFault::new(reason.to_string(), None),
        })
    }
}

/// The object `key` with the columns of its header; `None` if it is damaged and left out.
async fn header(
    store: BoundedStore,
    key: Arc<str>,
    format: Arc<RecordFormat>,
    long: LongRecords,
) -> Result<Option<Arc<Part>>, SourceFault> {
    let object = match RangedObject::open(store, key.clone(), 0).await {
        Ok(object) => object,
        Err(error) => return format.damage.part(&key, None, error.into()).map(|()| None),
    };
    // No block is read ahead.
    let mut splitter = Splitter::new(object, format.clone(), 0, long);
    while splitter.part().columns.is_none() {
        match splitter.next_block().await {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(fault) => return format.damage.part(&key, None, fault).map(|()| None),
        }
    }
    Ok(Some(splitter.part().clone()))
}
