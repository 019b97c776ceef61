use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::{EnumString, VariantNames};

use super::pages::{MAX_LIMIT, SortBy, at_most};

pub type BenchmarkSort = SortBy<BenchmarkColumn>;

/// Stored benchmark, in the form in which lists show it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkSummary")]
pub struct KeptBenchmark<S = Value> {
    /// Id of the benchmark.
    pub id: String,
    /// Time at which the report was stored, RFC 3339 in UTC.
    pub kept_at: String,
    #[serde(flatten)]
    pub summary: S,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PushedBenchmark {
    pub benchmark: KeptBenchmark,
    /// False if the same report was stored before.
    pub is_new: bool,
}

/// Order, cursor and size of a page of benchmarks.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkQuery {
    /// Column to sort by, e.g. `name`, with a `-` in front for descending order; `-kept_at` if missing.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sort: BenchmarkSort,
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of benchmarks; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Column by which benchmarks can be sorted: a member of the summary, or the order in which the reports were stored. A missing
/// figure counts as -1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum BenchmarkColumn {
    #[default]
    KeptAt,
    Name,
    State,
    Store,
    Objects,
    ItemsPerS,
    ElapsedS,
    StartedAt,
}
