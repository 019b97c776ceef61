use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use penstock_engine::item::Item;
use penstock_engine::lock::locked;
use penstock_engine::ports::{Consumer, Ending, Fault, StopFlag};
use penstock_storage::StoreError;
use penstock_types::run::{FailureClass, FilesRecord};
use penstock_types::text::{MAX_SHOWN_KEY, printable};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::batch::{BatchMetadata, File, LENGTH_BYTES, MAX_HEADER_BYTES};
use super::manifest::{Complete, Manifest};
use super::{FilesFolder, Opened, batch_name};

/// Maximum number of batches written or compared at a time, to hide the latency of a bucket.
const IN_FLIGHT: usize = 4;

/// Interval at which a wait checks the stop flag.
const LOOK: Duration = Duration::from_millis(20);

/// Maximum time for batches in flight to finish when the run stops; less than the two seconds that the engine allows.
const GRACE: Duration = Duration::from_millis(1500);

/// Writes batches, several at a time. See [`crate::files`].
#[derive(Debug)]
pub(crate) struct FilesConsumer {
    opened: Opened,
    runtime: Handle,
    /// Number of the first batch of this run.
    first: u64,
    next: u64,
    /// Batches that are written although an earlier one is not.
    done: BTreeSet<u64>,
    /// Number of the first batch that is not written.
    unwritten: u64,
    /// Samples of all batches so far, those of interrupted runs included.
    samples: u64,
    /// Writes in flight; each returns the number of its batch, and the number of samples in it.
    under_way: JoinSet<Result<(u64, u64), Fault>>,
    /// Samples of batches that are neither written nor abandoned.
    pending: u64,
    /// Files of this run so far.
    pub(crate) count: Arc<Mutex<FilesRecord>>,
}

enum Broken {
    Stopping,
    Fault(Fault),
}

impl FilesConsumer {
    /// Creates a consumer for an opened folder, whose first batch has the number `first`. Writes run on `runtime`.
    ///
    /// Interrupted runs have written `samples` samples before.
    pub(crate) fn new(opened: Opened, first: u64, samples: u64, runtime: Handle) -> Self {
        Self {
            opened,
            runtime,
            first,
            next: first,
            done: BTreeSet::new(),
            unwritten: first,
            samples,
            under_way: JoinSet::new(),
            pending: 0,
            count: Arc::new(Mutex::new(FilesRecord { written: 0, already_there: 0 })),
        }
    }

    fn begin(&mut self, file: File, number: u64, samples: u64) {
        let (place, count) = (self.opened.place.clone(), self.count.clone());
        let (size, head) = (file.size(), file.head());
        let is_stale = self.opened.stale.remove(&number);
        let new = (!self.opened.there.contains(&number)).then(|| file.into_bytes());
        self.under_way.spawn_on(
            async move {
                let key = place.key(&batch_name(number));
                let is_written = match new {
                    Some(bytes) if is_stale => place.store.put(key.clone(), bytes).await.map(|()| true),
                    Some(bytes) => place.store.put_new(key.clone(), bytes).await,
                    None => Ok(false),
                };
                if is_written.map_err(unanswered)? {
                    locked(&count).written += 1;
                } else {
                    // The batch existed before or was written meanwhile: another run may write the same batches.
                    compare(&place, key, number, size, head).await?;
                    locked(&count).already_there += 1;
                }
                Ok((number, samples))
            },
            &self.runtime,
        );
    }

    /// Waits until fewer than `most` batches are in flight.
    fn wait_for_fewer_than(&mut self, most: usize, stop: &StopFlag) -> Result<(), Broken> {
        loop {
            // Collects all finished writes first, so that a failure is reported at once.
            while let Some(done) = self.under_way.try_join_next() {
                self.settle(done)?;
            }
            if self.under_way.len() < most {
                return Ok(());
            }
            if stop.is_set() {
                return Err(Broken::Stopping);
            }
            let Self { under_way, runtime, .. } = self;
            let done = runtime.block_on(async { timeout(LOOK, under_way.join_next()).await });
            if let Ok(Some(done)) = done {
                self.settle(done)?;
            }
        }
    }

    /// Waits up to `GRACE` for batches in flight, although the run is stopping, and abandons the rest.
    fn wait_for_the_last(&mut self) -> Result<(), Fault> {
        let mut first_fault = None;
        let runtime = self.runtime.clone();
        let all = async {
            while let Some(done) = self.under_way.join_next().await {
                if let Err(Broken::Fault(fault)) = self.settle(done) {
                    first_fault.get_or_insert(fault);
                }
            }
        };
        // Batches that are not finished in time remain counted in `pending`.
        let is_late = runtime.block_on(async { timeout(GRACE, all).await }).is_err();
        if is_late {
            self.under_way.abort_all();
        }
        first_fault.map_or(Ok(()), Err)
    }

    fn settle(
        &mut self,
        done: Result<Result<(u64, u64), Fault>, tokio::task::JoinError>,
    ) -> Result<(), Broken> {
        let unwritten = |error| Err(fault(format!("a batch was not written: {error}")));
        let (number, samples) = done.unwrap_or_else(unwritten).map_err(Broken::Fault)?;
        self.pending -= samples;
        self.done.insert(number);
        while self.done.remove(&self.unwritten) {
            self.unwritten += 1;
        }
        Ok(())
    }

    fn mark_complete(&mut self, stop: &StopFlag) -> Result<(), Broken> {
        if let Some(extra) = self.opened.there.range(self.next..).chain(&self.opened.stale).next() {
            return Err(Broken::Fault(fault(format!(
                "{} holds `{}`, but this run made only {} batches; the source's data or its failures have changed since; write \
                 to another prefix, or remove the files",
                self.opened.place,
                batch_name(*extra),
                self.next
            ))));
        }
        let complete = Complete { batches: self.next, samples: self.samples };
        if self.opened.manifest.complete == Some(complete) {
            return Ok(());
        }
        self.opened.manifest.complete = Some(complete);
        let (place, bytes) = (self.opened.place.clone(), self.opened.manifest.bytes());
        self.under_way.spawn_on(
            async move {
                let written = place.store.put(place.key(Manifest::NAME), bytes).await;
                written.map(|()| (u64::MAX, 0)).map_err(unanswered)
            },
            &self.runtime,
        );
        self.wait_for_fewer_than(1, stop)
    }
}

impl Consumer for FilesConsumer {
    fn consume(&mut self, item: Item, stop: &StopFlag) -> Result<(), Fault> {
        let samples = item.samples();
        let number = self.next;
        self.next += 1;
        self.samples += samples;
        self.pending += samples;
        let Item::Collated(batch) = item else {
            let message = "`files` takes collated batches and got something else; add a `collate`";
            return Err(Fault::new(FailureClass::Data, message));
        };
        let file = File::of(batch, number).map_err(|reason| {
            Fault::new(
                FailureClass::Data,
                format!("batch {number} cannot be written as a safetensors file: {reason}"),
            )
        })?;
        match self.wait_for_fewer_than(IN_FLIGHT, stop) {
            Ok(()) => self.begin(file, number, samples),
            Err(Broken::Stopping) => {}
            Err(Broken::Fault(fault)) => return Err(fault),
        }
        Ok(())
    }

    fn finish(&mut self, ending: Ending, stop: &StopFlag) -> Result<(), Fault> {
        let finished = match ending {
            Ending::Whole => self.wait_for_fewer_than(1, stop).and_then(|()| self.mark_complete(stop)),
            Ending::Early => Err(Broken::Stopping),
        };
        match finished {
            Ok(()) => Ok(()),
            Err(Broken::Stopping) => self.wait_for_the_last(),
            Err(Broken::Fault(fault)) => self.wait_for_the_last().and(Err(fault)),
        }
    }

    fn completed(&self) -> Option<u64> {
        Some(self.unwritten - self.first)
    }

    fn unfinished(&self) -> u64 {
        self.pending
    }
}

/// Compares an existing file with this run's batch by size and header, which contains the digest of the data.
async fn compare(
    place: &FilesFolder,
    key: Arc<str>,
    number: u64,
    size: u64,
    head: Bytes,
) -> Result<(), Fault> {
    let found_size = place.store.version(key.clone()).await.map_err(unanswered)?.size;
    let range = 0..found_size.min(head.len() as u64);
    let found_head = place.store.get_range(key.clone(), None, range).await.map_err(unanswered)?;
    if found_size == size && found_head == head {
        return Ok(());
    }
    let what = match header(place, &key, found_size).await.map_err(unanswered)? {
        Some(_) if found_head == head => {
            format!("the existing file has {found_size} bytes instead of {size}, so it is incomplete")
        }
        Some(header) => difference(&header, &head[LENGTH_BYTES..]),
        None => "it is not a complete safetensors file".to_owned(),
    };
    Err(fault(format!(
        "{place} holds `{}`, which is not batch {number} of this run: {what}; the source's data or its failures have changed since, \
         or another program has written it; write to another prefix, or remove the files",
        batch_name(number)
    )))
}

/// Reads the header of a file of `size` bytes, without its length field; `None` when the file has none.
async fn header(place: &FilesFolder, key: &Arc<str>, size: u64) -> Result<Option<Bytes>, StoreError> {
    let begin = LENGTH_BYTES as u64;
    if size < begin {
        return Ok(None);
    }
    let length = place.store.get_range(key.clone(), None, 0..begin).await?;
    let length = u64::from_le_bytes(length[..].try_into().expect("eight bytes were requested"));
    if length > (size - begin).min(MAX_HEADER_BYTES as u64) {
        return Ok(None);
    }
    place.store.get_range(key.clone(), None, begin..begin + length).await.map(Some)
}

/// Describes the difference between the existing header and the header of this run's batch.
fn difference(there: &[u8], here: &[u8]) -> String {
    let (Some(there), Some(here)) = (BatchMetadata::read(there), BatchMetadata::read(here)) else {
        return "its metadata was not written by the consumer `files`".to_owned();
    };
    if there.keys.len() != here.keys.len() {
        return format!(
            "the existing file has {} samples, and this run has {}",
            there.keys.len(),
            here.keys.len()
        );
    }
    let mut pairs = there.keys.iter().zip(&here.keys).enumerate();
    match pairs.find(|(_, (there, here))| there != here) {
        Some((place, (there, here))) => format!(
            "sample {place} is `{}` in the existing file, and `{}` in this run",
            printable(there, MAX_SHOWN_KEY),
            printable(here, MAX_SHOWN_KEY)
        ),
        None if there.data != here.data => "its samples have the same keys, but other data".to_owned(),
        None => "its samples have the same keys and data, but differ in origin or fields".to_owned(),
    }
}

fn unanswered(error: StoreError) -> Fault {
    fault(error.with_causes())
}

fn fault(message: String) -> Fault {
    Fault::new(FailureClass::Storage, message)
}

#[cfg(test)]
mod tests;
