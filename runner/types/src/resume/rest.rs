//! Positions that remain of an epoch, as a sequence of strides.

use serde::{Deserialize, Serialize};

use super::{MAX_STRIDES, TokenFault};

/// Positions at equal distances: first position, distance, and number; without a number, all positions from the first one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stride(pub u64, pub u64, pub Option<u64>);

/// A sequence of positions: those of each stride in turn. Only the last stride may be without an end, and it has the distance 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rest(pub Vec<Stride>);

impl Stride {
    /// Number of positions below `count`.
    fn len(self, count: u64) -> u64 {
        let Self(first, step, number) = self;
        count.saturating_sub(first).div_ceil(step).min(number.unwrap_or(u64::MAX))
    }

    /// Removes the positions that are not below `count` from a stride with an end.
    pub(super) fn cut(&mut self, count: u64) {
        self.2 = self.2.map(|_| self.len(count));
    }
}

impl Rest {
    /// All positions of an epoch.
    pub fn whole() -> Self {
        Self(vec![Stride(0, 1, None)])
    }

    /// Number of positions in an epoch with `count` entries.
    pub fn len(&self, count: u64) -> u64 {
        self.0.iter().map(|stride| stride.len(count)).fold(0, u64::saturating_add)
    }

    /// True if no position remains, whatever the number of entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Place of a position.
    pub(super) fn place_of(&self, position: u64) -> Option<u64> {
        let mut before = 0;
        for Stride(first, step, number) in &self.0 {
            if let Some(distance) = position.checked_sub(*first)
                && distance % step == 0
                && number.is_none_or(|number| distance / step < number)
            {
                return Some(before + distance / step);
            }
            before += (*number)?;
        }
        None
    }

    /// True if the strides are what [`Rest`] says, and their positions can be computed.
    pub(super) fn is_sound(&self) -> bool {
        let finite = |stride: &Stride| match *stride {
            Stride(first, step, Some(number)) => {
                step > 0
                    && number > 0
                    && (number - 1).checked_mul(step).and_then(|last| last.checked_add(first)).is_some()
            }
            Stride(.., None) => false,
        };
        let whole = |stride: &Stride| matches!(stride, Stride(_, 1, None)) || finite(stride);
        let number = self.0.iter().try_fold(0_u64, |sum, stride| sum.checked_add(stride.2.unwrap_or(0)));
        self.0.len() <= MAX_STRIDES
            && number.is_some()
            && self.0.split_last().is_none_or(|(last, others)| whole(last) && others.iter().all(finite))
    }
}

/// Sequence of positions with the places at which its strides begin: finds the position at a place in logarithmic time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    strides: Vec<Stride>,
    /// Place of the first position of each stride.
    starts: Vec<u64>,
}

impl Places {
    /// The positions of `rest` below `count`.
    pub(super) fn below(rest: &Rest, count: u64) -> Self {
        let mut strides = rest.0.clone();
        strides.iter_mut().for_each(|stride| stride.cut(count));
        let mut before = 0_u64;
        let starts = strides.iter().map(|stride| {
            let start = before;
            before = before.saturating_add(stride.2.unwrap_or(0));
            start
        });
        Self { starts: starts.collect(), strides }
    }

    /// Position at `place`. Beyond the last one, a position that no source has.
    pub(super) fn at(&self, place: u64) -> u64 {
        let stride = self.starts.partition_point(|start| *start <= place);
        let Some(stride) = stride.checked_sub(1) else { return u64::MAX };
        let within = place - self.starts[stride];
        match self.strides[stride] {
            Stride(.., Some(number)) if within >= number => u64::MAX,
            Stride(first, step, _) => first.saturating_add(within.saturating_mul(step)),
        }
    }

    /// Adds the positions at the places `start`, `start + step`, ..., `number` of them or all, as strides. Without a number, `step` is 1.
    pub(super) fn part(
        &self,
        mut start: u64,
        step: u64,
        mut number: Option<u64>,
        into: &mut Vec<Stride>,
    ) -> Result<(), TokenFault> {
        let from = self.starts.partition_point(|place| *place <= start).saturating_sub(1);
        for (Stride(first, distance, length), before) in self.strides[from..].iter().zip(&self.starts[from..])
        {
            if number == Some(0) {
                break;
            }
            let within = start - before;
            let here = match length {
                Some(length) if within >= *length => continue,
                Some(length) => Some((length - within).div_ceil(step)),
                None => None,
            };
            let taken = match (here, number) {
                (Some(here), Some(number)) => Some(here.min(number)),
                (here, number) => here.or(number),
            };
            if into.len() >= MAX_STRIDES {
                return Err(TokenFault::TooMany);
            }
            let overflow = || TokenFault::Damaged("a position is too large".to_owned());
            let begin = within
                .checked_mul(*distance)
                .and_then(|more| more.checked_add(*first))
                .ok_or_else(overflow)?;
            let distance = distance.checked_mul(step).ok_or_else(overflow)?;
            into.push(Stride(begin, distance, taken));
            let Some(taken) = taken else { break };
            start = taken.checked_mul(step).and_then(|more| more.checked_add(start)).ok_or_else(overflow)?;
            number = number.map(|number| number - taken);
        }
        Ok(())
    }
}
