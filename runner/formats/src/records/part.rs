//! An object with records.

use std::sync::Arc;

use penstock_engine::item::{Origin, Sample};
use penstock_engine::ports::SourceFault;
use penstock_storage::{RangedObject, shown};
use tokio::task::spawn_blocking;

use super::format::RecordFormat;
use super::rows::{Columns, RowParser};
use super::split::Piece;

/// Memory of an object whose records are known, without their places and its columns, in bytes.
pub(super) const PART_BYTES: u64 = 256;

/// An object with records, and its columns if it is a table.
pub(super) struct Part {
    pub(super) object: RangedObject,
    pub(super) columns: Option<Arc<Columns>>,
}

/// A record that is not parsed yet, with its place in the source.
pub(super) struct Raw {
    pub(super) origin: Origin,
    pub(super) part: Arc<Part>,
    pub(super) piece: Piece,
}

impl Part {
    pub(super) fn fault(&self, number: u64, reason: &str) -> SourceFault {
        let (store, key) = (self.object.store.name(), shown(&self.object.key));
        let record = if self.columns.is_some() { "row" } else { "line" };
        SourceFault::new(format!("{record} {number} of {key} in store `{store}` {reason}"), None)
    }
}

/// Parses records up to the first fault. Runs on a blocking thread, because a MiB of text takes milliseconds.
pub(super) async fn parse(
    format: Arc<RecordFormat>,
    records: Vec<Raw>,
) -> Result<(Vec<Sample>, Option<SourceFault>), SourceFault> {
    let parsing = spawn_blocking(move || {
        let (mut rows, mut samples) = (RowParser::new(&format.layout), Vec::with_capacity(records.len()));
        for Raw { origin, part, piece } in records {
            match format.sample(&part, &mut rows, &piece, origin) {
                Ok(sample) => samples.push(sample),
                Err(reason) => return (samples, Some(part.fault(piece.number, &reason.to_string()))),
            }
        }
        (samples, None)
    });
    parsing.await.map_err(|error| SourceFault::new("reading records was interrupted", Some(error.into())))
}
