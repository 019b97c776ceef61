//! Comparison of two reports: the changes, with confidence intervals.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::report::{BenchReport, LatencyRange, LoadReport};

const CONFIDENCE: &str = "95 %";
/// 97.5th percentiles of Student's t distribution, for 1 degree of freedom and up.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// 97.5th percentile of the standard normal distribution, for confidence intervals of ranks.
const NORMAL: f64 = 1.96;

/// Changes from one report to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The result in one sentence.
    pub sentence: String,
    /// Remarks on the validity of the comparison.
    pub notes: Vec<String>,
    /// Comparisons of the loads that both reports have.
    pub cells: Vec<CellComparison>,
}

/// Changes of one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellComparison {
    /// Name of the load, e.g. `async 4x8`.
    pub load: String,
    /// Items per second. The confidence interval is for the mean over passes, by Welch's t test on logarithms.
    pub rate: Change,
    /// Median time of a read, in seconds, with a confidence interval by order statistics.
    pub median_s: Change,
    /// 99th percentile of the time of a read, in seconds, with a confidence interval by order statistics.
    pub p99_s: Change,
}

/// A figure before and after, and its change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Figure of the baseline.
    pub before: f64,
    /// Figure of the report that is compared with the baseline.
    pub after: f64,
    /// Relative change: 0.1 is an increase of 10 %.
    pub change: f64,
    /// Confidence interval of the relative change, at 95 %; `None` if too little was measured.
    pub between: Option<[f64; 2]>,
}

impl Change {
    fn new(before: f64, after: f64, between: Option<[f64; 2]>) -> Self {
        let change = if before > 0.0 { after / before - 1.0 } else { 0.0 };
        Self { before, after, change, between }
    }

    /// True if the change is significant: 0 lies outside the confidence interval.
    pub fn is_sure(&self) -> bool {
        self.between.is_some_and(|[low, high]| low > 0.0 || high < 0.0)
    }

    /// True if the whole confidence interval lies below `share`.
    pub fn is_surely_below(&self, share: f64) -> bool {
        self.between.is_some_and(|[_, high]| high < share)
    }
}

pub fn compare(before: &BenchReport, after: &BenchReport) -> Comparison {
    let mut others: Vec<&LoadReport> = after.cells().filter(|cell| cell.books.balanced).collect();
    let mut cells = Vec::new();
    for one in before.cells().filter(|cell| cell.books.balanced) {
        // Each load is compared once. If a report has several equal loads, they are paired in order.
        if let Some(place) = others.iter().position(|other| is_same_load(one, other)) {
            cells.push(compared(one, others.remove(place)));
        }
    }
    Comparison { sentence: sentence(&cells), notes: notes(before, after, cells.len()), cells }
}

fn is_same_load(one: &LoadReport, other: &LoadReport) -> bool {
    let of = |cell: &LoadReport| {
        let reads = (cell.mode, cell.workers, cell.in_flight, cell.batch_size);
        (reads, cell.prefetch, cell.assignment, cell.persistent)
    };
    of(one) == of(other)
}

fn compared(before: &LoadReport, after: &LoadReport) -> CellComparison {
    let quantile = |q: f64| {
        let [one, other] = [before, after].map(|cell| quantile(&cell.latencies, q).unwrap_or_default());
        let between = one.1.zip(other.1).map(|([low, high], [from, to])| [from / high - 1.0, to / low - 1.0]);
        Change::new(one.0, other.0, between)
    };
    let rates = |cell: &LoadReport| -> Vec<f64> { cell.passes.iter().map(|pass| pass.items_per_s).collect() };
    CellComparison {
        load: before.label(),
        rate: Change::new(before.items_per_s, after.items_per_s, welch(&rates(before), &rates(after))),
        median_s: quantile(0.5),
        p99_s: quantile(0.99),
    }
}

/// Confidence interval of the change of the mean (B. L. Welch, 1947), on logarithms, since rates are compared by their ratio.
fn welch(before: &[f64], after: &[f64]) -> Option<[f64; 2]> {
    let of = |rates: &[f64]| -> Option<(f64, f64, f64)> {
        let n = rates.len() as f64;
        if n < 2.0 || rates.iter().any(|rate| *rate <= 0.0) {
            return None;
        }
        let mean = rates.iter().map(|rate| rate.ln()).sum::<f64>() / n;
        let variance = rates.iter().map(|rate| (rate.ln() - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Some((mean, variance / n, n))
    };
    let ((one, one_error, one_n), (other, other_error, other_n)) = (of(before)?, of(after)?);
    let error = one_error + other_error;
    let difference = other - one;
    if error == 0.0 {
        return Some([difference.exp() - 1.0; 2]);
    }
    let freedom = error.powi(2) / (one_error.powi(2) / (one_n - 1.0) + other_error.powi(2) / (other_n - 1.0));
    // Rounding the degrees of freedom down makes the interval wider, never too narrow.
    let freedom = (freedom.floor() as usize).clamp(1, STUDENT.len());
    let t = STUDENT[freedom - 1];
    let reach = t * error.sqrt();
    Some([(difference - reach).exp() - 1.0, (difference + reach).exp() - 1.0])
}

/// Quantile `q`, and its confidence interval from the ranks that a binomial distribution allows. `None` if `ranges` is empty.
fn quantile(ranges: &[LatencyRange], q: f64) -> Option<(f64, Option<[f64; 2]>)> {
    let n = ranges.iter().map(|range| range.count as f64).sum::<f64>();
    let at = |rank: f64| {
        let mut seen = 0.0;
        ranges.iter().find(|range| {
            seen += range.count as f64;
            seen >= rank
        })
    };
    let rank = q * n;
    let reach = NORMAL * (n * q * (1.0 - q)).sqrt();
    let middle = at(rank.ceil().max(1.0))?;
    // If a rank lies beyond the first or the last read, the interval is unknown.
    let is_known = rank + reach <= n && rank - reach >= 1.0;
    // The interval ends at bounds of ranges, since the position of a time within its range is unknown.
    let between =
        at((rank - reach).floor()).zip(at((rank + reach).ceil())).map(|(low, high)| [low.from_s, high.to_s]);
    Some(((middle.from_s + middle.to_s) / 2.0, between.filter(|_| is_known)))
}

fn sentence(cells: &[CellComparison]) -> String {
    if cells.is_empty() {
        return "The reports have no load in common.".to_owned();
    }
    let count = |is: &dyn Fn(&Change) -> bool| {
        cells.iter().filter(|cell| cell.rate.is_sure() && is(&cell.rate)).count()
    };
    let (faster, slower) = (count(&|rate| rate.change > 0.0), count(&|rate| rate.change < 0.0));
    if faster + slower == 0 {
        return format!("No change in {} loads is significant at {CONFIDENCE} confidence.", cells.len());
    }
    let most = cells.iter().filter(|cell| cell.rate.is_sure());
    let most = most.max_by(|one, other| one.rate.change.abs().total_cmp(&other.rate.change.abs()));
    let most = most.map_or_else(String::new, |cell| {
        format!(
            "; the largest change is `{}`, by {:+.1} %, to {:.1} items/s",
            cell.load,
            cell.rate.change * 100.0,
            cell.rate.after
        )
    });
    format!(
        "Of {} loads, {faster} are faster and {slower} are slower, each with {CONFIDENCE} confidence{most}.",
        cells.len()
    )
}

fn notes(before: &BenchReport, after: &BenchReport, common: usize) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, report) in [("before", before), ("after", after)] {
        if !report.is_sound() {
            notes.push(format!(
                "The report {name} is not valid: the benchmark failed, items are missing, or the ledger of a load does not balance."
            ));
        }
        let passes = report.cells().map(|cell| cell.passes.len()).min().unwrap_or(0);
        if passes < 2 && common > 0 {
            notes.push(format!("The report {name} has a load with a single pass, which yields no confidence interval for the rate; set `repeats` to 2 or more."));
        }
    }
    let differ = [
        ("source", before.document.source != after.document.source),
        ("store", before.objects.kind != after.objects.kind),
        ("number of objects", before.objects.count != after.objects.count),
        ("bytes", before.objects.bytes != after.objects.bytes),
        ("stages", before.document.stages != after.document.stages),
        ("`on_error`", before.document.on_error != after.document.on_error),
        ("cache", before.document.cache != after.document.cache),
        ("machine", before.machine != after.machine),
    ];
    let differ: Vec<&str> =
        differ.into_iter().filter_map(|(what, differs)| differs.then_some(what)).collect();
    if !differ.is_empty() {
        notes.push(format!("The two reports also differ in: {}.", differ.join(", ")));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_within_the_noise_is_not_significant() {
        let between = welch(&[100.0, 110.0, 90.0], &[103.0, 95.0, 112.0]);
        assert!(!Change::new(100.0, 103.0, between).is_sure());
        let between = welch(&[100.0, 101.0, 99.0], &[80.0, 81.0, 79.0]);
        let change = Change::new(100.0, 80.0, between);
        assert!(
            change.is_sure() && change.is_surely_below(-0.1) && !change.is_surely_below(-0.3),
            "{change:?}"
        );
        assert_eq!(welch(&[100.0], &[80.0, 81.0]), None);
    }

    #[test]
    fn welchs_interval_agrees_with_the_textbook() {
        // For the logarithms 0, 1, 2 and 3, 4, 8, the means differ by 4, the standard error is sqrt(1/3 + 7/3), and the 2.54
        // degrees of freedom are rounded down to 2.
        let e = |logarithms: [f64; 3]| logarithms.map(f64::exp);
        let [low, high] = welch(&e([0.0, 1.0, 2.0]), &e([3.0, 4.0, 8.0])).unwrap();
        let reach = 4.303 * (8.0_f64 / 3.0).sqrt();
        assert!(((low + 1.0).ln() - (4.0 - reach)).abs() < 1e-9);
        assert!(((high + 1.0).ln() - (4.0 + reach)).abs() < 1e-9);
    }

    #[test]
    fn a_quantile_lies_between_the_ranks_around_it() {
        let ranges: Vec<LatencyRange> = (0..100)
            .map(|ms| LatencyRange { from_s: f64::from(ms) / 1e3, to_s: f64::from(ms + 1) / 1e3, count: 10 })
            .collect();
        let (median, between) = quantile(&ranges, 0.5).unwrap();
        let [low, high] = between.unwrap();
        let found = [median, low, high].map(|time| (time * 1e4).round());
        assert_eq!(found, [495.0, 460.0, 540.0]);
        assert_eq!(quantile(&ranges[..10], 0.999).unwrap().1, None);
        assert_eq!(quantile(&[], 0.5), None);
    }
}
