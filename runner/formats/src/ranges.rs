//! Reads of parts of shards: parts that lie close to each other are read together.

use std::ops::Range;

use bytes::Bytes;

/// Parts that are this close to each other are read together, with what lies between them, in bytes.
const GAP: u64 = 32 << 10;

/// Maximum size of a read of several parts, in bytes.
const MAX_READ: u64 = 4 << 20;

/// Reads of parts, in order.
pub(crate) struct Reads<T>(pub(crate) Vec<Read<T>>);

/// A read of parts that lie close to each other in one shard.
pub(crate) struct Read<T> {
    pub(crate) shard: usize,
    pub(crate) range: Range<u64>,
    parts: Vec<(T, Range<u64>)>,
}

impl<T> Reads<T> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a part of a shard; `of` states what it belongs to.
    pub(crate) fn push(&mut self, shard: usize, part: Range<u64>, of: T) {
        self.push_within(GAP, shard, part, of);
    }

    /// Adds a part as [`Self::push`] does. It is read together with the one before if at most `gap` bytes lie between them.
    pub(crate) fn push_within(&mut self, gap: u64, shard: usize, part: Range<u64>, of: T) {
        match self.0.last_mut() {
            Some(read) if read.takes(gap, shard, &part) => {
                read.range.end = part.end;
                read.parts.push((of, part));
            }
            _ => self.0.push(Read { shard, range: part.clone(), parts: vec![(of, part)] }),
        }
    }
}

impl<T> Read<T> {
    fn takes(&self, most: u64, shard: usize, part: &Range<u64>) -> bool {
        let gap = part.start.checked_sub(self.range.end);
        self.shard == shard && gap.is_some_and(|gap| gap <= most) && part.end - self.range.start <= MAX_READ
    }

    /// What the parts belong to.
    pub(crate) fn into_parts(self) -> impl Iterator<Item = T> {
        self.parts.into_iter().map(|(of, _)| of)
    }

    /// Splits the bytes of the range into the parts. A part shares the memory of its neighbours, which stay in the same chunk.
    pub(crate) fn split(self, bytes: &Bytes) -> impl Iterator<Item = (T, Bytes)> {
        let start = self.range.start;
        self.parts.into_iter().map(move |(of, part)| {
            (of, bytes.slice((part.start - start) as usize..(part.end - start) as usize))
        })
    }
}
