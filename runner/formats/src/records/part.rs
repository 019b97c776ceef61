//! An object with records.

use std::sync::Arc;

use penstock_engine::chunk::Chunk;
use penstock_engine::item::Origin;
use penstock_engine::ports::SourceFault;
use penstock_engine::share::Share;
use penstock_engine::typed::FieldRules;
use penstock_storage::RangedObject;

use super::RecordFault;
use super::charset::Charset;
use super::format::RecordFormat;
use super::rows::Columns;
use super::split::Piece;
use crate::in_order::Done;
use crate::reason::blocking;

/// Memory of an object whose records are known, without their places and its columns, in bytes.
pub(super) const PART_BYTES: u64 = 256;

/// Work of blocking threads, for messages.
pub(super) const READING: &str = "reading records";

/// An object with records, and its columns if it is a table.
pub(super) struct Part {
    pub(super) object: RangedObject,
    pub(super) charset: Charset,
    pub(super) columns: Option<Arc<Columns>>,
}

/// A record that is not parsed yet, with its place in the source.
#[derive(Clone)]
pub struct Raw {
    pub(super) origin: Origin,
    pub(super) part: Arc<Part>,
    pub(super) piece: Piece,
}

impl Part {
    pub(super) fn fault(&self, number: u64, reason: &str) -> SourceFault {
        SourceFault::damage(format!("{} {reason}", self.place(number)))
    }

    pub(super) fn fault_of(&self, number: u64, reason: &RecordFault) -> SourceFault {
        SourceFault { is_damage: reason.is_damage(), ..self.fault(number, &reason.to_string()) }
    }

    pub(super) fn place(&self, number: u64) -> String {
        let record = if self.columns.is_some() { "row" } else { "line" };
        format!("{record} {number} of {}", self.object.named())
    }
}

/// Parses records up to the first fault, and gives their samples the types of the data set by `rules`, if these are given. Takes from
/// `share` what samples take beyond their texts, and ends before the first one for which there is no room. Runs on a blocking thread,
/// because a MiB of text takes milliseconds.
pub(super) async fn parse(
    format: Arc<RecordFormat>,
    rules: Option<Arc<FieldRules>>,
    mut records: Vec<Raw>,
    share: Share,
) -> Result<Done<Raw>, SourceFault> {
    let parsed = blocking(READING, move || {
        let (mut parser, mut chunk) = (format.parser(), Chunk::with_capacity(records.len()));
        let mut fault = None;
        for (place, record) in records.iter().enumerate() {
            let text = record.piece.text.len() as u64;
            let parsed = format.sample(&mut parser, record).and_then(|(mut sample, outcome)| {
                let outcome = match (outcome, &rules) {
                    (None, Some(rules)) => rules.apply(&mut sample)?,
                    (outcome, _) => outcome,
                };
                Ok((sample, outcome))
            });
            match parsed {
                Ok((sample, _)) if !share.take_decoded(place, &sample, text) => break,
                Ok((sample, outcome)) => chunk.add(sample, outcome),
                Err(found) => {
                    fault = Some(found);
                    break;
                }
            }
        }
        if fault.is_none() {
            format.keep(parser);
        }
        let left = records.split_off(chunk.len());
        Done { chunk, left, fault }
    });
    parsed.await
}
