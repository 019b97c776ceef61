//! TFRecord files: records with checksums, usually of the type `tf.train.Example`, whose features become fields.

mod example;
mod fields;
mod frames;

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::item::{Origin, Sample};
use penstock_engine::numbered::Open;
use penstock_engine::ports::SourceFault;
use penstock_storage::{AHEAD_BYTES, BoundedStore, RangedObject, shown};
use penstock_types::data_set::Learner;
use penstock_types::traversal::TraversalSettings;

pub use fields::RecordFields;

use crate::build::Scan;
use crate::damage::Damage;
use crate::entry::Entry;
use crate::in_order::{InOrder, Made, ShardStream};
use crate::index::{IndexKind, ShardPacker, numbered_key};
use crate::indexed::{Decode, IndexFrom, indexed_samples};
use crate::shards::Shards;
use frames::Frames;

/// Name of the one field of an index: each sample has one record.
const RECORD: &str = "record";

/// Maximum size of a record whose features an index learns, in bytes.
const MAX_LEARNT: u64 = 64 << 20;

/// Number of bytes that are read ahead for headers: small records lie between them.
const SCAN_AHEAD: u64 = 4 << 20;

/// Samples of the files that an index describes, in any order. The index may take `most_bytes` of memory, and so may a record.
pub fn tfrecord_samples(
    store: BoundedStore,
    index: impl Into<IndexFrom>,
    fields: RecordFields,
    damage: Damage,
    most_bytes: u64,
) -> Open {
    indexed_samples(store, index.into(), IndexKind::Tfrecord, damage, most_bytes, move |index| {
        let types = fields.types(index.types());
        Ok((index, Box::new(Records { fields, most_bytes }) as _, types))
    })
}

/// Samples of files in order; a record may have `most_bytes`. Files may be compressed with gzip.
pub fn tfrecord_stream(
    store: BoundedStore,
    files: Shards,
    fields: RecordFields,
    settings: TraversalSettings,
    most_bytes: u64,
) -> ShardStream {
    let fields = Arc::new(fields);
    ShardStream::new(
        store,
        files,
        settings,
        AHEAD_BYTES.min(most_bytes),
        Box::new(move |object, ahead_bytes, damage| {
            let frames = Frames::new(object, ahead_bytes);
            Box::new(File { frames, fields: fields.clone(), damage, most_bytes, read: 0 })
        }),
    )
}

/// Number of records in files, whose headers are read for this. Files may be compressed with gzip.
pub async fn count_records(store: &BoundedStore, files: &Shards) -> Result<u64, SourceFault> {
    let mut count = 0;
    for key in files.keys(store).await? {
        let mut frames = Frames::new(RangedObject::open(store.clone(), key, 0).await?, SCAN_AHEAD);
        while let Some(frame) = frames.next().await? {
            frames.skip(&frame).await?;
            count += 1;
        }
    }
    Ok(count)
}

/// Reads all records of a file: their places, and the types of their features. Ends at a damaged length if damage is left out.
/// The file had `known` records.
pub(crate) async fn scan(
    object: RangedObject,
    damage: Damage,
    known: Option<u64>,
) -> Result<Scan, SourceFault> {
    let mut frames = Frames::new(object.clone(), SCAN_AHEAD);
    let (mut packer, mut learner) = (ShardPacker::new(IndexKind::Tfrecord), Learner::default());
    loop {
        match next_entry(&mut frames, &mut learner).await {
            Ok(Some(entry)) => packer.push(&entry),
            Ok(None) => break,
            Err(fault) => {
                let lost = known.map(|known| known.saturating_sub(packer.samples()));
                damage.part(&object.key, lost, fault)?;
                break;
            }
        }
    }
    let shard = packer.finish(object.key.clone(), object.version().clone());
    Ok((Box::new(|fields| fields.number(RECORD).map(|_| shard)), Some(learner)))
}

async fn next_entry(frames: &mut Frames, learner: &mut Learner) -> Result<Option<Entry>, SourceFault> {
    let Some(frame) = frames.next().await? else { return Ok(None) };
    if frames.is_compressed() {
        let reason = "is compressed as a whole, so that its records cannot be found: decompress it, or read it without an index";
        return Err(SourceFault { is_damage: false, ..frames.fault(frame.start, reason) });
    }
    if frame.end - frame.start > MAX_LEARNT {
        frames.skip(&frame).await?;
    } else if let Ok(record) = frames.record(&frame, MAX_LEARNT).await? {
        // A damaged record fails where it is read.
        let at = || format!("the record at byte {} of {}", frame.start, shown(&frames.object.key));
        fields::learn(learner, &record, &at).map_err(|fault| SourceFault::new(fault.to_string(), None))?;
    }
    Ok(Some(Entry { key: String::new(), files: vec![(0, frame)] }))
}

/// Decodes the records of an index.
struct Records {
    fields: RecordFields,
    most_bytes: u64,
}

impl Decode for Records {
    fn is_wanted(&self, _: usize) -> bool {
        true
    }

    fn add(&self, sample: &mut Sample, _: usize, frame: Bytes) -> Result<(), String> {
        let record =
            frames::record(frame).map_err(|reason| format!("the record {} {reason}", shown(&sample.key)))?;
        add(&self.fields, sample, record, self.most_bytes)
    }
}

/// A file that is read in order.
struct File {
    frames: Frames,
    fields: Arc<RecordFields>,
    damage: Damage,
    most_bytes: u64,
    /// Number of records that were read.
    read: u64,
}

impl InOrder for File {
    fn next(&mut self, is_wanted: bool) -> BoxFuture<'_, Result<Option<Made>, SourceFault>> {
        async move {
            let Some(frame) = self.frames.next().await? else { return Ok(None) };
            let key = numbered_key(&self.frames.object.key, self.read);
            let mut sample = Sample::new(key, Origin::default());
            self.read += 1;
            if !is_wanted {
                self.frames.skip(&frame).await?;
                return Ok(Some((sample, None)));
            }
            let record = self.frames.record(&frame, self.most_bytes).await?;
            let added = record.and_then(|record| {
                add(&self.fields, &mut sample, record, self.most_bytes).map_err(SourceFault::damage)
            });
            let outcome = added.err().map(|fault| self.damage.sample(fault)).transpose()?;
            Ok(Some((sample, outcome)))
        }
        .boxed()
    }

    fn begin(&mut self) {
        self.frames.begin();
    }

    fn ahead_bytes(&self) -> u64 {
        self.frames.ahead_bytes()
    }

    fn left_bytes(&self) -> u64 {
        self.frames.left_bytes()
    }
}

fn add(fields: &RecordFields, sample: &mut Sample, record: Bytes, most_bytes: u64) -> Result<(), String> {
    // The key may change while fields are added.
    let key = sample.key.clone();
    fields.add(sample, &record, most_bytes).map_err(|reason| format!("the record {} {reason}", shown(&key)))
}
