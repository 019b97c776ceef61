//! Detection of growth: a slope that is robust against outliers, with its confidence interval.

/// Figures of one kind over time, at equal intervals.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// Tolerated growth over the whole time, even if it is statistically significant.
    pub(crate) tolerance: f64,
    pub(crate) values: Vec<f64>,
}

/// Growth over the whole time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Growth {
    /// Theil-Sen estimate: the median of the slopes of all pairs.
    pub(crate) median: f64,
    /// Lower bound of the 99 % confidence interval.
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Values within one block of time count as one, by their median: adjacent values are correlated, which would make the interval
/// too narrow.
const BLOCKS: usize = 60;
/// Half the width of the interval with 99 % of a normal distribution, in standard deviations.
const NORMAL_99: f64 = 2.576;
/// Number of rows and columns of a chart.
const HEIGHT: usize = 6;
const WIDTH: usize = 60;

impl Series {
    /// Medians of up to sixty blocks.
    fn blocks(&self) -> Vec<f64> {
        let count = BLOCKS.min(self.values.len());
        let edge = |block: usize| block * self.values.len() / count;
        (0..count).map(|block| median(self.values[edge(block)..edge(block + 1)].to_vec())).collect()
    }

    pub(crate) fn growth(&self) -> Growth {
        let blocks = self.blocks();
        let n = blocks.len();
        let length = n.saturating_sub(1) as f64;
        let pairs = (0..n).flat_map(|late| (0..late).map(move |early| (early, late)));
        let mut slopes: Vec<f64> = pairs
            .map(|(early, late)| (blocks[late] - blocks[early]) / (late - early) as f64 * length)
            .collect();
        slopes.sort_by(f64::total_cmp);
        // Number of slopes below the confidence interval, and above it. The root is the standard deviation of Kendall's S without
        // a trend.
        let n = n as f64;
        let beside =
            (slopes.len() as f64 - NORMAL_99 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt()) / 2.0;
        if slopes.is_empty() || beside < 0.0 {
            // Too few values for an interval.
            return Growth { median: 0.0, least: f64::NEG_INFINITY, most: f64::INFINITY };
        }
        let beside = beside as usize;
        Growth { least: slopes[beside], most: slopes[slopes.len() - 1 - beside], median: median(slopes) }
    }

    /// True if the value grows: even the lower bound of the interval exceeds the tolerance. The interval alone would report a
    /// drift of a page per hour, and a fixed bound alone would report noise.
    pub(crate) fn grows(&self) -> bool {
        self.growth().least > self.tolerance
    }

    /// The figures as lines of text: a chart, and a summary.
    pub(crate) fn picture(&self) -> String {
        let blocks = self.blocks();
        let (low, high) = blocks
            .iter()
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
        let range = (high - low).max(self.tolerance).max(f64::MIN_POSITIVE);
        let eighths = |value: f64| ((value - low) / range * (HEIGHT * 8 - 1) as f64) as usize + 1;
        let mut text = String::new();
        for row in (0..HEIGHT).rev() {
            let column = |at: usize| {
                let filled = eighths(blocks[at * blocks.len() / WIDTH]).saturating_sub(row * 8).min(8);
                [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][filled]
            };
            let edge = low + range * row as f64 / HEIGHT as f64;
            text.push_str(&format!("{edge:12.2} |{}\n", (0..WIDTH).map(column).collect::<String>()));
        }
        let Growth { median, least, most } = self.growth();
        let verdict = if self.grows() { "GROWS" } else { "steady" };
        let Self { name, unit, tolerance, .. } = self;
        format!(
            "{name}, {unit}: {verdict}; growth over the whole time {median:+.3}, in 99 of 100 cases {least:+.3} to {most:+.3}, \
             tolerated {tolerance:+.3}\n{text}"
        )
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use penstock_tests::Chance;

    use super::*;

    /// An hour of values around 100 that grow by `growth` in total, with a noise of up to 5 and steps that persist for a while.
    fn noisy(seed: u64, growth: f64) -> Series {
        let mut chance = Chance::new(seed);
        let mut step = 0.0;
        let values = (0..1800).map(|at| {
            if chance.once_in(100) {
                step = chance.below(5) as f64;
            }
            100.0 + step + chance.below(100) as f64 / 100.0 + growth * f64::from(at) / 1800.0
        });
        Series { name: "memory", unit: "MiB", tolerance: 4.0, values: values.collect() }
    }

    #[test]
    fn a_slope_is_found_in_noise_and_none_where_there_is_none() {
        for seed in 0..50 {
            assert!(!noisy(seed, 0.0).grows(), "{}", noisy(seed, 0.0).picture());
            assert!(!noisy(seed, -20.0).grows());
            let leak = noisy(seed, 15.0);
            assert!(leak.grows(), "{}", leak.picture());
            let Growth { median, least, most } = leak.growth();
            assert!(least <= median && median <= most && (10.0..20.0).contains(&median), "{median}");
        }
    }

    #[test]
    fn a_single_peak_is_no_growth_and_few_values_are_no_proof() {
        let mut peak = noisy(1, 0.0);
        peak.values[1500..1520].fill(10_000.0);
        assert!(!peak.grows());
        for few in 0..4 {
            assert!(!Series { values: (0..few).map(f64::from).collect(), ..noisy(1, 0.0) }.grows());
        }
    }
}
