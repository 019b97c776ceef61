//! Random numbers that are the same on every machine.

/// SplitMix64 generator: small, fast, and sufficient for synthetic data.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates the generator for `seed` and `stream`; streams of one seed are independent.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream.wrapping_add(1))))
    }

    /// Returns 64 random bits.
    pub(crate) fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number from `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: i32, most: i32) -> i32 {
        let span = i64::from(most) - i64::from(least) + 1;
        // The upper 32 bits times the span, scaled down: as uniform as 32 bits allow.
        let offset = ((self.next_bits() >> 32).cast_signed() * span) >> 32;
        (i64::from(least) + offset) as i32
    }

    /// Returns true once in `times`, on average.
    pub(crate) fn one_in(&mut self, times: i32) -> bool {
        self.between(1, times) == 1
    }
}

fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
