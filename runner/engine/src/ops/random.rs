//! Random numbers that are the same for any number of threads and in any order: each is a hash of its purpose, not the next
//! draw of a shared generator.

use crate::item::Origin;

/// A short sequence of random numbers for one purpose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn named(seed: u64, name: &str) -> Self {
        let named = name.bytes().fold(mix(seed), |state, byte| mix(state ^ u64::from(byte)));
        Self(mix(named ^ name.len() as u64))
    }

    pub(crate) fn at(self, origin: &Origin) -> Self {
        self.nth(u64::from(origin.epoch)).nth(origin.index).nth(origin.path)
    }

    pub(crate) fn nth(self, n: u64) -> Self {
        Self(mix(self.0 ^ mix(n)))
    }

    /// Next number, from 0.0 to just below 1.0.
    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // 53 bits, which an f64 represents exactly.
        (mix(self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Step of SplitMix64: each input bit affects about half of the output bits, and 0 is not mapped to 0.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_seed_name_and_every_part_of_the_origin() {
        let origin = Origin { epoch: 1, index: 2, path: 3, ..Origin::default() };
        let first = |random: Random, origin: Origin| random.at(&origin).next();
        let base = first(Random::named(7, "delay"), origin);
        assert_eq!(base, first(Random::named(7, "delay"), origin));
        for other in [
            first(Random::named(8, "delay"), origin),
            first(Random::named(7, "delays"), origin),
            first(Random::named(7, "delay"), Origin { epoch: 2, index: 1, path: 3, ..Origin::default() }),
            first(Random::named(7, "delay"), Origin { epoch: 1, index: 3, path: 2, ..Origin::default() }),
            first(Random::named(7, "delay"), Origin { path: 0, ..origin }),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn numbers_are_spread_evenly() {
        let random = Random::named(1, "a");
        let mut tenths = [0_u32; 10];
        for n in 0..10_000 {
            let number = random.nth(n).next();
            tenths[(number * 10.0) as usize] += 1;
        }
        // 1000 values are expected in each tenth of the interval, with a standard deviation of 30.
        assert!(tenths.iter().all(|count| (850..1150).contains(count)), "{tenths:?}");
    }
}
