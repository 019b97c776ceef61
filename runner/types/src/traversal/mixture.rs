//! Order in which a mixture draws from its sources.
//!
//! The positions of an epoch are divided into blocks. In each whole block a source of weight `w` is drawn exactly `w` times (or a
//! multiple of `w` times), so the shares of the sources hold for every block, whatever part of the positions a rank visits. The draws of
//! a source have the numbers 0, 1, 2... in the order of their positions. Number and source follow from the position alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Permutation, mix};

/// Order of the draws within a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pick {
    /// Spreads the draws of each source evenly. Blocks begin at different places of the same order: otherwise a rank whose stride
    /// divides the length of a block would always visit the same sources.
    #[default]
    Even,
    /// Permutes the draws of each block.
    Random,
}

/// End of an epoch of a mixture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// Ends after the last sample of the source that ends first.
    First,
    /// Ends after each sample of each source was drawn once. From the end of a source on, the weights hold among the others.
    #[default]
    All,
    /// Ends when each source was drawn completely at least once. Sources that end earlier start again.
    Cycle,
    /// Ends after this number of samples. Sources that end earlier start again.
    Samples(u64),
}

/// A source of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of samples in one pass over the source.
    pub len: u64,
    /// Weight in relation to the other sources; with 0, the source is never drawn.
    pub weight: u32,
}

/// A draw from a source of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Position of the source in the list of parts.
    pub part: usize,
    /// Number of passes over the source that ended before this draw, within this epoch.
    pub pass: u32,
    /// Position within the pass, from 0.
    pub position: u64,
}

/// Reason why sources cannot be mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixtureFault {
    /// No source has a weight.
    #[error("all weights are 0, so that no source would be drawn")]
    NoWeight,
    /// The weights need blocks that are too long.
    #[error(
        "the weights have the sum {sum} after division by their common divisor, more than the limit of {MAX_WEIGHTS}; use smaller numbers"
    )]
    LargeWeights {
        /// Sum of the reduced weights.
        sum: u64,
    },
    /// A source that would be drawn has no samples.
    #[error("the source at position {part} has no samples; give it the weight 0, or remove it")]
    Empty {
        /// Position of the source in the list of parts.
        part: usize,
    },
}

/// Maximum sum of the weights, after division by their greatest common divisor.
pub const MAX_WEIGHTS: u64 = 65_536;

/// Aimed number of draws in a block that is permuted: long enough that its order looks random, short enough to be computed in
/// milliseconds.
const RANDOM_BLOCK: u64 = 65_536;

/// Maximum number of rounds over the weights in one block.
const MAX_ROUNDS: u64 = 1000;

/// The order of draws of an epoch. Memory is that of one block.
#[derive(Clone, Debug)]
pub struct Mixture {
    parts: Vec<Part>,
    stop: Stop,
    /// Parts of the epoch in which the same sources are drawn, in order; at least one.
    phases: Vec<Phase>,
    len: u64,
}

/// Positions at which the same sources are drawn.
#[derive(Clone, Debug)]
struct Phase {
    /// First position of the phase.
    start: u64,
    /// Number of draws of each source before the phase.
    drawn: Vec<u64>,
    blocks: Blocks,
}

/// A sequence of blocks without end.
#[derive(Clone, Debug)]
struct Blocks {
    pick: Pick,
    key: u64,
    /// Number of draws of each source in a block.
    quotas: Vec<u64>,
    /// Sources of the draws of a block, in even order.
    order: Vec<u16>,
    /// Block whose draws are computed, with the source and the number within the block of each draw.
    current: Option<(u64, Vec<(u16, u32)>)>,
}

impl Mixture {
    /// The order for these sources, which is the same in every epoch: what differs is the order within the sources.
    pub fn new(parts: &[Part], pick: Pick, stop: Stop, seed: u64) -> Result<Self, MixtureFault> {
        check_weights(&parts.iter().map(|part| part.weight).collect::<Vec<_>>())?;
        if let Some(part) = parts.iter().position(|part| part.len == 0 && part.weight > 0) {
            return Err(MixtureFault::Empty { part });
        }
        let mut mixture = Self { parts: parts.to_vec(), stop, phases: Vec::new(), len: 0 };
        let mut drawn = vec![0; parts.len()];
        loop {
            let left: Vec<u64> = parts.iter().zip(&drawn).map(|(part, drawn)| part.len - drawn).collect();
            let weight = |(part, left): (&Part, &u64)| if *left > 0 { u64::from(part.weight) } else { 0 };
            let weights: Vec<u64> = parts.iter().zip(&left).map(weight).collect();
            if weights.iter().all(|weight| *weight == 0) {
                return Ok(mixture);
            }
            let number = mixture.phases.len() as u64;
            let mut blocks = Blocks::new(&weights, pick, seed ^ mix(number << 32));
            let start = mixture.len;
            let length = match stop {
                Stop::First | Stop::All => blocks.end_of_one(&left),
                Stop::Cycle => blocks.end_of_all(&left),
                Stop::Samples(samples) => samples,
            };
            mixture.len += length;
            let next = match stop {
                Stop::All => Some(blocks.drawn_before(length)),
                Stop::First | Stop::Cycle | Stop::Samples(_) => None,
            };
            mixture.phases.push(Phase { start, drawn: drawn.clone(), blocks });
            let Some(more) = next else { return Ok(mixture) };
            drawn.iter_mut().zip(more).for_each(|(drawn, more)| *drawn += more);
        }
    }

    /// Number of draws in the epoch.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if the epoch has no draw, which only a number of samples of 0 causes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of passes over a source that an epoch begins.
    pub fn passes(&self, part: usize) -> u32 {
        let Some(last) = self.phases.last() else { return 0 };
        let mut blocks = last.blocks.clone();
        let drawn = last.drawn[part] + blocks.drawn_before(self.len - last.start)[part];
        u32::try_from(drawn.div_ceil(self.parts[part].len.max(1))).unwrap_or(u32::MAX)
    }

    /// Positions at which sources are drawn for the last time while others continue, with these sources; in order.
    pub fn changes(&self) -> impl Iterator<Item = u64> {
        self.phases.iter().skip(1).map(|phase| phase.start)
    }

    /// The draw at `position`, which is below [`Self::len`]. Positions that follow each other are fast.
    pub fn at(&mut self, position: u64) -> Draw {
        let phase = self.phases.partition_point(|phase| phase.start <= position) - 1;
        let phase = &mut self.phases[phase];
        let (part, number) = phase.blocks.at(position - phase.start);
        let slot = phase.drawn[part] + number;
        let len = self.parts[part].len;
        match self.stop {
            Stop::First | Stop::All => Draw { part, pass: 0, position: slot },
            Stop::Cycle | Stop::Samples(_) => {
                Draw { part, pass: u32::try_from(slot / len).unwrap_or(u32::MAX), position: slot % len }
            }
        }
    }
}

/// Checks that sources of these weights can be mixed, whatever their lengths.
pub fn check_weights(weights: &[u32]) -> Result<(), MixtureFault> {
    let weights: Vec<u64> = weights.iter().map(|weight| (*weight).into()).collect();
    match reduced(&weights).iter().sum() {
        0 => Err(MixtureFault::NoWeight),
        sum if sum > MAX_WEIGHTS => Err(MixtureFault::LargeWeights { sum }),
        _ => Ok(()),
    }
}

/// Weights divided by their greatest common divisor.
fn reduced(weights: &[u64]) -> Vec<u64> {
    let divisor = weights.iter().fold(0, |all, weight| divisor(all, *weight)).max(1);
    weights.iter().map(|weight| weight / divisor).collect()
}

/// Greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

impl Blocks {
    fn new(weights: &[u64], pick: Pick, key: u64) -> Self {
        let weights = reduced(weights);
        let sum: u64 = weights.iter().sum();
        let rounds = match pick {
            Pick::Even => 1,
            Pick::Random => (RANDOM_BLOCK / sum).clamp(1, MAX_ROUNDS),
        };
        // The draw `number` of a source with weight `weight` is due in the middle of its part of the block: (2 number + 1) / weight.
        let mut due: Vec<(u128, u16)> = Vec::new();
        for (part, &weight) in weights.iter().enumerate() {
            let times =
                (0..weight).map(|number| u128::from(2 * number + 1) * u128::from(u64::MAX / weight.max(1)));
            due.extend(times.map(|time| (time, part as u16)));
        }
        due.sort_unstable();
        let quotas = weights.iter().map(|weight| weight * rounds).collect();
        Self { pick, key, quotas, order: due.into_iter().map(|(_, part)| part).collect(), current: None }
    }

    /// Number of draws in a block.
    fn len(&self) -> u64 {
        self.quotas.iter().sum()
    }

    /// Source of the draw at this position, and number of earlier draws of this source.
    fn at(&mut self, position: u64) -> (usize, u64) {
        let (block, within) = (position / self.len(), position % self.len());
        let (part, number) = self.block(block)[within as usize];
        (part.into(), block * self.quotas[usize::from(part)] + u64::from(number))
    }

    /// Source of each draw of a block, and number of earlier draws of this source in the block.
    fn block(&mut self, block: u64) -> &[(u16, u32)] {
        if self.current.as_ref().is_none_or(|(current, _)| *current != block) {
            let mut counts = vec![0; self.quotas.len()];
            let length = self.len();
            let key = self.key ^ mix(block.wrapping_add(1));
            let permutation = Permutation::new(length, key, 0);
            let draws = (0..length).map(|at| {
                let round = self.order.len() as u64;
                let place = match self.pick {
                    Pick::Even => (at + mix(key) % round) % round,
                    Pick::Random => permutation.at(at) % round,
                };
                let part = self.order[place as usize];
                let number = counts[usize::from(part)];
                counts[usize::from(part)] += 1;
                (part, number)
            });
            self.current = Some((block, draws.collect()));
        }
        self.current.as_ref().map_or(&[], |(_, draws)| draws)
    }

    /// Number of positions until one source was drawn as often as `left` says.
    fn end_of_one(&mut self, left: &[u64]) -> u64 {
        let block = self.last_blocks(left).map(|(_, block)| block).min().unwrap_or(0);
        self.ends(block, left).min().unwrap_or(0)
    }

    /// Number of positions until each source was drawn as often as `left` says.
    fn end_of_all(&mut self, left: &[u64]) -> u64 {
        let block = self.last_blocks(left).map(|(_, block)| block).max().unwrap_or(0);
        self.ends(block, left).max().unwrap_or(0)
    }

    /// Sources that are drawn, each with the block that contains the last of its `left` draws.
    fn last_blocks(&self, left: &[u64]) -> impl Iterator<Item = (usize, u64)> {
        let quotas = self.quotas.iter().zip(left).enumerate().filter(|(_, (quota, _))| **quota > 0);
        quotas.map(|(part, (quota, left))| (part, (left - 1) / quota))
    }

    /// Number of positions until the last draw of each source that has its last draw in `block`.
    fn ends(&mut self, block: u64, left: &[u64]) -> impl Iterator<Item = u64> {
        let last: Vec<(u16, u32)> = self
            .last_blocks(left)
            .filter(|(_, last)| *last == block)
            .map(|(part, _)| (part as u16, ((left[part] - 1) % self.quotas[part]) as u32))
            .collect();
        let start = block.saturating_mul(self.len());
        let draws = self.block(block).iter().zip(1..);
        draws.filter(move |(draw, _)| last.contains(draw)).map(move |(_, place)| start.saturating_add(place))
    }

    /// Number of draws of each source before `position`.
    fn drawn_before(&mut self, position: u64) -> Vec<u64> {
        let (block, within) = (position / self.len(), position % self.len());
        let mut drawn: Vec<u64> = self.quotas.iter().map(|quota| quota * block).collect();
        for (part, _) in &self.block(block)[..within as usize] {
            drawn[usize::from(*part)] += 1;
        }
        drawn
    }
}

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;

    fn parts() -> impl Strategy<Value = Vec<Part>> {
        let part = (1_u64..300, 0_u32..7).prop_map(|(len, weight)| Part { len, weight });
        proptest::collection::vec(part, 1..6)
            .prop_filter("one is drawn", |parts| parts.iter().any(|part| part.weight > 0))
    }

    fn picks() -> impl Strategy<Value = Pick> {
        prop_oneof![Just(Pick::Even), Just(Pick::Random)]
    }

    fn draws(mixture: &mut Mixture) -> Vec<Draw> {
        (0..mixture.len()).map(|position| mixture.at(position)).collect()
    }

    proptest! {
        #[test]
        fn each_sample_is_drawn_once_in_order_and_the_shares_hold_until_a_source_ends(
            parts in parts(), pick in picks(), seed: u64,
        ) {
            let mut mixture = Mixture::new(&parts, pick, Stop::All, seed).unwrap();
            let all = draws(&mut mixture);
            for (number, part) in parts.iter().enumerate() {
                let positions: Vec<u64> = all.iter().filter(|draw| draw.part == number).map(|draw| draw.position).collect();
                let expected: Vec<u64> = if part.weight > 0 { (0..part.len).collect() } else { Vec::new() };
                prop_assert_eq!(positions, expected);
            }
            let first = Mixture::new(&parts, pick, Stop::First, seed).unwrap();
            prop_assert_eq!(first.len(), mixture.changes().next().unwrap_or(mixture.len()));
            let quotas = mixture.phases[0].blocks.quotas.clone();
            let block = quotas.iter().sum::<u64>() as usize;
            let before = &all[..first.len() as usize];
            for whole in before.chunks_exact(block) {
                for (number, quota) in quotas.iter().enumerate() {
                    prop_assert_eq!(whole.iter().filter(|draw| draw.part == number).count() as u64, *quota);
                }
            }
        }

        #[test]
        fn positions_in_any_order_and_of_any_rank_have_the_same_draws(
            parts in parts(), pick in picks(), seed: u64, world in 1_usize..9, stop in prop_oneof![
                Just(Stop::First), Just(Stop::All), Just(Stop::Cycle), (0_u64..2000).prop_map(Stop::Samples)],
        ) {
            let new = || Mixture::new(&parts, pick, stop, seed).unwrap();
            let all = draws(&mut new());
            for rank in 0..world {
                let mut mixture = new();
                for position in (rank..all.len()).step_by(world).rev() {
                    prop_assert_eq!(mixture.at(position as u64), all[position]);
                }
            }
        }

        #[test]
        fn sources_that_end_start_again(parts in parts(), pick in picks(), seed: u64, samples in 0_u64..3000) {
            let mut cycle = Mixture::new(&parts, pick, Stop::Cycle, seed).unwrap();
            let all = draws(&mut cycle);
            for (number, part) in parts.iter().enumerate().filter(|(_, part)| part.weight > 0) {
                let of: Vec<_> = all.iter().filter(|draw| draw.part == number).collect();
                for (at, draw) in of.iter().enumerate() {
                    prop_assert_eq!((u64::from(draw.pass), draw.position), (at as u64 / part.len, at as u64 % part.len));
                }
                prop_assert!(of.len() as u64 >= part.len);
            }
            // The last draw completes the source that is complete last.
            let last = all.last().unwrap();
            let len = parts[last.part].len;
            prop_assert!(last.pass == 0 && last.position == len - 1);
            let mut some = Mixture::new(&parts, pick, Stop::Samples(samples), seed).unwrap();
            prop_assert_eq!(some.len(), samples);
            let both = samples.min(cycle.len());
            for position in 0..both {
                prop_assert_eq!(some.at(position), all[position as usize]);
            }
        }
    }

    #[test]
    fn even_draws_of_a_source_are_as_far_apart_as_its_weight_says() {
        let parts = [Part { len: 4000, weight: 4 }, Part { len: 1000, weight: 1 }];
        let mut mixture = Mixture::new(&parts, Pick::Even, Stop::First, 3).unwrap();
        let rare: Vec<usize> = draws(&mut mixture)
            .iter()
            .enumerate()
            .filter(|(_, draw)| draw.part == 1)
            .map(|(at, _)| at)
            .collect();
        assert!(rare.windows(2).all(|pair| (1..10).contains(&(pair[1] - pair[0]))), "{rare:?}");
    }

    #[test]
    fn no_rank_misses_a_source() {
        let parts = [Part { len: 10_000, weight: 1 }, Part { len: 10_000, weight: 1 }];
        for pick in [Pick::Even, Pick::Random] {
            let mut mixture = Mixture::new(&parts, pick, Stop::All, 0).unwrap();
            for world in [2, 4, 8] {
                let first = (0..1000).filter(|step| mixture.at(step * world).part == 0).count();
                assert!((400..600).contains(&first), "{first} of 1,000 draws of rank 0 of {world}, {pick:?}");
            }
        }
    }

    #[test]
    fn seeds_have_orders_of_their_own() {
        let parts = [Part { len: 500, weight: 2 }, Part { len: 500, weight: 3 }];
        let order = |seed| {
            let mut mixture = Mixture::new(&parts, Pick::Random, Stop::First, seed).unwrap();
            (0..100).map(|position| mixture.at(position).part).collect::<Vec<_>>()
        };
        assert_ne!(order(0), order(1));
        assert_eq!(order(5), order(5));
    }

    #[test]
    fn sources_that_cannot_be_mixed_are_refused() {
        let fault = |parts: &[(u64, u32)]| {
            let parts: Vec<Part> = parts.iter().map(|&(len, weight)| Part { len, weight }).collect();
            Mixture::new(&parts, Pick::Even, Stop::All, 0).unwrap_err()
        };
        assert_eq!(fault(&[(3, 0), (4, 0)]), MixtureFault::NoWeight);
        assert_eq!(fault(&[(3, 1), (0, 4)]), MixtureFault::Empty { part: 1 });
        assert_eq!(fault(&[(3, 65_536), (4, 1)]), MixtureFault::LargeWeights { sum: 65_537 });
    }

    #[test]
    fn large_sources_take_no_list() {
        let parts = [Part { len: 1 << 60, weight: 1000 }, Part { len: 1 << 60, weight: 1 }];
        let mut mixture = Mixture::new(&parts, Pick::Random, Stop::All, 0).unwrap();
        assert_eq!(mixture.len(), 1 << 61);
        assert_eq!(mixture.at((1 << 61) - 1).position, (1 << 60) - 1);
        let parts = parts.map(|part| Part { len: 1 << 50, ..part });
        let mut cycle = Mixture::new(&parts, Pick::Even, Stop::Cycle, 0).unwrap();
        assert_eq!(cycle.len().div_ceil(1001), 1 << 50);
        assert_eq!(cycle.at(cycle.len() - 1), Draw { part: 1, pass: 0, position: (1 << 50) - 1 });
    }
}
