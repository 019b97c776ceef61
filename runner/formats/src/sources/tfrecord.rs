//! TFRecord files: records with checksums, usually of the type `tf.train.Example`, whose features become fields.

mod example;
mod fields;
mod frames;
mod scan;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::item::{Origin, Sample};
use penstock_engine::lock::locked;
use penstock_engine::numbered::Open;
use penstock_engine::ports::SourceFault;
use penstock_engine::typed::Typing;
use penstock_storage::{RangedObject, shown};
use penstock_types::spec::TfrecordSource;
use penstock_types::traversal::TraversalSettings;

pub use fields::RecordFields;
pub(crate) use scan::scan;

use crate::access::Access;
use crate::damage::Damage;
use crate::in_order::{InOrder, OpenShard, ShardStream, WholeSample};
use crate::index::{IndexKind, numbered_key};
use crate::indexed::{Decode, indexed_samples};
use crate::reason::Reason;
use crate::sequence::Sequence;
use crate::shards::Shards;
use frames::Frames;
use scan::SCAN_AHEAD;

/// Warning of records that have more than is read.
const SEQUENCES: &str =
    "files with records of the type `tf.train.SequenceExample`, of which the context alone is read";

/// Samples of the files, in any order, by the index that the document names, or one that is made of all records first. The index may take
/// `most_bytes` of memory, and so may a record.
pub fn open(source: &TfrecordSource, access: Access) -> Open {
    let (fields, damage, most_bytes) = (RecordFields::of(source), access.damage.clone(), access.most_bytes);
    let files = files(source, &damage);
    indexed_samples(access, source.index.as_ref(), files, IndexKind::Tfrecord, move |index| {
        let types = fields.types(index.types.as_ref());
        Ok((index, Box::new(Records { fields, damage, most_bytes, warned: Mutex::default() }) as _, types))
    })
}

/// Samples of files in order; a record may have `most_bytes`. Files may be compressed with gzip or zstd.
pub fn stream(
    source: &TfrecordSource,
    access: Access,
    typing: Typing,
    settings: TraversalSettings,
) -> ShardStream {
    let (fields, most_bytes) = (Arc::new(RecordFields::of(source)), access.most_bytes);
    let open: OpenShard = Box::new(move |object, ahead_bytes, damage| {
        let (frames, fields) = (Frames::new(object, ahead_bytes), fields.clone());
        Box::new(File { frames, fields, damage, most_bytes, read: 0, is_warned: false })
    });
    let files = files(source, &access.damage);
    ShardStream::of(access, files, typing, settings, open)
}

/// Number of records in files, whose headers are read for this. Files may be compressed with gzip or zstd.
pub async fn count(source: &TfrecordSource, access: &Access) -> Result<u64, SourceFault> {
    let mut count = 0;
    for key in files(source, &access.damage).keys(&access.store).await? {
        let mut frames = Frames::new(RangedObject::open(access.store.clone(), key, 0).await?, SCAN_AHEAD);
        while let Some(frame) = frames.next().await? {
            frames.skip(&frame).await?;
            count += 1;
        }
    }
    Ok(count)
}

fn files(source: &TfrecordSource, damage: &Damage) -> Shards {
    match Shards::of(source, &damage.notes) {
        Shards::Listed(wanted) => Shards::TfrecordFiles(wanted),
        other => other,
    }
}

struct Records {
    fields: RecordFields,
    damage: Damage,
    most_bytes: u64,
    /// Last file with a warning of lists of features.
    warned: Mutex<Box<str>>,
}

impl Decode for Records {
    fn is_wanted(&self, _: usize) -> bool {
        true
    }

    fn add(&self, sample: &mut Sample, _: usize, frame: Bytes) -> Result<(), Reason> {
        let record =
            frames::record(frame).map_err(|reason| format!("the record {} {reason}", shown(&sample.key)))?;
        // A feature may become the key.
        let key = sample.key.clone();
        if add(&self.fields, sample, record, self.most_bytes)? {
            let file = key.rsplit_once('#').map_or(&*key, |(file, _)| file);
            let mut last = locked(&self.warned);
            if &**last != file {
                self.damage.notes.warn(SEQUENCES, file);
                *last = file.into();
            }
        }
        Ok(())
    }
}

struct File {
    frames: Frames,
    fields: Arc<RecordFields>,
    damage: Damage,
    most_bytes: u64,
    read: u64,
    /// Set after a warning of lists of features.
    is_warned: bool,
}

impl InOrder<WholeSample> for File {
    fn next(&mut self, is_wanted: bool) -> BoxFuture<'_, Result<Option<Vec<WholeSample>>, SourceFault>> {
        async move {
            let Some(frame) = self.frames.next().await? else { return Ok(None) };
            let key = numbered_key(&self.frames.content.object.key, self.read);
            let mut sample = Sample::new(key, Origin::default());
            self.read += 1;
            if !is_wanted {
                self.frames.skip(&frame).await?;
                return Ok(Some(vec![WholeSample { made: (sample, None), unmarked_fields: None }]));
            }
            let rest = self.frames.rest(&frame, self.most_bytes).await?;
            // A damaged record does not keep the frames behind it from being read.
            let added = self.frames.checked(&frame, rest).and_then(|record| {
                add(&self.fields, &mut sample, record, self.most_bytes).map_err(SourceFault::damage)
            });
            if matches!(added, Ok(true)) && !std::mem::replace(&mut self.is_warned, true) {
                self.damage.notes.warn(SEQUENCES, &self.frames.content.object.key);
            }
            let outcome = added.err().map(|fault| self.damage.sample(fault)).transpose()?;
            Ok(Some(vec![WholeSample { made: (sample, outcome), unmarked_fields: None }]))
        }
        .boxed()
    }

    fn content(&mut self) -> &mut Sequence {
        &mut self.frames.content
    }
}

/// Adds the fields of a record. Returns true if it has lists of features, which are not read.
fn add(fields: &RecordFields, sample: &mut Sample, record: Bytes, most_bytes: u64) -> Result<bool, Reason> {
    // The key may change while fields are added.
    let key = sample.key.clone();
    let added = fields.add(sample, &record, most_bytes);
    Ok(added.map_err(|reason| format!("the record {} {reason}", shown(&key)))?)
}
