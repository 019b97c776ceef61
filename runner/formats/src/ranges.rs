//! Reads of parts of shards: parts that lie close to each other are read together.

use std::ops::Range;

use bytes::Bytes;

pub(crate) struct Reads<T> {
    pub(crate) reads: Vec<Read<T>>,
    limits: ReadLimits,
}

/// Limits of a read of several parts, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct ReadLimits {
    /// Parts that are this close to each other are read together, with what lies between them.
    gap: u64,
    size: u64,
}

impl ReadLimits {
    pub(crate) const OF_SAMPLES: Self = Self { gap: 32 << 10, size: 4 << 20 };
    pub(crate) const OF_COLUMNS: Self = Self { gap: 64 << 10, size: 8 << 20 };
    pub(crate) const OF_RECORDS: Self = Self { gap: 0, size: 4 << 20 };
}

/// A read of parts that lie close to each other in one shard.
pub(crate) struct Read<T> {
    pub(crate) shard: usize,
    pub(crate) range: Range<u64>,
    parts: Vec<(T, Range<u64>)>,
}

impl<T> Reads<T> {
    pub(crate) fn new(limits: ReadLimits) -> Self {
        Self { reads: Vec::new(), limits }
    }

    /// Adds a part of a shard; `of` states what it belongs to.
    pub(crate) fn push(&mut self, shard: usize, part: Range<u64>, of: T) {
        match self.reads.last_mut() {
            Some(read) if read.takes(shard, &part, self.limits) => {
                read.range.end = part.end;
                read.parts.push((of, part));
            }
            _ => self.reads.push(Read { shard, range: part.clone(), parts: vec![(of, part)] }),
        }
    }
}

impl<T> Read<T> {
    fn takes(&self, shard: usize, part: &Range<u64>, limits: ReadLimits) -> bool {
        let gap = part.start.checked_sub(self.range.end);
        self.shard == shard
            && gap.is_some_and(|gap| gap <= limits.gap)
            && part.end - self.range.start <= limits.size
    }

    pub(crate) fn into_parts(self) -> impl Iterator<Item = T> {
        self.parts.into_iter().map(|(of, _)| of)
    }

    /// Splits the bytes of the range into the parts. A part shares the memory of its neighbours, which stay in the same chunk.
    pub(crate) fn split(self, bytes: Bytes) -> impl Iterator<Item = (T, Bytes)> {
        let start = self.range.start;
        self.parts.into_iter().map(move |(of, part)| {
            (of, bytes.slice((part.start - start) as usize..(part.end - start) as usize))
        })
    }
}
