//! Positions that remain of an epoch, as a sequence of strides.

use serde::{Deserialize, Serialize};

use super::ranges::Range;
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

    /// Position behind the last one; `None` without an end.
    fn end(self) -> Option<u64> {
        let Self(first, step, number) = self;
        let last = |more: u64| first.saturating_add(more.saturating_mul(step));
        number.map(|number| number.checked_sub(1).map_or(first, |more| last(more).saturating_add(1)))
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

    /// True if the strides are what [`Rest`] says, and their positions can be computed.
    pub(super) fn is_sound(&self) -> bool {
        let finite = |stride: &Stride| match *stride {
            Stride(first, step, Some(number)) => {
                step > 0 && number > 0 && stepped(first, step, number - 1).is_ok()
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
    pub(super) is_ascending: bool,
    /// Position behind those of the strides with an end.
    end: u64,
}

impl Places {
    /// The positions of these strides.
    pub(super) fn new(strides: Vec<Stride>) -> Self {
        let starts = strides.iter().scan(0_u64, |before, stride| {
            Some(std::mem::replace(before, before.saturating_add(stride.2.unwrap_or(0))))
        });
        let is_ascending = strides.windows(2).all(|pair| pair[0].end().is_some_and(|end| end <= pair[1].0));
        let end = strides.iter().filter_map(|stride| stride.end()).max().unwrap_or(0);
        Self { starts: starts.collect(), is_ascending, end, strides }
    }

    /// The numbers of `gaps`, which ascend and are below `top`, and all from `top` on.
    pub(super) fn of_gaps(gaps: Vec<Range>, top: u64) -> Self {
        let gaps = gaps.into_iter().map(|(first, count)| Stride(first, 1, Some(count)));
        Self::new(gaps.chain([Stride(top, 1, None)]).collect())
    }

    /// The positions as ranges. Only for strides with the distance 1.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        self.strides.iter().map(|Stride(first, _, number)| (*first, number.unwrap_or(u64::MAX - first)))
    }

    /// First position of the last stride, and its place.
    pub(super) fn tail(&self) -> (u64, u64) {
        let last = self.strides.last().zip(self.starts.last());
        last.map_or((0, 0), |(Stride(first, ..), place)| (*first, *place))
    }

    /// The positions of `strides` below `count`.
    pub(super) fn below(strides: &[Stride], count: u64) -> Self {
        let mut strides = strides.to_vec();
        strides.iter_mut().for_each(|stride| stride.cut(count));
        Self::new(strides)
    }

    /// The same without the positions that are not below `count`, if the places of the others depend on these; `None` if they do not.
    pub(super) fn cut(&self, count: u64) -> Option<Self> {
        let is_same = self.is_ascending || self.end <= count;
        (!is_same).then(|| Self::below(&self.strides, count))
    }

    /// Number of positions below `count`.
    pub(super) fn len(&self, count: u64) -> u64 {
        if !self.is_ascending {
            return self.strides.iter().map(|stride| stride.len(count)).fold(0, u64::saturating_add);
        }
        let last = self.strides.partition_point(|stride| stride.0 < count).checked_sub(1);
        last.map_or(0, |last| self.starts[last].saturating_add(self.strides[last].len(count)))
    }

    /// Number of the stride with a place, and the number of the place in it.
    pub(super) fn stride_at(&self, place: u64) -> Option<(Stride, u64)> {
        let number = self.starts.partition_point(|start| *start <= place).checked_sub(1)?;
        let (stride, within) = (self.strides[number], place - self.starts[number]);
        stride.2.is_none_or(|number| within < number).then_some((stride, within))
    }

    /// Position at `place`. Beyond the last one, a position that no source has.
    pub(super) fn at(&self, place: u64) -> u64 {
        match self.stride_at(place) {
            Some((Stride(first, step, _), within)) => first.saturating_add(within.saturating_mul(step)),
            None => u64::MAX,
        }
    }

    /// Place of a position. Only for positions that ascend.
    pub(super) fn place_of(&self, position: u64) -> Option<u64> {
        debug_assert!(self.is_ascending, "strides that overlap are not searched");
        let number = self.strides.partition_point(|stride| stride.0 <= position).checked_sub(1)?;
        let Stride(first, step, length) = self.strides[number];
        let within = (position - first) / step;
        let is_there = (position - first).is_multiple_of(step) && length.is_none_or(|length| within < length);
        is_there.then(|| self.starts[number] + within)
    }

    /// Place at which the stride with this first position begins, and its number of positions. Only for strides in order.
    pub(super) fn stride_from(&self, first: u64) -> Option<(u64, u64)> {
        let number = self.strides.binary_search_by_key(&first, |stride| stride.0).ok()?;
        Some((self.starts[number], self.strides[number].2.unwrap_or(u64::MAX)))
    }

    /// Adds the positions at the places `start`, `start + step`, ..., `number` of them or all, as strides. Without a number, `step` is 1.
    /// Fails if there are more than `most` strides then.
    pub(super) fn part(
        &self,
        mut start: u64,
        step: u64,
        mut number: Option<u64>,
        most: usize,
        into: &mut Vec<Stride>,
    ) -> Result<(), TokenFault> {
        while number != Some(0)
            && let Some((Stride(first, distance, length), within)) = self.stride_at(start)
        {
            let here = length.map(|length| (length - within).div_ceil(step));
            let taken = match (here, number) {
                (Some(here), Some(number)) => Some(here.min(number)),
                (here, number) => here.or(number),
            };
            if into.len() >= most {
                return Err(TokenFault::TooMany);
            }
            into.push(Stride(stepped(first, distance, within)?, stepped(0, distance, step)?, taken));
            let Some(taken) = taken else { break };
            start = stepped(start, step, taken)?;
            number = number.map(|number| number - taken);
        }
        Ok(())
    }
}

/// The number `first + number * step`, if it is representable.
pub(super) fn stepped(first: u64, step: u64, number: u64) -> Result<u64, TokenFault> {
    let last = number.checked_mul(step).and_then(|more| more.checked_add(first));
    last.ok_or_else(|| TokenFault::Damaged("a position is too large".to_owned()))
}
