//! Report of a benchmark: one JSON document, the basis of all tables and charts.

mod load;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::load::{
    Ceiling, LatencyRange, LevelCounts, LevelTimes, Little, LoadMoment, LoadRates, LoadReport, LoadSettings,
    MeanPart, MeanRead, PassReport, ReadPart, ReadRequests,
};
pub use crate::accelerator::AcceleratorReport;
pub use crate::books::{LoadBooks, LoadBooksCheck};
pub use crate::counterfactual::Counterfactual;
pub use crate::failures::ReadFailures;
use crate::spec::BenchSpec;
use crate::subject::BenchStoreKind;

pub const REPORT_VERSION: u32 = 1;

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
        let has_failures = |action: &ActionReport| match action {
            ActionReport::WholeSet(cells) => cells.iter().any(|cell| !cell.failures.is_empty()),
            ActionReport::Calls(calls) => !calls.failures.is_empty(),
        };
        self.state == ReportState::Completed && self.balanced && !self.actions.iter().any(has_failures)
    }

    /// Returns the load with the most items per second among the loads whose ledger balances.
    pub fn fastest(&self) -> Option<&LoadReport> {
        let sound = self.cells().filter(|cell| cell.books.balanced);
        sound.max_by(|one, other| one.rates.items_per_s.total_cmp(&other.rates.items_per_s))
    }
}
