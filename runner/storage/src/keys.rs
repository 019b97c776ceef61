//! Compact lists of keys, and a counter of the names that a listing leaves out.

use std::sync::Arc;

use penstock_types::resume::Hash;
use tracing::warn;

/// The keys of a page, in order, stored in one string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    text: String,
    /// End position of each key in `text`.
    ends: Vec<usize>,
}

impl Keys {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn push(&mut self, key: &str) {
        self.text.push_str(key);
        self.ends.push(self.text.len());
    }

    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    pub fn last(&self) -> Option<&str> {
        self.get(self.len().checked_sub(1)?)
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

/// Number of keys in a block of [`PackedKeys`].
const BLOCK: usize = 16;

/// Millions of keys in order, front-coded: of each key, only the part that differs from the key before it is stored. Every 16th key
/// is stored whole, so that a key is found in constant time. Names with ascending numbers take about 10 bytes each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedKeys {
    /// For each key: number of bytes that it shares with the key before it, number of other bytes, other bytes. The numbers have
    /// seven bits in each byte, the lowest first.
    packed: Vec<u8>,
    /// Position in `packed` of every 16th key.
    blocks: Vec<usize>,
    len: usize,
    last: Vec<u8>,
}

impl PackedKeys {
    /// Digest of all keys.
    pub fn digest(&self) -> Hash {
        Hash::EMPTY.with(&self.packed)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the keys take in memory.
    pub fn bytes(&self) -> u64 {
        (self.packed.len() + size_of_val(&*self.blocks)) as u64
    }

    pub fn push(&mut self, key: &str) {
        if self.len.is_multiple_of(BLOCK) {
            self.blocks.push(self.packed.len());
            self.last.clear();
        }
        let shared = self.last.iter().zip(key.as_bytes()).take_while(|(last, byte)| last == byte).count();
        let other = &key.as_bytes()[shared..];
        push_number(&mut self.packed, shared);
        push_number(&mut self.packed, other.len());
        self.packed.extend_from_slice(other);
        self.last.truncate(shared);
        self.last.extend_from_slice(other);
        self.len += 1;
    }

    pub fn get(&self, index: usize) -> Option<Arc<str>> {
        (index < self.len).then(|| {
            let mut rest = &self.packed[self.blocks[index / BLOCK]..];
            let mut key = Vec::new();
            (0..=index % BLOCK).for_each(|_| unpack(&mut rest, &mut key));
            Arc::from(text(&key))
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = String> {
        let (mut rest, mut key) = (&*self.packed, Vec::new());
        (0..self.len).map(move |_| {
            unpack(&mut rest, &mut key);
            text(&key).to_owned()
        })
    }

    /// Index of `key` among keys that are sorted by their bytes. Takes time for the logarithm of their number.
    pub fn find(&self, key: &str) -> Option<usize> {
        let whole = |start: usize| {
            let mut rest = &self.packed[start..];
            let (_, length) = (take_number(&mut rest), take_number(&mut rest));
            &rest[..length]
        };
        let block = self.blocks.partition_point(|start| whole(*start) <= key.as_bytes()).checked_sub(1)?;
        let (mut rest, mut found) = (&self.packed[self.blocks[block]..], Vec::new());
        (block * BLOCK..self.len.min((block + 1) * BLOCK)).find(|_| {
            unpack(&mut rest, &mut found);
            found == key.as_bytes()
        })
    }

    /// Removes the first `count` keys, or all. Takes time for each key.
    pub(crate) fn remove_first(&mut self, count: usize) {
        *self = self.iter().skip(count).collect();
    }

    /// Returns memory that is reserved for further keys.
    pub fn shrink(&mut self) {
        self.packed.shrink_to_fit();
        self.blocks.shrink_to_fit();
    }
}

impl FromIterator<String> for PackedKeys {
    fn from_iter<I: IntoIterator<Item = String>>(keys: I) -> Self {
        let mut packed = Self::default();
        keys.into_iter().for_each(|key| packed.push(&key));
        packed
    }
}

fn push_number(packed: &mut Vec<u8>, mut number: usize) {
    while number > 0x7f {
        packed.push(number as u8 | 0x80);
        number >>= 7;
    }
    packed.push(number as u8);
}

fn take_number(packed: &mut &[u8]) -> usize {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = packed[0];
        *packed = &packed[1..];
        number |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

/// Turns `key` into the key after it, which `packed` starts with, and removes that from `packed`.
fn unpack(packed: &mut &[u8], key: &mut Vec<u8>) {
    let shared = take_number(packed);
    let length = take_number(packed);
    let (other, rest) = packed.split_at(length);
    key.truncate(shared);
    key.extend_from_slice(other);
    *packed = rest;
}

fn text(key: &[u8]) -> &str {
    str::from_utf8(key).expect("only texts are stored")
}

/// Counter of the names that a listing leaves out.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    count: u64,
    first: Option<String>,
}

impl LeftOut {
    /// Counts a name; `None` for a name that cannot be decoded.
    pub(crate) fn add(&mut self, name: Option<String>) {
        self.count += 1;
        self.first = self.first.take().or(name);
    }

    /// Adds the names that another part of the listing left out.
    pub(crate) fn join(&mut self, other: Self) {
        self.count += other.count;
        self.first = self.first.take().or(other.first);
    }

    /// Logs one warning if any names were left out; `what` describes them.
    pub(crate) fn warn(&mut self, store: &str, what: &str) {
        let Self { count, first } = std::mem::take(self);
        if count > 0 {
            warn!(store, left_out = count, first, "a listing left out {what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_with_numbers_take_at_most_16_bytes() {
        let bytes = |name: fn(usize) -> String| {
            let mut keys = PackedKeys::default();
            (0..1_000_000).for_each(|number| keys.push(&name(number)));
            assert_eq!(keys.get(123_456).as_deref(), Some(&*name(123_456)));
            keys.bytes() as f64 / 1e6
        };
        let flat = bytes(|number| format!("train/images/{number:012}.jpeg"));
        let nested = bytes(|number| format!("train/{:04}/image-{number:09}.jpg", number / 1000));
        assert!(flat < 12.0 && nested < 12.0, "{flat} and {nested} bytes");
    }

    proptest! {
        #[test]
        fn packed_keys_are_returned_unchanged(
            keys in proptest::collection::vec("([ab\u{e9}\u{1f5bb}]{0,4}|[ab]{100,200})", 0..70), first in 0_usize..80,
        ) {
            let mut packed = PackedKeys::default();
            keys.iter().for_each(|key| packed.push(key));
            prop_assert!(packed.iter().eq(keys.iter().cloned()));
            packed.remove_first(first);
            let rest = &keys[first.min(keys.len())..];
            prop_assert_eq!(packed.len(), rest.len());
            for index in 0..=rest.len() {
                prop_assert_eq!(packed.get(index), rest.get(index).map(|key| Arc::from(key.as_str())));
            }
            packed.push("end");
            prop_assert_eq!(packed.get(rest.len()), Some(Arc::from("end")));
        }
    }

    proptest! {
        #[test]
        fn sorted_keys_are_found(
            keys in proptest::collection::btree_set("[ab\u{e9}/]{1,6}", 0..70), others in proptest::collection::vec("[ab\u{e9}/]{0,7}", 0..20),
        ) {
            let mut packed = PackedKeys::default();
            keys.iter().for_each(|key| packed.push(key));
            for key in keys.iter().chain(&others) {
                prop_assert_eq!(packed.find(key), keys.iter().position(|other| other == key), "{}", key);
            }
        }
    }

    #[test]
    fn keys_are_returned_unchanged() {
        let mut keys = Keys::default();
        assert_eq!((keys.get(0), keys.last()), (None, None));
        for key in ["a", "", "bc/d"] {
            keys.push(key);
        }
        assert_eq!(keys.iter().collect::<Vec<_>>(), ["a", "", "bc/d"]);
        assert_eq!((keys.get(3), keys.last(), keys.len()), (None, Some("bc/d"), 3));
    }
}
