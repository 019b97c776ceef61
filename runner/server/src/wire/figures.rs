//! Figures over time, failed samples and logs of one run.

use penstock_types::run::FailureClass;
use penstock_types::series::Metric;
use penstock_wasm::LogLevel;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pages::{MAX_LIMIT, at_most, words};

/// Maximum number of points of a series.
pub const MAX_POINTS: u32 = 5_000;

/// Time range, resolution and metrics of series to read.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SeriesQuery {
    /// Start of the time range, in seconds since the run's start; the run's start if missing.
    pub from_s: Option<f64>,
    /// End of the time range, in seconds since the run's start; the run's end, or now, if missing.
    pub to_s: Option<f64>,
    /// Maximum number of points of each metric over time; 600 if missing, 5000 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_POINTS, _>")]
    #[schemars(range(min = 1, max = MAX_POINTS))]
    pub points: Option<u32>,
    /// Metrics, separated by commas; all if missing.
    #[serde(default, deserialize_with = "words")]
    #[schemars(with = "Option<String>")]
    pub metrics: Vec<Metric>,
    /// Ids of stages and queues, separated by commas; all if missing.
    #[serde(default, deserialize_with = "words")]
    #[schemars(with = "Option<String>")]
    pub ids: Vec<String>,
    /// `false` leaves out the minimum and the maximum of each bucket.
    pub spreads: Option<bool>,
    /// Number of significant digits of each figure, 1 to 15; all digits if missing.
    #[serde(default, deserialize_with = "at_most::<15, _>")]
    #[schemars(range(min = 1, max = 15))]
    pub digits: Option<u32>,
}

/// Window of the figures of a run. If all fields are missing, the window is the whole run without warm-up.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FiguresQuery {
    /// Start of the window, in seconds since the run's start; the run's start if missing.
    pub from_s: Option<f64>,
    /// End of the window, in seconds since the run's start; the run's end, or now, if missing.
    pub to_s: Option<f64>,
    /// Length of a window that ends with the run, or now if the run continues, in seconds; cannot be combined with `from_s` or
    /// `to_s`. Warm-up is left out.
    pub last_s: Option<f64>,
}

/// Time range and length of windows to read.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowQuery {
    /// Start of the time range, in seconds since the run's start; the run's start if missing.
    pub from_s: Option<f64>,
    /// End of the time range, in seconds since the run's start; the run's end, or now, if missing.
    pub to_s: Option<f64>,
    /// Length of a window, in seconds, rounded up to a multiple of 0.25; 1 if missing.
    pub every_s: Option<f64>,
}

/// Filter and page of a list of failed samples.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorQuery {
    /// Id of the stage in which samples failed.
    pub stage: Option<String>,
    /// Class of the failures, by their cause.
    #[schemars(with = "Option<String>")]
    pub class: Option<FailureClass>,
    /// Text that the message or the key contains.
    #[serde(rename = "q")]
    pub text: Option<String>,
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of errors; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Filter and page of a list of log lines.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    /// Id of the stage that logged the lines.
    pub stage: Option<String>,
    /// Minimum level: `debug`, `info`, `warn` or `error`.
    #[schemars(with = "Option<String>")]
    pub level: Option<LogLevel>,
    /// Text that the line contains.
    #[serde(rename = "q")]
    pub text: Option<String>,
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of lines; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Line that a module logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogEntry {
    /// Number of the line in the run, from 1.
    pub number: u64,
    /// Id of the stage.
    pub stage: String,
    /// Severity that the module gave to the line.
    pub level: LogLevel,
    /// Text of the line; unprintable characters are escaped.
    pub message: String,
    /// Time of the line, in seconds since the run's start.
    pub at_s: f64,
}

/// The dead letters of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetters {
    /// Dead letters by stage, in the pipeline's order.
    pub stages: Vec<StageDeadLetters>,
    /// Number of lines that are not valid dead letters.
    pub unreadable: u64,
    /// Number of failed samples that were not stored because the dead letters of the run had reached their size limit.
    #[serde(default)]
    pub left_out: u64,
}

/// The dead letters of one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageDeadLetters {
    /// Id of the stage.
    pub stage: String,
    /// Number of dead letters of the stage.
    pub letters: u64,
    /// Digest of the module in which the samples failed; `null` for a stage without a module.
    pub module: Option<String>,
}
