//! Sources whose samples have numbers.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_types::data_set::DataFields;
use penstock_types::resume::{DataSet, Hash, StartPoint};
use penstock_types::traversal::{NextVisits, Traversal, TraversalSettings};
use tokio::task::JoinSet;

use crate::chunk::Chunk;
use crate::parts::{SourcePart, SourceParts};
use crate::ports::{Produced, Source, SourceFault};
use crate::share::{Room, Share};

/// Samples that can be read by their number, in any order: all that shuffles, shards, mixtures and resuming need.
pub trait Numbered: Send + Sync {
    /// Number of samples in one pass.
    fn count(&self) -> u64;

    /// Digest of what determines which samples the numbers stand for; `None` if only their count is known.
    fn digest(&self) -> Option<Hash> {
        None
    }

    /// Digest as versions made it whose states do not name the rules of selection.
    fn older_digest(&self) -> Option<Hash> {
        self.digest()
    }

    /// The same as [`Self::digest`] of the first `blocks` blocks of the objects, as a source in order digests them; `None` if these are not known.
    fn digest_of(&self, _blocks: u64) -> Option<Hash> {
        None
    }

    /// Fields of the samples, if the form of the data states their types, or all samples were read for these.
    fn fields(&self) -> Option<DataFields> {
        None
    }

    /// Numbers of samples of the units in which reading is cheap, such as shards; empty if each sample is read separately.
    fn units(&self) -> Arc<[u64]> {
        [].into()
    }

    /// Sources of a mixture by ascending index; empty for any other samples.
    fn parts(&self) -> Vec<SourcePart> {
        Vec::new()
    }

    /// Mean size of a sample in bytes.
    fn mean_bytes(&self) -> u64;

    /// Reads the samples with these numbers, in their order. Takes the memory of each from `share`, and ends before the first one for which
    /// there is no room.
    fn read(self: Arc<Self>, epoch: u32, indexes: Vec<u64>, share: Share) -> ReadSamples;

    /// Bytes that are kept between reads, such as an index. They count towards the run's memory budget.
    fn kept_bytes(&self) -> u64;

    /// Keys of the objects that hold the samples; empty if they are not known.
    fn objects(&self) -> Vec<Arc<str>> {
        Vec::new()
    }
}

pub type ReadSamples = BoxFuture<'static, Result<Chunk, ReadFault>>;

/// Reason why a sample could not be read.
#[derive(Debug)]
pub struct ReadFault {
    /// Samples before it.
    pub before: Chunk,
    pub fault: SourceFault,
}

/// Opening of numbered samples, such as reading an index.
pub type Open = BoxFuture<'static, Result<Arc<dyn Numbered>, SourceFault>>;

const CHUNK: u64 = 256;

/// Maximum number of chunks that are read at a time: more than stores answer at once, and few enough that samples without content
/// are not made long before they are needed.
const MOST_AHEAD: u64 = 32;

/// Aimed size of a chunk in bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// Visits numbered samples in the order of a traversal. The chunks that follow are read while the current one is used.
pub struct NumberedSource {
    settings: TraversalSettings,
    /// Maximum number of bytes of the chunks that are read ahead.
    ahead_bytes: u64,
    parts: SourceParts,
    start: Option<Arc<StartPoint>>,
    /// `None` once the samples are open.
    open: Option<Open>,
    reading: Option<Reading>,
}

struct Reading {
    samples: Arc<dyn Numbered>,
    data: DataSet,
    traversal: Traversal,
    /// Number of samples that the source makes, if that is known.
    total: Option<u64>,
    /// Maximum number of bytes of the chunks that are read ahead.
    ahead_bytes: u64,
    /// Memory of samples that are read and not passed on yet.
    room: Arc<Room>,
    /// Mean size of a sample in bytes, by which reads are planned.
    mean_bytes: u64,
    ahead: VecDeque<Ahead>,
}

enum Ahead {
    Read(Read),
    EpochEnd,
    Fault(SourceFault),
}

struct Read {
    epoch: u32,
    indexes: Vec<u64>,
    share: Share,
    /// A set of one task: dropping the set cancels the read.
    task: JoinSet<Result<Chunk, ReadFault>>,
}

/// Number of samples that a source reads together: 1 to 256, of about 1 MiB.
pub fn chunk(samples: &dyn Numbered) -> u64 {
    chunk_of(samples.mean_bytes())
}

fn chunk_of(mean_bytes: u64) -> u64 {
    (CHUNK_BYTES / mean_bytes.max(1)).clamp(1, CHUNK)
}

impl<E: Into<SourceFault>> From<E> for ReadFault {
    fn from(fault: E) -> Self {
        Self { before: Chunk::default(), fault: fault.into() }
    }
}

impl NumberedSource {
    /// Creates a source that opens the samples at its first call.
    pub fn new(open: Open, settings: TraversalSettings, ahead_bytes: u64) -> Self {
        let parts = SourceParts::default();
        Self { settings, ahead_bytes, parts, start: None, open: Some(open), reading: None }
    }

    /// Continues where an earlier run has stopped.
    #[must_use]
    pub fn from(self, start: Option<Arc<StartPoint>>) -> Self {
        Self { start, ..self }
    }

    async fn reading(&mut self) -> Result<&mut Reading, SourceFault> {
        if let Some(open) = &mut self.open {
            let samples = open.await?;
            self.parts.set(samples.parts());
            let traversal = Traversal::in_units(samples.count(), samples.units(), self.settings)
                .map_err(|fault| SourceFault::new(fault.to_string(), None))?;
            let data = DataSet { count: Some(samples.count()), digest: samples.digest(), blocks: None };
            let traversal = continued(traversal, &*samples, self.start.as_deref())?;
            let ahead_bytes = self.ahead_bytes;
            self.reading = Some(Reading {
                data,
                total: traversal.total(),
                traversal,
                ahead_bytes,
                room: Room::new(ahead_bytes.max(CHUNK_BYTES).saturating_mul(2)),
                mean_bytes: samples.mean_bytes().max(1),
                samples,
                ahead: VecDeque::new(),
            });
            self.open = None;
        }
        Ok(self.reading.as_mut().expect("it was opened"))
    }
}

/// The traversal from the place on where an earlier run has stopped. Fails if the source has other samples since.
fn continued(
    traversal: Traversal,
    samples: &dyn Numbered,
    start: Option<&StartPoint>,
) -> Result<Traversal, SourceFault> {
    let Some(start) = start else { return Ok(traversal) };
    let before = start.data();
    let digest = match before.blocks {
        None if start.token.is_selected_by_older_rules() => samples.older_digest(),
        None => samples.digest(),
        // Fewer blocks than before cannot be the same.
        Some(blocks) => samples.digest_of(blocks).or(samples.digest()),
    };
    let how = match (before.count.filter(|count| *count != samples.count()), before.digest.zip(digest)) {
        (Some(before), _) => format!("has {} samples, and had {before}", traversal.count()),
        (None, Some((before, now))) if before != now => {
            "has other files, keys, sizes or bytes than it had".to_owned()
        }
        _ => {
            start.check_count(samples.count())?;
            return Ok(traversal.from(start));
        }
    };
    Err(differs(&how))
}

/// Fault of a source whose data are not those of a state; `how` is the middle of a sentence.
pub fn differs(how: &str) -> SourceFault {
    let message = format!(
        "the source {how} when the state was written, so that positions stand for other samples; restore the data, or resume \
         with `force`"
    );
    SourceFault::new(message, None)
}

/// Fault of a source that `rule` makes take other data than earlier versions took, from one of which a state is.
pub fn selected_otherwise(rule: &str) -> SourceFault {
    let message = format!(
        "the state was saved by an earlier version of Penstock, which took other data here: {rule}; or begin without the state"
    );
    SourceFault::new(message, None)
}

impl Reading {
    async fn next(&mut self) -> Result<Option<Produced>, SourceFault> {
        loop {
            self.read_ahead();
            // A read stays in its place until it is over: a dropped call loses nothing.
            let made = match self.ahead.front_mut() {
                Some(Ahead::Read(read)) => read.task.join_next().await,
                _ => None,
            };
            let read = match self.ahead.pop_front() {
                None => return Ok(None),
                Some(Ahead::EpochEnd) => return Ok(Some(Produced::EpochEnd)),
                Some(Ahead::Fault(fault)) => return Err(fault),
                Some(Ahead::Read(read)) => read,
            };
            let made = made.expect("a set has one task, whose end removes the set");
            let chunk =
                match made.map_err(|error| SourceFault::new("a read was interrupted", Some(error.into())))? {
                    Ok(chunk) => {
                        self.read_rest(read, chunk.len())?;
                        chunk
                    }
                    Err(ReadFault { before, fault }) if before.is_empty() => return Err(fault),
                    Err(ReadFault { before, fault }) => {
                        self.ahead.push_front(Ahead::Fault(fault));
                        before
                    }
                };
            if !chunk.is_empty() {
                return Ok(Some(Produced::Samples(chunk)));
            }
        }
    }

    fn read_ahead(&mut self) {
        let chunk = chunk_of(self.mean_bytes);
        let most = (self.ahead_bytes / (chunk * self.mean_bytes)).clamp(1, MOST_AHEAD) as usize;
        let chunk = chunk as usize;
        while self.ahead.len() < most
            && let Some(visits) = self.traversal.next_visits(chunk)
        {
            self.ahead.push_back(match visits {
                NextVisits::EpochEnd => Ahead::EpochEnd,
                NextVisits::Visits { epoch, indexes } => {
                    Ahead::Read(self.begin(epoch, indexes, chunk, self.ahead.is_empty()))
                }
            });
        }
    }

    /// Begins to read the first of these samples, `most` at most.
    fn begin(&self, epoch: u32, indexes: Vec<u64>, most: usize, is_next: bool) -> Read {
        let (share, mut task) = (self.room.share(is_next), JoinSet::new());
        let first = indexes[..most.min(indexes.len())].to_vec();
        task.spawn(self.samples.clone().read(epoch, first, share.clone()));
        Read { epoch, indexes, share, task }
    }

    /// Plans further reads by a read that has returned `made` samples. Those that it had no room for are read next.
    fn read_rest(&mut self, read: Read, made: usize) -> Result<(), SourceFault> {
        let Read { epoch, mut indexes, share, .. } = read;
        if made == 0 && share.is_next {
            return Err(SourceFault::new("a read has returned no sample", None));
        }
        let (rest, taken) = (indexes.split_off(made.min(indexes.len())), share.taken());
        drop(share);
        let mean = taken / (made as u64).max(1);
        let stated = self.samples.mean_bytes().max(1);
        self.mean_bytes = if mean / 2 > stated { mean } else { stated };
        if !rest.is_empty() {
            let rest = self.begin(epoch, rest, (2 * made).max(1), true);
            self.ahead.push_front(Ahead::Read(rest));
        }
        Ok(())
    }
}

impl Source for NumberedSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
        async move { self.reading().await?.next().await }.boxed()
    }

    fn total(&self) -> Option<u64> {
        self.reading.as_ref()?.total
    }

    fn data(&self) -> DataSet {
        self.reading.as_ref().map_or_else(DataSet::default, |reading| reading.data)
    }

    fn parts(&self) -> SourceParts {
        self.parts.clone()
    }

    fn kept_bytes(&self) -> u64 {
        self.reading.as_ref().map_or(0, |reading| {
            let chunk = chunk_of(reading.mean_bytes) * reading.mean_bytes;
            let planned = (reading.ahead.len() as u64 * chunk).min(reading.ahead_bytes.max(chunk));
            reading.samples.kept_bytes() + planned.max(reading.room.used())
        })
    }
}
