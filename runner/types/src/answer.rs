//! Seed question number one: is data loading the bottleneck? Answered from the two waits of the sink.

/// Waits below this per item are none: no training step is so short that they could be felt.
pub const NOTHING_S: f64 = 0.001;

/// What the sink's waits say about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The sink waited for data more than for the consumer.
    Yes,
    /// The sink waited for the consumer more than for data.
    No,
    /// It waited for neither long enough to be felt.
    NothingWaits,
    /// Nothing was delivered.
    Unknown,
}

impl Answer {
    /// Compares the mean time one get of the sink waited for data (`upstream_s`) with the mean time one put waited for the
    /// consumer (`downstream_s`), both in seconds.
    pub fn of(upstream_s: Option<f64>, downstream_s: Option<f64>) -> Self {
        let (Some(upstream), Some(downstream)) = (upstream_s, downstream_s) else { return Self::Unknown };
        match (upstream > downstream, upstream.max(downstream) < NOTHING_S) {
            (_, true) => Self::NothingWaits,
            (true, false) => Self::Yes,
            (false, false) => Self::No,
        }
    }

    /// The answer in words.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Yes => "yes: the sink waits longer for data than for the consumer",
            Self::No => "no: the sink waits longer for the consumer than for data",
            Self::NothingWaits => "no: nothing waits long enough to be felt",
            Self::Unknown => "unknown: nothing was delivered",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Answer;

    #[test]
    fn the_longer_wait_decides_unless_both_are_too_short_to_be_felt() {
        // The three runs of seed 000.
        assert_eq!(Answer::of(Some(0.000_067_4), Some(0.000_000_7)), Answer::NothingWaits);
        assert_eq!(Answer::of(Some(0.000_015_7), Some(0.102_239_9)), Answer::No);
        assert_eq!(Answer::of(Some(0.100_867_3), Some(0.000_016_7)), Answer::Yes);
        assert_eq!(Answer::of(None, Some(0.1)), Answer::Unknown);
    }
}
