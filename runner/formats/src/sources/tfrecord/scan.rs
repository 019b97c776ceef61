//! Scan of a file for an index.

use penstock_engine::ports::SourceFault;
use penstock_storage::{RangedObject, shown};
use penstock_types::data_set::Learner;

use super::fields;
use super::frames::Frames;
use crate::build::Scan;
use crate::damage::Damage;
use crate::entry::{Entry, FilePlace};
use crate::index::{IndexKind, ShardPacker};

/// Name of the one field of an index: each sample has one record.
const RECORD: &str = "record";

/// Maximum size of a record whose features an index learns, in bytes.
const MAX_LEARNT: u64 = 64 << 20;

/// Number of bytes that are read ahead for headers: small records lie between them.
pub(super) const SCAN_AHEAD: u64 = 4 << 20;

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
                let lost = known.map(|known| known.saturating_sub(packer.samples));
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
    if let Some(fault) = frames.content.fault_without_places() {
        return Err(fault);
    }
    let checksum = if frame.end - frame.start > MAX_LEARNT {
        frames.checksum(&frame).await?
    } else {
        let rest = frames.rest(&frame, MAX_LEARNT).await?;
        // A damaged record fails where it is read.
        if let Ok(record) = frames.checked(&frame, rest.clone()) {
            let at =
                || format!("the record at byte {} of {}", frame.start, shown(&frames.content.object.key));
            fields::learn(learner, &record, &at)
                .map_err(|fault| SourceFault::new(fault.to_string(), None))?;
        }
        rest
    };
    let digest = IndexKind::Tfrecord.digest(&checksum, 0);
    Ok(Some(Entry { key: String::new(), files: vec![FilePlace { field: 0, content: frame, digest }] }))
}
