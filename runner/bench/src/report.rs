//! Report of a benchmark: one JSON document, the basis of all tables and charts.

use std::collections::BTreeMap;

use penstock_types::config::BenchStoreKind;
use penstock_types::series::TimeBucket;
use penstock_types::stats::share;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::accelerator::AcceleratorReport;
pub use crate::books::{LoadBooks, LoadBooksCheck};
pub use crate::counterfactual::Counterfactual;
pub use crate::failures::ReadFailures;
use crate::spec::{Assignment, BenchSpec, LoadMode};

pub const REPORT_VERSION: u32 = 1;

/// Parts of a read, in order; the wait for a permit precedes these parts.
const READ_PARTS: [&str; 5] = ["retry", "connect", "first_byte", "body", "verify"];
/// Number of bins of `latency_bins` for each power of ten: each bin is 10 % wide.
const BINS_PER_DECADE: f64 = 24.0;

/// Report of a storage benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchReport {
    pub version: u32,
    pub name: String,
    /// Start of the benchmark, RFC 3339.
    pub started_at: String,
    /// Duration of the whole benchmark, in seconds.
    pub elapsed_s: f64,
    /// Outcome of the benchmark.
    pub state: ReportState,
    pub reason: Option<String>,
    /// True if the ledger of every load balances; the figures of a load whose ledger does not balance are void.
    pub balanced: bool,
    /// Conclusions, one sentence each.
    pub findings: Vec<String>,
    /// Program that ran the benchmark, e.g. `penstock 0.1.0`.
    pub program: String,
    pub machine: MachineFacts,
    /// Document of the benchmark, with the defaults filled in.
    pub document: BenchSpec,
    /// Objects that were read.
    pub objects: ObjectsReport,
    /// Results of the actions, in order.
    pub actions: Vec<ActionReport>,
    /// Number of accelerators that the storage can feed; `null` if the document does not request this search.
    pub accelerators: Option<AcceleratorReport>,
    /// Results of the fastest load with one part at a time replaced by a substitute that takes almost no time; empty if the
    /// document does not request them.
    pub counterfactuals: Vec<Counterfactual>,
}

/// Hardware of the machine that ran the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineFacts {
    /// Number of cores that the process may use.
    pub cores: u32,
    /// Memory size in bytes; `null` if the system does not report it.
    pub memory_bytes: Option<u64>,
}

/// Outcome of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReportState {
    /// Completed: all actions ran to their ends.
    Completed,
    /// Ended by an error; the report contains the measurements made before the error.
    Failed,
    /// Stopped by the user.
    Stopped,
}

/// Objects of a benchmark, or samples of a format, with their sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectsReport {
    /// Name of the store.
    pub store: String,
    pub kind: BenchStoreKind,
    pub count: u64,
    /// Total size in bytes; `null` if sizes were not read. For samples, their number times the mean size that the format states.
    pub bytes: Option<u64>,
    pub min_bytes: Option<u64>,
    pub median_bytes: Option<u64>,
    pub max_bytes: Option<u64>,
    /// Time that listing the objects, or loading or making the index, took, in seconds.
    pub index_s: f64,
    /// Time that reading all sizes took, in seconds; `null` if sizes were not read.
    pub survey_s: Option<f64>,
    /// Time that reading all objects once into the page cache took, in seconds; `null` if they were not read for this purpose.
    pub warmed_s: Option<f64>,
}

/// Result of an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionReport {
    /// Loads of a grid, one for each mode and number of workers.
    WholeSet(Vec<LoadReport>),
    /// Repetitions of a small action.
    Calls(CallsReport),
}

/// Repetitions of a small action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallsReport {
    pub action: String,
    /// Number of repetitions that ran at a time; 0 if they ran one after another.
    pub pool: u32,
    pub time: Spread,
    pub elapsed_s: f64,
    /// Number of repetitions per second.
    pub per_s: f64,
    /// Number of bytes read or copied.
    pub bytes: u64,
    pub failures: Vec<ReadFailures>,
}

/// Results of one load: a mode with a number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadReport {
    /// Read mode of the workers.
    pub mode: LoadMode,
    pub workers: u32,
    /// Maximum number of reads that one worker has in flight.
    pub in_flight: u32,
    /// Maximum number of items that all workers together have in flight.
    pub permits: u32,
    /// Maximum number of items that one read takes: neighbouring samples of a format; 1 for objects.
    #[serde(default = "one")]
    pub items_per_read: u32,
    pub batch_size: u32,
    /// Maximum number of batches per worker that are begun but not delivered.
    pub prefetch: u32,
    pub assignment: Assignment,
    /// True if the same workers ran all passes; false if each pass started new workers.
    pub persistent: bool,
    /// Number of calls of each level, warm-up included.
    pub counts: LevelCounts,
    /// Number of calls of each level in the warm-up.
    pub warm_up: LevelCounts,
    /// Times of each level, without the warm-up.
    pub levels: LevelTimes,
    /// Times of the parts of reads, and of stages.
    pub parts: Vec<ReadPart>,
    /// Mean duration of a read, divided into its parts.
    #[serde(default)]
    pub mean_read: MeanRead,
    /// Number of items read in the measured passes.
    pub items: u64,
    /// Number of the items read that a stage dropped or failed on.
    pub refused: u64,
    pub bytes: u64,
    /// Total duration of the measured passes, in seconds.
    pub elapsed_s: f64,
    pub items_per_s: f64,
    /// Megabytes (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Mebibytes (2^20 bytes) per second.
    pub mib_per_s: f64,
    /// Megabits (10^6 bits) per second.
    pub mbit_per_s: f64,
    pub passes: Vec<PassReport>,
    /// Number of items in flight as counted, and by Little's law.
    pub little: Little,
    /// Share of the workers' time spent reading, 0.0 to 1.0.
    pub busy: f64,
    /// Number of reads in each range of durations.
    pub latencies: Vec<LatencyRange>,
    /// Number of reads in ranges of durations that are wider than those of `latencies` and have the same bounds in every load; ranges without a read are omitted.
    #[serde(default)]
    pub latency_bins: Vec<TimeBucket>,
    /// Figures over the measured time; the passes follow each other without gaps.
    pub over_time: Vec<LoadMoment>,
    pub requests: ReadRequests,
    pub failures: Vec<ReadFailures>,
    /// Throughput of this client without the store; `null` if it was not measured.
    pub ceiling: Option<Ceiling>,
    /// Result of checking the ledger of the load; if it does not balance, all figures of the load are void.
    pub books: LoadBooks,
}

/// Number of calls of each level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LevelCounts {
    /// Number of items read.
    pub getitem: u64,
    /// Number of batches read.
    pub fetch: u64,
    /// Number of workers that were started.
    pub worker_loop: u64,
    /// Number of passes over the objects.
    pub load_all: u64,
    /// Number of executions of the whole benchmark, always 1.
    pub benchmark: u64,
}

/// Times of each level; `null` if nothing was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelTimes {
    /// Time of one successful item: from the request until the whole body is in memory and checked.
    pub getitem: Option<Spread>,
    /// Time of one batch in one worker.
    pub fetch: Option<Spread>,
    /// Lifetime of one worker.
    pub worker_loop: Option<Spread>,
    /// Time of one pass: from the release of the workers to the last delivery.
    pub load_all: Option<Spread>,
    /// Time of set-up, warm-up, all passes and clean-up.
    pub benchmark: Option<Spread>,
}

/// Distribution of times, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    pub n: u64,
    pub sum_s: f64,
    pub mean_s: f64,
    pub median_s: f64,
    pub min_s: f64,
    pub max_s: f64,
    /// Standard deviation; 0 for a single time.
    pub stdev_s: f64,
    /// 90th percentile, in seconds.
    pub p90_s: f64,
    /// 99th percentile, in seconds.
    pub p99_s: f64,
    /// 99.9th percentile, in seconds.
    pub p999_s: f64,
}

/// Times of one part of the reads, of the batches or of the stages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadPart {
    /// `permit`, `retry`, `connect`, `first_byte`, `body`, `verify`; `between`, the time within a batch without a read in flight;
    /// or `stage:` and the name of the stage.
    pub name: String,
    /// Distribution of the times of the reads or batches that had this part.
    pub time: Spread,
    /// Share of the total time of all reads, 0.0 to 1.0, with three exceptions: `permit` is a share of the waits for permits and
    /// the reads together, `between` is a share of the time of all batches, and a stage is a share of the lifetimes of all
    /// workers.
    pub share: f64,
}

/// Mean duration of a read in a load, divided into its parts. The time of a part that only some reads had, e.g. `connect`, is
/// averaged over all reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeanRead {
    /// Mean duration in seconds; 0 if no read succeeded.
    pub mean_s: f64,
    /// Parts in order; parts that took no time are omitted. The last part, `else`, is the remaining time, mostly waits for a
    /// core.
    pub parts: Vec<MeanPart>,
    /// Mean wait for a permit before the read, in seconds; `null` if no read waited for a permit.
    pub permit_s: Option<f64>,
    /// Mean time per item in each stage after the read.
    pub stages: Vec<MeanPart>,
}

/// Part of the mean read, or a stage after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeanPart {
    /// Name of the part, or of the stage.
    pub name: String,
    pub mean_s: f64,
    /// Share of the mean read, 0.0 to 1.0; `null` for a stage.
    pub share: Option<f64>,
}

/// Figures of one pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PassReport {
    pub elapsed_s: f64,
    pub items_per_s: f64,
    /// Megabytes (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Median time of a read, in seconds.
    pub median_s: f64,
    /// 99th percentile of the time of a read, in seconds.
    pub p99_s: f64,
    /// Share of the objects' bytes in the page cache before the pass, 0.0 to 1.0; `null` if unknown.
    pub cached: Option<f64>,
}

/// Mean number of items in flight: throughput times latency (J. D. C. Little, 1961).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Little {
    /// Mean number of items in flight, as counted.
    pub in_flight: f64,
    /// Maximum number of items that were in flight at the same time.
    pub most: u32,
    /// Mean number of items in flight as a share of the maximum, 0.0 to 1.0.
    pub used: f64,
    /// Mean number of items in flight by Little's law: items per second times mean time of a read.
    pub by_law: f64,
}

/// Number of reads with a duration in a range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyRange {
    pub from_s: f64,
    pub to_s: f64,
    pub count: u64,
}

/// Figures of a moment: a short interval of the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadMoment {
    /// Start of the moment, in seconds of measured time.
    pub t_s: f64,
    /// Items read per second.
    pub items_per_s: f64,
    /// Megabytes (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Mean number of items in flight.
    pub in_flight: f64,
    /// Median time of the reads that ended in the moment, in seconds; `null` if no read ended in it.
    pub median_s: Option<f64>,
    /// 99th percentile of the time of the reads that ended in the moment, in seconds; `null` if no read ended in it.
    pub p99_s: Option<f64>,
}

/// Requests and connections of the measured reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadRequests {
    pub made: u64,
    /// Number of requests that repeated a failed request.
    pub retries: u64,
    pub connections: u64,
    /// Requests per item read; `null` if no item was read.
    #[serde(default)]
    pub per_item: Option<f64>,
    /// Share of the requests that were retries, 0.0 to 1.0; `null` if no request was made.
    #[serde(default)]
    pub retried: Option<f64>,
}

/// Throughput of the client without storage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ceiling {
    /// Kind of store used in place of the measured one.
    pub against: BenchStoreKind,
    pub items_per_s: f64,
    /// Megabytes (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Rate of the load divided by the rate without storage; 1.0 if they are equal.
    pub reached: f64,
    /// True if the client limits the load, or nearly does.
    pub is_client_bound: bool,
}

impl BenchReport {
    /// Adds the figures that reports of earlier versions lack and that can be computed from their other figures.
    #[must_use]
    pub fn completed(mut self) -> Self {
        for action in &mut self.actions {
            if let ActionReport::WholeSet(cells) = action {
                cells.iter_mut().for_each(LoadReport::complete);
            }
        }
        self
    }

    pub fn cells(&self) -> impl Iterator<Item = &LoadReport> {
        self.actions.iter().flat_map(|action| match action {
            ActionReport::WholeSet(cells) => cells.as_slice(),
            ActionReport::Calls(_) => &[],
        })
    }

    /// True if the benchmark completed, no item is missing, and the ledger of every load balances.
    pub fn is_sound(&self) -> bool {
        self.state == ReportState::Completed && self.balanced && self.failures().next().is_none()
    }

    pub(crate) fn failures(&self) -> impl Iterator<Item = &ReadFailures> {
        self.actions.iter().flat_map(|action| match action {
            ActionReport::WholeSet(cells) => cells.iter().flat_map(|cell| &cell.failures).collect(),
            ActionReport::Calls(calls) => calls.failures.iter().collect::<Vec<_>>(),
        })
    }

    /// Returns the load with the most items per second among the loads whose ledger balances.
    pub fn fastest(&self) -> Option<&LoadReport> {
        let sound = self.cells().filter(|cell| cell.books.balanced);
        sound.max_by(|one, other| one.items_per_s.total_cmp(&other.items_per_s))
    }
}

impl LoadReport {
    /// Sets the figures that are computed from other figures of the load.
    pub(crate) fn complete(&mut self) {
        self.requests.per_item = share(self.requests.made, self.items);
        self.requests.retried = share(self.requests.retries, self.requests.made);
        self.mean_read = MeanRead::of(self);
        self.latency_bins = latency_bins(&self.latencies);
    }

    /// Short name of the load, e.g. `async 4x8`.
    pub fn label(&self) -> String {
        label(self.mode, self.workers, self.in_flight)
    }
}

impl MeanRead {
    fn of(cell: &LoadReport) -> Self {
        let (mean_s, reads) = cell.levels.getitem.map_or((0.0, 0), |read| (read.mean_s, read.n));
        let per_read = |name: &str| {
            let part = cell.parts.iter().find(|part| part.name == name)?;
            (reads > 0).then(|| part.time.sum_s / reads as f64)
        };
        let part = |(name, part_s): (&str, f64)| MeanPart {
            name: name.to_owned(),
            mean_s: part_s,
            share: (mean_s > 0.0).then(|| part_s / mean_s),
        };
        let parts = READ_PARTS.into_iter().filter_map(|name| Some((name, per_read(name)?)));
        let parts: Vec<(&str, f64)> = parts.filter(|(_, part_s)| *part_s > 0.0).collect();
        let rest = mean_s - parts.iter().map(|(_, part_s)| part_s).sum::<f64>();
        let stages = cell.parts.iter().filter_map(|part| {
            let name = part.name.strip_prefix("stage:")?.to_owned();
            let mean_s = if cell.items > 0 { part.time.sum_s / cell.items as f64 } else { 0.0 };
            Some(MeanPart { name, mean_s, share: None })
        });
        Self {
            mean_s,
            parts: parts.into_iter().chain((rest > 0.0).then_some(("else", rest))).map(part).collect(),
            permit_s: per_read("permit"),
            stages: stages.collect(),
        }
    }
}

/// Converts the recorded ranges into wider bins. A recorded range is at most 3 % wide and is counted in the bin of its middle, so
/// that no read is divided between bins.
fn latency_bins(ranges: &[LatencyRange]) -> Vec<TimeBucket> {
    let mut bins: BTreeMap<i32, u64> = BTreeMap::new();
    for LatencyRange { from_s, to_s, count } in ranges.iter().filter(|range| range.count > 0) {
        let middle = (from_s.max(to_s / 2.0) * to_s).sqrt();
        // An uploaded report may contain negative or infinite durations, which have no bin.
        if *to_s > 0.0 && (1e-12..1e12).contains(&middle) {
            let bin = (middle.log10() * BINS_PER_DECADE + 1e-9).floor() as i32;
            let reads = bins.entry(bin).or_default();
            *reads = reads.saturating_add(*count);
        }
    }
    let all = bins.values().fold(0_u64, |all, count| all.saturating_add(*count));
    let edge = |bin: i32| 10_f64.powf(f64::from(bin) / BINS_PER_DECADE);
    let told = bins.into_iter().map(|(bin, count)| TimeBucket {
        from_s: edge(bin),
        to_s: edge(bin + 1),
        count,
        share: count as f64 / all as f64,
    });
    told.collect()
}

fn one() -> u32 {
    1
}

pub(crate) fn label(mode: LoadMode, workers: u32, in_flight: u32) -> String {
    match mode {
        LoadMode::Sync => format!("sync {workers}"),
        LoadMode::Async => format!("async {workers}x{in_flight}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn times(n: u64, sum_s: f64) -> Spread {
        let mean_s = sum_s / n as f64;
        Spread {
            n,
            sum_s,
            mean_s,
            median_s: mean_s,
            min_s: mean_s,
            max_s: mean_s,
            stdev_s: 0.0,
            p90_s: mean_s,
            p99_s: mean_s,
            p999_s: mean_s,
        }
    }

    /// Report of an earlier version: 128 reads of one second each, 16 of which opened a connection.
    fn earlier() -> LoadReport {
        let part = |name: &str, n, sum_s| json!({ "name": name, "time": times(n, sum_s), "share": 0.5 });
        let counts = LevelCounts::default();
        let getitem = Some(times(128, 128.0));
        let levels = LevelTimes { getitem, fetch: None, worker_loop: None, load_all: None, benchmark: None };
        let report = json!({
            "mode": "async", "workers": 2, "in_flight": 8, "permits": 16, "batch_size": 32, "prefetch": 2,
            "assignment": "static", "persistent": false, "counts": counts, "warm_up": counts, "levels": levels,
            "parts": [
                part("permit", 128, 64.0),
                part("body", 128, 32.0),
                part("connect", 16, 16.0),
                part("between", 4, 1.0),
                part("stage:decode", 128, 256.0),
                part("stage:collate", 4, 8.0),
            ],
            "items": 128, "refused": 0, "bytes": 0, "elapsed_s": 16.0, "items_per_s": 8.0, "mb_per_s": 0.0,
            "mib_per_s": 0.0, "mbit_per_s": 0.0, "passes": [],
            "little": { "in_flight": 8.0, "most": 8, "used": 0.5, "by_law": 8.0 }, "busy": 1.0,
            "latencies": [
                { "from_s": 0.001, "to_s": 0.00102, "count": 3 },
                { "from_s": 0.00102, "to_s": 0.00104, "count": 4 },
                { "from_s": 0.002, "to_s": 0.00204, "count": 0 },
                { "from_s": 0.01, "to_s": 0.0102, "count": 1 },
            ],
            "over_time": [], "requests": { "made": 160, "retries": 40, "connections": 16 }, "failures": [],
            "ceiling": null, "books": { "balanced": true, "checks": [] },
        });
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn shares_are_computed_from_a_report_of_an_earlier_version() {
        let mut cell = earlier();
        cell.complete();
        assert_eq!((cell.requests.per_item, cell.requests.retried), (Some(1.25), Some(0.25)));
        let part = |name: &str, mean_s, share| MeanPart { name: name.to_owned(), mean_s, share };
        let expected = MeanRead {
            mean_s: 1.0,
            parts: vec![
                part("connect", 0.125, Some(0.125)),
                part("body", 0.25, Some(0.25)),
                part("else", 0.625, Some(0.625)),
            ],
            permit_s: Some(0.5),
            stages: vec![part("decode", 2.0, None), part("collate", 0.0625, None)],
        };
        assert_eq!(cell.mean_read, expected);
        // `complete` is idempotent.
        let once = cell.clone();
        cell.complete();
        assert_eq!(cell, once);
    }

    #[test]
    fn no_read_is_lost_or_divided_and_two_loads_have_the_same_bins() {
        let bins = latency_bins(&earlier().latencies);
        let counted: Vec<(u64, f64)> = bins.iter().map(|bin| (bin.count, bin.share)).collect();
        assert_eq!(counted, [(7, 0.875), (1, 0.125)]);
        assert_eq!((bins[0].from_s, bins[1].from_s), (1e-3, 1e-2));
        assert!((bins[0].to_s / bins[0].from_s - 10_f64.powf(1.0 / 24.0)).abs() < 1e-12);
        let other = latency_bins(&[LatencyRange { from_s: 0.00101, to_s: 0.00103, count: 5 }]);
        assert_eq!(other[0].from_s, bins[0].from_s);
        assert_eq!(latency_bins(&[]), []);
        let from_0 = latency_bins(&[LatencyRange { from_s: 0.0, to_s: 1e-6, count: 2 }]);
        assert!(from_0.len() == 1 && from_0[0].count == 2 && from_0[0].from_s > 0.0, "{from_0:?}");
    }

    #[test]
    fn a_load_that_read_nothing_has_no_parts() {
        let mut cell = earlier();
        cell.levels.getitem = None;
        (cell.items, cell.requests) = (0, ReadRequests::default());
        cell.parts.clear();
        cell.complete();
        assert_eq!(cell.mean_read, MeanRead::default());
        assert_eq!((cell.requests.per_item, cell.requests.retried), (None, None));
    }

    #[test]
    fn impossible_ranges_are_left_out_and_counts_do_not_overflow() {
        let range = |from_s, to_s, count| LatencyRange { from_s, to_s, count };
        let bins = latency_bins(&[
            range(0.0, 1e200, 1),
            range(-1.0, -1.0, 1),
            range(0.1, 0.1, u64::MAX),
            range(0.1, 0.1, 2),
            range(20.0, 20.0, 1),
        ]);
        let counts: Vec<u64> = bins.iter().map(|bin| bin.count).collect();
        assert_eq!(counts, [u64::MAX, 1]);
    }
}
