//! Compact lists of keys, with what a listing left out beside them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::sync::Arc;

use penstock_types::left_out::{FIRST_LEFT_OUT, LeftOut, LeftOutReason};
use penstock_types::resume::Hash;
use penstock_types::varint;

use crate::links::FileId;
use crate::stamp::Stamp;

/// The keys of a page, in order, stored in one string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    text: String,
    /// End position of each key in `text`.
    ends: Vec<usize>,
    /// Names that the listing left out while the page was made.
    pub(crate) left_out: BTreeMap<LeftOutReason, LeftOut>,
    /// Keys that were found through links, in order.
    linked: Vec<LinkedKey>,
    /// Stamps of the versions of the first keys, if the listing states them.
    stamps: Vec<Option<Stamp>>,
}

/// A key that was found through a link to a file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkedKey {
    /// Index of the key in its page.
    pub(crate) index: usize,
    /// Hash that is equal for two keys of one file.
    pub(crate) identity: u64,
    /// Key of the file without the link.
    pub(crate) own_key: Option<Box<str>>,
    /// Set if the link is one to a folder, or an absolute one.
    pub(crate) is_new: bool,
}

impl LinkedKey {
    /// Creates the note of a key that is pushed next. `rest` is its part behind the link to the folder `linked`; empty if `linked` is a file.
    pub(crate) fn new(linked: FileId, rest: &str, own_key: Option<Box<str>>, is_new: bool) -> Self {
        let mut hasher = DefaultHasher::new();
        (linked, rest).hash(&mut hasher);
        Self { index: 0, identity: hasher.finish(), own_key, is_new }
    }
}

impl Keys {
    /// Counts a name that is left out; `None` for a name that cannot be decoded.
    pub fn leave_out(&mut self, reason: LeftOutReason, name: Option<&str>) {
        self.leave_out_several(reason, 1, name);
    }

    fn leave_out_several<'a>(
        &mut self,
        reason: LeftOutReason,
        count: u64,
        first: impl IntoIterator<Item = &'a str>,
    ) {
        let none = LeftOut { reason, count: 0, samples: None, first: Vec::new() };
        let left_out = self.left_out.entry(reason).or_insert(none);
        left_out.count += count;
        let room = FIRST_LEFT_OUT - left_out.first.len();
        left_out.first.extend(first.into_iter().take(room).map(str::to_owned));
    }

    /// Names that the listing left out while the page was made, by reason; the first ones that can be decoded are stated.
    pub fn left_out(&self) -> impl Iterator<Item = &LeftOut> {
        self.left_out.values()
    }

    pub(crate) fn add_left_out(&mut self, other: &Self) {
        for LeftOut { reason, count, first, .. } in other.left_out.values() {
            self.leave_out_several(*reason, *count, first.iter().map(String::as_str));
        }
    }

    /// Subtracts names that were left out on pages before.
    pub(crate) fn subtract_left_out(&mut self, before: &Self) {
        self.left_out.retain(|reason, left_out| {
            let before = before.left_out.get(reason).map_or(0, |before| before.count);
            left_out.count = left_out.count.saturating_sub(before);
            left_out.count > 0
        });
    }

    /// Notes that the next key was found through a link.
    pub(crate) fn push_linked(&mut self, linked: LinkedKey) {
        self.linked.push(LinkedKey { index: self.len(), ..linked });
    }

    pub(crate) fn linked(&self) -> &[LinkedKey] {
        &self.linked
    }

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

    /// Adds a key together with the stamp of its object's version, if the listing states it.
    pub(crate) fn push_stamped(&mut self, key: &str, stamp: Option<Stamp>) {
        self.push(key);
        if stamp.is_some() {
            self.stamps.resize(self.len() - 1, None);
            self.stamps.push(stamp);
        }
    }

    /// Stamp of the version of the object at `index`.
    pub(crate) fn stamp(&self, index: usize) -> Option<Stamp> {
        self.stamps.get(index).copied().flatten()
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
    pub fn digest(&self) -> Hash {
        Hash::EMPTY.with(&self.packed)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> u64 {
        (self.packed.len() + size_of_val(&*self.blocks)) as u64
    }

    pub fn push(&mut self, key: &str) {
        if self.len.is_multiple_of(BLOCK) {
            self.blocks.push(self.packed.len());
        }
        pack(&mut self.packed, &mut self.last, self.len, key);
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
        self.keys_from(0).map(|(_, key)| key)
    }

    /// Keys from this block on, with their indexes.
    fn keys_from(&self, block: usize) -> impl Iterator<Item = (usize, String)> {
        let mut rest = self.blocks.get(block).map_or(&[][..], |at| &self.packed[*at..]);
        let mut key = Vec::new();
        (block * BLOCK..self.len).map(move |index| {
            unpack(&mut rest, &mut key);
            (index, text(&key).to_owned())
        })
    }

    /// Index of `key` among keys that are sorted by their bytes. Takes time for the logarithm of their number.
    pub fn find(&self, key: &str) -> Option<usize> {
        let block = self.blocks.partition_point(|at| self.whole(*at) <= key.as_bytes()).checked_sub(1)?;
        let (mut rest, mut found) = (&self.packed[self.blocks[block]..], Vec::new());
        (block * BLOCK..self.len.min((block + 1) * BLOCK)).find(|_| {
            unpack(&mut rest, &mut found);
            found == key.as_bytes()
        })
    }

    /// Keys that start with `start`, with their indexes, among keys that are sorted by their bytes.
    pub fn starting_with(&self, start: &str) -> impl Iterator<Item = (usize, String)> {
        let before = self.blocks.partition_point(|at| self.whole(*at) < start.as_bytes());
        let keys = self.keys_from(before.saturating_sub(1)).skip_while(move |(_, key)| key.as_str() < start);
        keys.take_while(move |(_, key)| key.starts_with(start))
    }

    /// First key of the block at this position in `packed`.
    fn whole(&self, at: usize) -> &[u8] {
        let mut rest = &self.packed[at..];
        let (_, length) = (take_number(&mut rest), take_number(&mut rest));
        &rest[..length]
    }

    pub(crate) fn into_keys(self) -> impl Iterator<Item = String> + Send {
        let (mut at, mut key) = (0, Vec::new());
        (0..self.len).map(move |_| {
            let mut rest = &self.packed[at..];
            unpack(&mut rest, &mut key);
            at = self.packed.len() - rest.len();
            text(&key).to_owned()
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

/// Digest of keys that need not be kept, the same as [`PackedKeys::digest`] of all of them.
#[derive(Clone, Debug)]
pub(crate) struct KeysDigest {
    hash: Hash,
    len: usize,
    last: Vec<u8>,
    packed: Vec<u8>,
}

impl Default for KeysDigest {
    fn default() -> Self {
        Self { hash: Hash::EMPTY, len: 0, last: Vec::new(), packed: Vec::new() }
    }
}

impl KeysDigest {
    pub(crate) fn push(&mut self, key: &str) {
        self.packed.clear();
        pack(&mut self.packed, &mut self.last, self.len, key);
        self.len += 1;
        self.hash = self.hash.with(&self.packed);
    }

    /// Digest of the keys so far.
    pub(crate) fn get(&self) -> Hash {
        self.hash
    }
}

/// Adds `key`, the one at `index`, to `packed`; `last` is the key before it.
fn pack(packed: &mut Vec<u8>, last: &mut Vec<u8>, index: usize, key: &str) {
    if index.is_multiple_of(BLOCK) {
        last.clear();
    }
    let shared = last.iter().zip(key.as_bytes()).take_while(|(last, byte)| last == byte).count();
    let other = &key.as_bytes()[shared..];
    varint::push(packed, shared as u64);
    varint::push(packed, other.len() as u64);
    packed.extend_from_slice(other);
    last.truncate(shared);
    last.extend_from_slice(other);
}

fn take_number(packed: &mut &[u8]) -> usize {
    varint::take(packed).expect("whole keys are packed") as usize
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
            let mut digest = KeysDigest::default();
            keys.iter().for_each(|key| {
                packed.push(key);
                digest.push(key);
            });
            prop_assert_eq!(digest.get(), packed.digest());
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
                let expected = keys.iter().enumerate().filter(|(_, other)| other.starts_with(key.as_str()));
                let expected: Vec<_> = expected.map(|(index, key)| (index, key.clone())).collect();
                prop_assert_eq!(packed.starting_with(key).collect::<Vec<_>>(), expected, "{}", key);
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
