//! Features of a record of the type `tf.train.Example`, in the encoding of protocol buffers.
//!
//! An example has field 1, `features`; that has a field 1 for each feature: an entry of its name (1) and its value (2). A value is a
//! list of bytes (1), floats (2) or whole numbers (3), whose elements are field 1 of the list, packed or not. Other fields are skipped.

use std::ops::Range;

use penstock_types::varint;

use crate::reason::Reason;

const MAX_FEATURES: usize = 256;

#[derive(Debug, Default, PartialEq)]
pub(super) enum Feature {
    #[default]
    None,
    /// Places in the record of the first element, and of the others.
    Bytes(Option<Range<usize>>, Vec<Range<usize>>),
    /// Elements of four bytes, little-endian.
    Floats(Vec<u8>),
    /// Elements of eight bytes, little-endian.
    Ints(Vec<u8>),
}

/// A message: a part of a record.
struct Message<'a> {
    record: &'a [u8],
    rest: Range<usize>,
}

enum Wire {
    Number(u64),
    Fixed32([u8; 4]),
    Part(Range<usize>),
    Fixed64,
}

pub(super) struct Reader<'a> {
    record: &'a [u8],
    most_bytes: u64,
    /// Bytes that whole numbers, and the places of the elements of lists, may still take.
    room: u64,
    /// Set if the record has lists of features, as a `tf.train.SequenceExample` has.
    pub(super) has_sequences: bool,
}

impl<'a> Reader<'a> {
    /// A reader whose lists of whole numbers may take `most_bytes`: a packed element has one byte, and becomes eight.
    pub(super) fn new(record: &'a [u8], most_bytes: u64) -> Self {
        Self { record, most_bytes, room: most_bytes, has_sequences: false }
    }

    /// The wanted features, in the order of the record. Of equal names, the last is taken.
    pub(super) fn features(
        &mut self,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<(&'a str, Feature)>, Reason> {
        let mut found: Vec<(&str, Feature)> = Vec::new();
        let mut example = self.message(0..self.record.len());
        while let Some((field, value)) = example.next()? {
            self.has_sequences |= field == 2 && matches!(&value, Wire::Part(lists) if !lists.is_empty());
            let (1, Wire::Part(features)) = (field, value) else { continue };
            let mut features = self.message(features);
            while let Some((field, value)) = features.next()? {
                let (1, Wire::Part(entry)) = (field, value) else { continue };
                let Some((name, feature)) = self.entry(entry, &is_wanted)? else { continue };
                match found.iter().position(|(known, _)| *known == name) {
                    Some(known) => found[known].1 = feature,
                    None if found.len() == MAX_FEATURES => {
                        return Err(format!(
                            "has more than {MAX_FEATURES} features; select some with `fields`"
                        )
                        .into());
                    }
                    None => found.push((name, feature)),
                }
            }
        }
        Ok(found)
    }

    fn entry(
        &mut self,
        entry: Range<usize>,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Option<(&'a str, Feature)>, Reason> {
        let (mut name, mut value, mut others, start) = ("", None, Vec::new(), entry.start);
        let mut entry = self.message(entry);
        while let Some((field, part)) = entry.next()? {
            match (field, part) {
                (1, Wire::Part(text)) => {
                    let start = text.start;
                    name = str::from_utf8(&self.record[text])
                        .map_err(|_| damaged("a name is not UTF-8", start))?;
                }
                // A value in several parts is rare: the parts are read one after the other.
                (2, Wire::Part(part)) if value.is_none() => value = Some(part),
                (2, Wire::Part(part)) if others.len() < MAX_FEATURES => others.push(part),
                (2, Wire::Part(_)) => return Err(damaged("a value in too many parts", start)),
                _ => {}
            }
        }
        if !is_wanted(name) {
            return Ok(None);
        }
        let mut feature = Feature::None;
        value.into_iter().chain(others).try_for_each(|value| self.value(value, &mut feature))?;
        Ok(Some((name, feature)))
    }

    fn value(&mut self, value: Range<usize>, feature: &mut Feature) -> Result<(), Reason> {
        let mut value = self.message(value);
        while let Some((kind, list)) = value.next()? {
            let Wire::Part(list) = list else { continue };
            // A list of another kind replaces the one before it.
            match (kind, &feature) {
                (1, Feature::Bytes(..)) | (2, Feature::Floats(_)) | (3, Feature::Ints(_)) => {}
                (1, _) => *feature = Feature::Bytes(None, Vec::new()),
                (2, _) => *feature = Feature::Floats(Vec::new()),
                (3, _) => *feature = Feature::Ints(Vec::new()),
                _ => continue,
            }
            let mut list = self.message(list);
            while let Some((field, element)) = list.next()? {
                if field == 1 {
                    self.element(element, feature)?;
                }
            }
        }
        Ok(())
    }

    /// Adds an element of a list, or several that are packed.
    fn element(&mut self, element: Wire, feature: &mut Feature) -> Result<(), Reason> {
        match (feature, element) {
            (Feature::Bytes(first @ None, _), Wire::Part(part)) => *first = Some(part),
            (Feature::Bytes(_, others), Wire::Part(part)) => {
                self.take_room(size_of::<Range<usize>>())?;
                others.push(part);
            }
            (Feature::Floats(floats), Wire::Fixed32(bytes)) => floats.extend_from_slice(&bytes),
            (Feature::Floats(floats), Wire::Part(packed)) => {
                if packed.len() % 4 != 0 {
                    return Err(damaged("a list of floats of uneven length", packed.start));
                }
                floats.extend_from_slice(&self.record[packed]);
            }
            (Feature::Ints(ints), Wire::Number(number)) => self.push(ints, number)?,
            (Feature::Ints(ints), Wire::Part(packed)) => {
                let mut packed = self.message(packed);
                while !packed.rest.is_empty() {
                    let number = packed.number()?;
                    self.push(ints, number)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn push(&mut self, ints: &mut Vec<u8>, number: u64) -> Result<(), Reason> {
        self.take_room(8)?;
        ints.extend_from_slice(&number.to_le_bytes());
        Ok(())
    }

    fn take_room(&mut self, bytes: usize) -> Result<(), Reason> {
        let most = self.most_bytes;
        let too_large = || format!("has lists that take more than {most} bytes; raise `buffer_mib`");
        self.room = self.room.checked_sub(bytes as u64).ok_or_else(too_large)?;
        Ok(())
    }

    fn message(&self, rest: Range<usize>) -> Message<'a> {
        Message { record: self.record, rest }
    }
}

impl Message<'_> {
    /// Number and value of the next field; `None` at the end of the message.
    fn next(&mut self) -> Result<Option<(u64, Wire)>, Reason> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let start = self.rest.start;
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Wire::Number(self.number()?),
            1 => {
                self.take(8)?;
                Wire::Fixed64
            }
            2 => {
                let length = self.number()?;
                Wire::Part(self.take(length)?)
            }
            5 => {
                let place = self.take(4)?;
                // Cannot fail: four bytes were taken.
                Wire::Fixed32(self.record[place].try_into().unwrap_or_default())
            }
            _ => return Err(damaged("a field of an unknown type", start)),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn take(&mut self, length: u64) -> Result<Range<usize>, Reason> {
        let start = self.rest.start;
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        let end = end.filter(|end| *end <= self.rest.end);
        self.rest.start = end.ok_or_else(|| damaged("a field that is longer than the message", start))?;
        Ok(start..self.rest.start)
    }

    fn number(&mut self) -> Result<u64, Reason> {
        let mut rest = &self.record[self.rest.clone()];
        let number =
            varint::take(&mut rest).ok_or_else(|| damaged("a number without an end", self.rest.start))?;
        self.rest.start = self.rest.end - rest.len();
        Ok(number)
    }
}

/// Reason why a record is no example: the end of a sentence about it.
#[cold]
fn damaged(what: &str, at: usize) -> Reason {
    format!("is no `tf.train.Example`: {what} at byte {at}; `\"decode\": \"bytes\"` reads other records")
        .into()
}
