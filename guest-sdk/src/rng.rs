//! Random numbers that depend only on the item's seed.

use std::ops::Range;

/// Small, fast random generator (SplitMix64) for augmentation. Not for cryptography.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Creates a generator whose sequence depends on `seed` alone.
    pub fn from_seed(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Next uniformly distributed `u64`.
    pub fn u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniformly distributed whole number below `bound`.
    ///
    /// # Panics
    /// Panics if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "the bound of a random number must be above 0");
        // Multiplies and shifts; draws again for the few low products that would bias the result.
        let unfair = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.u64()) * u128::from(bound);
            if product as u64 >= unfair {
                return (product >> 64) as u64;
            }
        }
    }

    /// Uniformly distributed index into a sequence of length `len`.
    ///
    /// # Panics
    /// Panics if `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Uniformly distributed number from 0.0 up to but not including 1.0.
    pub fn unit(&mut self) -> f64 {
        // Uses the upper 53 bits: the precision of an f64.
        (self.u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniformly distributed number from `range.start` up to but not including `range.end`.
    pub fn between(&mut self, range: Range<f64>) -> f64 {
        range.start + self.unit() * (range.end - range.start)
    }

    /// Returns `true` with this probability, 0.0 to 1.0.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Puts `values` into a random order, with all orders equally likely.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        // Output of the reference implementation of SplitMix64 for the seed 1234567.
        let mut rng = Rng::from_seed(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| rng.u64()).collect();
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn numbers_below_a_bound_are_spread_evenly() {
        let mut rng = Rng::from_seed(1);
        let mut counts = [0_u32; 3];
        for _ in 0..30_000 {
            counts[rng.index(3)] += 1;
        }
        assert!(counts.iter().all(|count| (9_700..=10_300).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_shuffle_keeps_every_value() {
        let mut values: Vec<u32> = (0..100).collect();
        Rng::from_seed(3).shuffle(&mut values);
        assert_ne!(values, (0..100).collect::<Vec<_>>());
        values.sort_unstable();
        assert_eq!(values, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn reals_stay_inside_their_range() {
        let mut rng = Rng::from_seed(9);
        assert!((0..10_000).map(|_| rng.between(-2.0..3.0)).all(|drawn| (-2.0..3.0).contains(&drawn)));
        assert!(!rng.chance(0.0) && rng.chance(1.0));
    }
}
