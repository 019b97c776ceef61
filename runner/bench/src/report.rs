//! What a benchmark tells: one JSON document, from which tables and pictures are made.

use std::collections::BTreeMap;

use penstock_types::series::TimeBucket;
use penstock_types::stats::share;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::accelerator::AcceleratorReport;
pub use crate::books::{LoadBooks, LoadBooksCheck};
pub use crate::counterfactual::Counterfactual;
pub use crate::failures::ReadFailures;
use crate::spec::{Assignment, BenchSpec, LoadMode};
use crate::subject::BenchStoreKind;

pub const REPORT_VERSION: u32 = 1;

/// Parts of a read, in turn. The wait for a permit comes before it.
const READ_PARTS: [&str; 5] = ["retry", "connect", "first_byte", "body", "verify"];
/// Wide ranges of latencies for each power of ten: each ends 10 % above its beginning.
const BINS_PER_DECADE: f64 = 24.0;

/// What a benchmark found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchReport {
    pub version: u32,
    pub name: String,
    /// When it began, RFC 3339.
    pub started_at: String,
    /// How long all of it took, in seconds.
    pub elapsed_s: f64,
    /// How it ended.
    pub state: ReportState,
    pub reason: Option<String>,
    /// Whether the books of every load balance; what does not, voids its figures.
    pub balanced: bool,
    /// What it comes to, in sentences.
    pub findings: Vec<String>,
    /// What ran it, e.g. `penstock 0.1.0`.
    pub program: String,
    pub machine: MachineFacts,
    /// The document, with everything that was left to defaults.
    pub document: BenchSpec,
    /// What was read.
    pub objects: ObjectsReport,
    /// What was done, in turn.
    pub actions: Vec<ActionReport>,
    /// The accelerators that it can feed.
    pub accelerators: Option<AcceleratorReport>,
    /// The fastest load with its parts replaced by nothing.
    pub counterfactuals: Vec<Counterfactual>,
}

/// A machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineFacts {
    /// Its cores, as far as this process may use them.
    pub cores: u32,
    /// Its memory; `null` where the system does not tell.
    pub memory_bytes: Option<u64>,
}

/// How a benchmark ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReportState {
    /// As wanted.
    Completed,
    /// Something failed; what was measured before is told.
    Failed,
    /// Somebody stopped it.
    Stopped,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectsReport {
    /// The store's name.
    pub store: String,
    pub kind: BenchStoreKind,
    pub count: u64,
    /// All their bytes; `null` when nobody has asked for sizes.
    pub bytes: Option<u64>,
    pub min_bytes: Option<u64>,
    pub median_bytes: Option<u64>,
    pub max_bytes: Option<u64>,
    /// How long listing them, or loading the index, took, in seconds.
    pub index_s: f64,
    /// How long asking for all sizes took, in seconds.
    pub survey_s: Option<f64>,
    /// How long reading everything once took, to have it in the page cache; `null` where that was not done.
    pub warmed_s: Option<f64>,
}

/// What an action came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionReport {
    /// A grid of loads.
    WholeSet(Vec<LoadReport>),
    /// Repetitions.
    Calls(CallsReport),
}

/// Repetitions of something small.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallsReport {
    pub action: String,
    /// How many at a time.
    pub pool: u32,
    pub time: Spread,
    pub elapsed_s: f64,
    /// Repetitions in a second.
    pub per_s: f64,
    /// Bytes that were read or copied.
    pub bytes: u64,
    pub failures: Vec<ReadFailures>,
}

/// One load: a mode with a number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadReport {
    /// How workers read.
    pub mode: LoadMode,
    pub workers: u32,
    /// Reads that one of them has in flight at most.
    pub in_flight: u32,
    /// Reads that all of them have in flight at most.
    pub permits: u32,
    pub batch_size: u32,
    /// Batches of a worker that are begun and not delivered, at most.
    pub prefetch: u32,
    pub assignment: Assignment,
    /// Whether workers lived for all passes.
    pub persistent: bool,
    /// Calls of each level, warm-up included.
    pub counts: LevelCounts,
    /// Those of them that belong to the warm-up.
    pub warm_up: LevelCounts,
    /// Times of each level, warm-up left out.
    pub levels: LevelTimes,
    /// What reads consist of, and stages.
    pub parts: Vec<ReadPart>,
    /// The mean read, part by part.
    #[serde(default)]
    pub mean_read: MeanRead,
    /// Items that were read in the measured passes.
    pub items: u64,
    /// Those of them that a stage left out, or that failed in one.
    pub refused: u64,
    pub bytes: u64,
    /// How long these passes took together, in seconds.
    pub elapsed_s: f64,
    pub items_per_s: f64,
    /// Megabytes (10^6 bytes) in a second.
    pub mb_per_s: f64,
    /// Mebibytes (2^20 bytes) in a second.
    pub mib_per_s: f64,
    /// Megabits (10^6 bits) in a second.
    pub mbit_per_s: f64,
    pub passes: Vec<PassReport>,
    /// Reads in flight, against Little's law.
    pub little: Little,
    /// Share of the workers' time in which they read, 0.0 to 1.0.
    pub busy: f64,
    /// How long reads took: how many in each range.
    pub latencies: Vec<LatencyRange>,
    /// The same in wide ranges, which begin at the same times in every load; those without a read are left out.
    #[serde(default)]
    pub latency_bins: Vec<TimeBucket>,
    /// The measured passes over time, one after another.
    pub over_time: Vec<LoadMoment>,
    pub requests: ReadRequests,
    pub failures: Vec<ReadFailures>,
    /// What this client does without the store; `null` when it was not measured.
    pub ceiling: Option<Ceiling>,
    /// What does not hold voids the figures above.
    pub books: LoadBooks,
}

/// Calls of each level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LevelCounts {
    /// Items that were read.
    pub getitem: u64,
    /// Batches that were read.
    pub fetch: u64,
    /// Lives of workers.
    pub worker_loop: u64,
    /// Passes.
    pub load_all: u64,
    /// The whole.
    pub benchmark: u64,
}

/// Times of each level; `null` where nothing was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelTimes {
    /// One item that came: from the request to the whole body, looked at, in memory.
    pub getitem: Option<Spread>,
    /// One batch by one worker.
    pub fetch: Option<Spread>,
    /// One worker's life.
    pub worker_loop: Option<Spread>,
    /// One pass: from letting the workers go to the last delivery.
    pub load_all: Option<Spread>,
    /// Set-up, warm-up, all passes, and what they leave.
    pub benchmark: Option<Spread>,
}

/// How times are distributed, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    pub n: u64,
    pub sum_s: f64,
    pub mean_s: f64,
    pub median_s: f64,
    pub min_s: f64,
    pub max_s: f64,
    /// Standard deviation; 0 of one.
    pub stdev_s: f64,
    /// What nine of ten do not exceed.
    pub p90_s: f64,
    /// What 99 of 100 do not exceed.
    pub p99_s: f64,
    /// What 999 of 1000 do not exceed.
    pub p999_s: f64,
}

/// A part of what is done with an item or a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadPart {
    /// `permit`, `retry`, `connect`, `first_byte`, `body`, `verify`; `between`, the time of a batch in which none of its reads is
    /// in flight; or `stage:` and its name.
    pub name: String,
    /// Its times, of the reads or batches that had it.
    pub time: Spread,
    /// Its share of the time of all reads; of `permit`, which lies before them, of both together; of `between`, of all batches; of
    /// a stage, of the workers' lives.
    pub share: f64,
}

/// The mean read of a load. A part that few reads had counts for all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeanRead {
    /// How long it takes, in seconds; 0 where no read succeeded.
    pub mean_s: f64,
    /// Its parts in turn, those without time left out; the last one, `else`, is mostly waiting for a core.
    pub parts: Vec<MeanPart>,
    /// Wait for a permit before the read, in seconds; `null` where no read waited for one.
    pub permit_s: Option<f64>,
    /// Stages behind the read, for one item.
    pub stages: Vec<MeanPart>,
}

/// A part of the mean read, or a stage behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeanPart {
    /// The part, or the stage's name.
    pub name: String,
    pub mean_s: f64,
    /// Share of the mean read; `null` for a stage.
    pub share: Option<f64>,
}

/// One pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PassReport {
    pub elapsed_s: f64,
    pub items_per_s: f64,
    /// Megabytes (10^6 bytes) in a second.
    pub mb_per_s: f64,
    /// Median time of a read, in seconds.
    pub median_s: f64,
    /// What 99 of 100 reads did not exceed, in seconds.
    pub p99_s: f64,
    /// Share of the objects' bytes that the page cache held before; `null` where that cannot be told.
    pub cached: Option<f64>,
}

/// Reads in flight: their mean is throughput times latency (J. D. C. Little, 1961).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Little {
    /// Mean number of reads in flight, as it was counted.
    pub in_flight: f64,
    /// Most at a time.
    pub most: u32,
    /// The share of what was allowed that was used, 0.0 to 1.0.
    pub used: f64,
    /// Reads in a second times mean time of a read: the same by the law.
    pub by_law: f64,
}

/// Reads that took so long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyRange {
    pub from_s: f64,
    pub to_s: f64,
    pub count: u64,
}

/// A stretch of the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadMoment {
    /// Its beginning, in seconds of measured time.
    pub t_s: f64,
    /// Items that were read, in a second.
    pub items_per_s: f64,
    /// Megabytes (10^6 bytes) in a second.
    pub mb_per_s: f64,
    /// Mean number of reads in flight.
    pub in_flight: f64,
    /// Median time of the reads that ended in it; `null` when none did.
    pub median_s: Option<f64>,
    /// What 99 of 100 of them did not exceed.
    pub p99_s: Option<f64>,
}

/// Requests and connections of the measured reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadRequests {
    pub made: u64,
    /// Those of them that were made since another one had failed.
    pub retries: u64,
    pub connections: u64,
    /// Requests for one item that came; `null` where none came.
    #[serde(default)]
    pub per_item: Option<f64>,
    /// Share of the requests that were retries, 0.0 to 1.0; `null` where none was made.
    #[serde(default)]
    pub retried: Option<f64>,
}

/// What this client does where storage is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ceiling {
    /// What stood in for the store.
    pub against: BenchStoreKind,
    pub items_per_s: f64,
    /// Megabytes (10^6 bytes) in a second.
    pub mb_per_s: f64,
    /// What was reached of it.
    pub reached: f64,
    /// Whether the client is the limit, or near it.
    pub is_client_bound: bool,
}

impl BenchReport {
    /// The same report with the figures that follow from others, and that earlier versions did not write.
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

    /// True if the benchmark completed, nothing is missing and all books balance.
    pub fn is_sound(&self) -> bool {
        let has_failures = |action: &ActionReport| match action {
            ActionReport::WholeSet(cells) => cells.iter().any(|cell| !cell.failures.is_empty()),
            ActionReport::Calls(calls) => !calls.failures.is_empty(),
        };
        self.state == ReportState::Completed && self.balanced && !self.actions.iter().any(has_failures)
    }

    /// The load with the most items per second of those whose books balance.
    pub fn fastest(&self) -> Option<&LoadReport> {
        let sound = self.cells().filter(|cell| cell.books.balanced);
        sound.max_by(|one, other| one.items_per_s.total_cmp(&other.items_per_s))
    }
}

impl LoadReport {
    /// Sets the figures that follow from others.
    pub(crate) fn complete(&mut self) {
        self.requests.per_item = share(self.requests.made, self.items);
        self.requests.retried = share(self.requests.retries, self.requests.made);
        self.mean_read = MeanRead::of(self);
        self.latency_bins = latency_bins(&self.latencies);
    }

    /// For example `async 4x8`.
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

/// Counts each recorded range, at most 3 % wide, as a whole where its middle lies: no read is divided.
fn latency_bins(ranges: &[LatencyRange]) -> Vec<TimeBucket> {
    let mut bins: BTreeMap<i32, u64> = BTreeMap::new();
    for LatencyRange { from_s, to_s, count } in ranges.iter().filter(|range| range.count > 0) {
        let middle = (from_s.max(to_s / 2.0) * to_s).sqrt();
        // Strangers send reports, too: negative and endless durations have no bin.
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

    /// 128 reads of a second each, of which 16 opened a connection; in the form of an earlier version.
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
    fn shares_are_made_of_what_an_earlier_version_wrote() {
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
        // Once more, nothing changes.
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
    fn ranges_that_no_clock_measures_are_left_out_and_counts_do_not_overflow() {
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
