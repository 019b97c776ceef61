//! A table whose records are joined to listed keys.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use penstock_engine::chunk::Chunk;
use penstock_engine::item::Sample;
use penstock_engine::numbered::{Numbered, ReadFault};
use penstock_engine::ports::SourceFault;
use penstock_engine::share::Share;
use penstock_storage::{BoundedStore, PackedKeys, RAISE_BUFFER, Wanted, shown};
use penstock_types::left_out::{FIRST_LEFT_OUT, LeftOutReason};
use penstock_types::plan::LABEL_FIELD;
use penstock_types::run::LabelsRecord;
use penstock_types::spec::{KeyPart, Missing, Suffix};
use penstock_types::text::{MAX_SHOWN_KEY, printable};

use crate::records::{Limits, RecordFormat, open_records};
use crate::shards::Shards;

/// A table whose fields are added to the samples with the same keys.
#[derive(Clone, Debug)]
pub struct LabelTable {
    pub store: BoundedStore,
    pub key: Arc<str>,
    /// Form of the records. The format names the member or column that is the key of a sample.
    pub format: RecordFormat,
    /// Part of a listed key that the table contains.
    pub matches: KeyPart,
    /// Handling of listed keys that are not in the table.
    pub missing: Missing,
}

pub(super) struct Rows {
    pub(super) records: Arc<dyn Numbered>,
    /// Number of the record of each key.
    of_keys: Vec<u64>,
}

/// Stands for the record of a key that the table lacks.
const NONE: u64 = u64::MAX;

/// Maximum number of records that are read at a time.
const CHUNK: u64 = 4096;

/// Aimed size of the records that are read at a time, in bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// Maximum number of keys that a record of labels names.
const MOST_NAMED: usize = 5;

impl LabelTable {
    /// Finds the record of each of these sorted keys. Returns the records and the keys that have one.
    pub(super) async fn join(
        &self,
        keys: PackedKeys,
        wanted: &Wanted,
        by_folder: bool,
        most_bytes: u64,
        record: &mut LabelsRecord,
    ) -> Result<(Rows, PackedKeys), SourceFault> {
        let count = keys.len();
        // The number of a record for each key, copied once if some keys are left out.
        if 2 * size_of::<u64>() as u64 * count as u64 > most_bytes / 2 {
            let reason = format!(
                "cannot be joined to {count} keys within the {most_bytes} bytes of memory that are left, 32 for each key; list a part \
                 with a longer prefix{RAISE_BUFFER}"
            );
            return Err(self.fault(&reason));
        }
        let objects = Shards::Keys(vec![self.key.clone()]);
        let (store, format) = (self.store.clone(), self.format.clone());
        let (held_bytes, most_bytes) = (most_bytes / 4, most_bytes / 2);
        let limits = Limits {
            held_bytes,
            most_bytes,
            remedy: "list a part of the keys, and use a table of their labels",
        };
        let records = open_records(store, objects, format, limits).await?;
        let mut of_keys = vec![NONE; count];
        let (all, chunk) = (records.count(), (CHUNK_BYTES / records.mean_bytes().max(1)).clamp(1, CHUNK));
        let mut read = 0;
        while read < all {
            let numbers: Vec<u64> = (read..all.min(read + chunk)).collect();
            let share = Share::alone(held_bytes);
            let samples =
                records.clone().read(0, numbers.clone(), share).await.map_err(|fault| fault.fault)?;
            read += samples.len() as u64;
            for (number, sample) in numbers.into_iter().zip(samples.into_kept()) {
                if by_folder && sample.field(LABEL_FIELD).is_some() {
                    let reason = "have the field `label`, which is also the number of the folder; rename one, or remove the other";
                    return Err(self.fault(reason));
                }
                let index = match (self.matches, &wanted.suffix) {
                    (KeyPart::Stem, Suffix::Several(_)) => self.find_stem(&keys, wanted, &sample.key)?,
                    _ => keys.find(&self.listed(&sample, wanted)),
                };
                match index.map(|index| &mut of_keys[index]) {
                    Some(place) if *place == NONE => *place = number,
                    Some(_) => return Err(self.fault(&format!("name the key {} twice", shown(&sample.key)))),
                    None => {
                        record.unused += 1;
                        if record.unused_keys.len() < MOST_NAMED {
                            record.unused_keys.push(printable(&sample.key, MAX_SHOWN_KEY));
                        }
                    }
                }
            }
        }
        let without = of_keys.iter().filter(|number| **number == NONE).count();
        if without == 0 {
            return Ok((Rows { records, of_keys }, keys));
        }
        if self.missing == Missing::Fail || without == count {
            return Err(self.fault(&self.missing_words(&keys, &of_keys, without, record)));
        }
        record.without_label = without as u64;
        let first = keys.iter().zip(&of_keys).filter(|(_, number)| **number == NONE).map(|(key, _)| key);
        let first: Vec<String> = first.take(FIRST_LEFT_OUT).collect();
        wanted.notes.leave_out(
            LeftOutReason::NoLabel,
            record.without_label,
            first.iter().map(String::as_str),
        );
        let kept =
            keys.iter().zip(&of_keys).filter(|(_, number)| **number != NONE).map(|(key, _)| key).collect();
        of_keys.retain(|number| *number != NONE);
        of_keys.shrink_to_fit();
        Ok((Rows { records, of_keys }, kept))
    }

    /// Listed key that a record names.
    fn listed<'a>(&self, sample: &'a Sample, wanted: &Wanted) -> Cow<'a, str> {
        match self.matches {
            KeyPart::Key => Cow::Borrowed(&sample.key),
            KeyPart::Stem => {
                let suffix = if let Suffix::One(suffix) = &wanted.suffix { suffix } else { "" };
                Cow::Owned(format!("{}{}{suffix}", wanted.prefix, sample.key))
            }
        }
    }

    /// Index of the key that has this stem and one of the endings. Two such keys are a fault.
    fn find_stem(
        &self,
        keys: &PackedKeys,
        wanted: &Wanted,
        stem: &str,
    ) -> Result<Option<usize>, SourceFault> {
        let Suffix::Several(endings) = &wanted.suffix else { return Ok(None) };
        let start = format!("{}{stem}", wanted.prefix);
        // The letter of an ending may have either case.
        let letters = endings.iter().map(|ending| ending.chars().next());
        let cases = |letter: Option<char>| match letter {
            None => vec![start.clone()],
            Some(letter) => {
                let both = [letter.to_ascii_lowercase(), letter.to_ascii_uppercase()];
                both.map(|letter| format!("{start}{letter}")).to_vec()
            }
        };
        let starts: BTreeSet<String> = letters.flat_map(cases).collect();
        let mut found: Option<(usize, String)> = None;
        for (index, key) in starts.iter().flat_map(|start| keys.starting_with(start)) {
            let is_of_stem = wanted.suffix.matched(&key) == Some(key.len() - start.len());
            match &found {
                _ if !is_of_stem => {}
                Some((other, _)) if *other == index => {}
                Some((_, other)) => {
                    let (stem, one, other) = (shown(stem), shown(other), shown(&key));
                    return Err(
                        self.fault(&format!("name {stem}, which is the stem of both {one} and {other}"))
                    );
                }
                None => found = Some((index, key)),
            }
        }
        Ok(found.map(|(index, _)| index))
    }

    fn missing_words(
        &self,
        keys: &PackedKeys,
        of_keys: &[u64],
        without: usize,
        record: &LabelsRecord,
    ) -> String {
        let first = of_keys.iter().position(|number| *number == NONE).and_then(|index| keys.get(index));
        let first = first.unwrap_or_default();
        let others = match record.unused_keys.first() {
            Some(key) => format!(", and have {} others, such as {}", record.unused, shown(key)),
            None => String::new(),
        };
        let remedy = match without == keys.len() {
            true => "set `sample_key` and `match`",
            false => "add them, or set `missing` to `skip`",
        };
        format!(
            "lack {without} of the {} listed keys, such as {}{others}; {remedy}",
            keys.len(),
            shown(&first)
        )
    }

    fn fault(&self, reason: &str) -> SourceFault {
        SourceFault::new(format!("the labels {} {reason}", self.store.named(&self.key)), None)
    }
}

impl Rows {
    pub(super) async fn read(&self, epoch: u32, indexes: &[u64], share: Share) -> Result<Chunk, ReadFault> {
        let numbers = indexes.iter().map(|index| self.of_keys[*index as usize]).collect();
        let read = self.records.clone().read(epoch, numbers, share).await;
        read.map_err(|ReadFault { fault, .. }| fault.into())
    }

    pub(super) fn kept_bytes(&self) -> u64 {
        self.records.kept_bytes() + size_of_val(&*self.of_keys) as u64
    }
}
