use axum::Json;
use axum::response::{NoContent, Response};
use penstock_bench::compare::{Comparison, compare};
use penstock_bench::report::{REPORT_VERSION, ReportState};
use penstock_bench::{BenchReport, BenchStoreKind};
use penstock_server::{
    BenchmarkProgress, BenchmarkQuery, KeptBenchmark, MAX_BENCHMARK_BYTES, Page, PushedBenchmark,
    StartBenchmark,
};
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::spec::{self, JsonBounds};
use penstock_types::text::printable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::created;
use crate::app::App;
use crate::extract::{InPath, InQuery, JsonBody, Sent, run_blocking};
use crate::openapi::ApiRouter;
use crate::problem::{ApiError, ApiResult, JsonResult, ProblemKind};

/// Maximum number of findings that lists show for a report.
const FINDINGS: usize = 3;
/// Maximum number of JSON names and values in a report, enough for hours of loads: a report has a few values for each second and
/// each latency range.
const REPORT_NODES: usize = 1 << 18;
/// Maximum length of a finding in lists, in bytes.
const SENTENCE_BYTES: usize = 1_000;
/// Maximum length of a name in lists, in bytes.
const NAME_BYTES: usize = 200;

#[derive(Deserialize, JsonSchema)]
struct BenchmarkPath {
    /// Id of the benchmark.
    id: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ComparisonQuery {
    /// Id of the benchmark to compare with, usually the older one.
    base: String,
}

/// Storage benchmark that the server runs.
#[derive(Serialize, JsonSchema)]
struct CurrentBenchmark {
    /// Running benchmark, or else the last one; `null` if there was none, and for tokens that may not use the store of the
    /// benchmark.
    benchmark: Option<BenchmarkProgress>,
}

impl JsonBody for StartBenchmark {}

type BenchmarkSummary = KeptBenchmark<ReportSummary>;

/// Differences of a benchmark from a baseline, as `penstock bench compare` computes them.
#[derive(Serialize, JsonSchema)]
struct BenchmarkComparison {
    /// Summary of the baseline.
    base: BenchmarkSummary,
    /// Summary of the benchmark that is compared with the baseline.
    benchmark: BenchmarkSummary,
    /// Changes from the baseline to the benchmark.
    #[serde(flatten)]
    comparison: Comparison,
}

/// Summary of a report for lists, created once when the report is uploaded.
#[derive(Serialize, Deserialize, JsonSchema)]
struct ReportSummary {
    /// Name of the benchmark.
    name: String,
    /// Start time of the benchmark, as written in its report.
    started_at: String,
    /// Duration of the whole benchmark, in seconds.
    elapsed_s: f64,
    /// Outcome of the benchmark.
    state: ReportState,
    /// True if the ledger of every load balances.
    balanced: bool,
    /// True if the benchmark completed without failures and all ledgers balance.
    is_sound: bool,
    /// Name of the store.
    store: String,
    /// Kind of the store.
    kind: BenchStoreKind,
    /// Number of objects in the benchmark.
    objects: u64,
    /// Total size of the objects, in bytes; `null` if the sizes were not read.
    bytes: Option<u64>,
    /// Load with the most items per second; `null` if no load's ledger balances.
    fastest: Option<FastestLoad>,
    /// First findings of the report, at most 3.
    findings: Vec<String>,
}

/// Load with the most items per second.
#[derive(Serialize, Deserialize, JsonSchema)]
struct FastestLoad {
    /// Name of the load, e.g. `async 4x8`.
    load: String,
    /// Number of items per second.
    items_per_s: f64,
    /// Megabytes (10^6 bytes) per second.
    mb_per_s: f64,
}

impl JsonBody for BenchReport {
    fn bounds() -> JsonBounds {
        JsonBounds { bytes: MAX_BENCHMARK_BYTES, nodes: REPORT_NODES }
    }

    fn read(document: Value) -> Result<Self, Vec<SpecFault>> {
        // A report of another version has another form, so the version is the only fault that is reported.
        match document.get("version").and_then(Value::as_u64) {
            Some(found) if found != u64::from(REPORT_VERSION) => Err(vec![SpecFault::new(
                Pointer::ROOT.key("version"),
                format!("found `{found}`, but this server takes reports of version {REPORT_VERSION}"),
            )]),
            _ => spec::read_value(document),
        }
    }
}

pub(super) fn routes(api: &mut ApiRouter) {
    api.tag("benchmarks");
    api.route("GET /benchmarks", list_benchmarks).summary("List benchmarks, newest first");
    api.route("POST /benchmarks", keep_benchmark)
        .summary("Store the report of a storage benchmark")
        .description(
            "A report that is stored already creates no new benchmark. Beyond the limit, the oldest benchmark is deleted.",
        )
        .answer::<BenchmarkSummary>(200)
        .answer::<BenchmarkSummary>(201);
    api.route("POST /benchmarks/start", start_benchmark)
        .summary("Start a storage benchmark on the server")
        .description(
            "Only one benchmark runs at a time. The benchmark uses threads and memory from the budget of runs, and takes permits of its \
             store in turn with runs. Its report is stored like an uploaded one.",
        );
    api.route("GET /benchmarks/current", show_current)
        .summary("Show the running storage benchmark, or the last one");
    api.route("POST /benchmarks/{id}/stop", stop_benchmark)
        .summary("Stop the running storage benchmark")
        .description("The measurements made so far are stored. Responds once the benchmark has ended, after at most 3 s.");
    api.route("GET /benchmarks/{id}", show_benchmark)
        .summary("Show the report of a benchmark")
        .answer::<BenchReport>(200);
    api.route("GET /benchmarks/{id}/comparison", compare_benchmarks)
        .summary("Compare a benchmark with another one")
        .answer::<BenchmarkComparison>(200);
    api.route("DELETE /benchmarks/{id}", delete_benchmark).summary("Delete a benchmark and its report");
}

async fn list_benchmarks(app: App, query: InQuery<BenchmarkQuery>) -> JsonResult<Page<BenchmarkSummary>> {
    let Page { items, next } = app.runs.benchmarks(query.0).await?;
    Ok(Json(Page { items: items.into_iter().filter_map(summary).collect(), next }))
}

async fn keep_benchmark(
    app: App,
    // `_room` keeps the memory reserved while the request is handled.
    Sent(report, _room): Sent<BenchReport>,
) -> ApiResult<Response> {
    // Parsing has dropped unknown fields, so equal reports have equal bytes here.
    let (summary, report) = run_blocking(move || packed(report)).await?;
    let PushedBenchmark { benchmark, is_new } = app.runs.keep_benchmark(summary, report).await?;
    let address = format!("benchmarks/{}", benchmark.id);
    Ok(created(is_new, &address, benchmark))
}

/// Returns the summary and the JSON text of a report, in the form in which the server stores them.
fn packed(report: BenchReport) -> (Value, Vec<u8>) {
    let summary = serde_json::to_value(ReportSummary::of(&report)).expect("numbers and texts are JSON");
    (summary, written(report))
}

async fn start_benchmark(app: App, request: Sent<StartBenchmark>) -> JsonResult<BenchmarkProgress> {
    Ok(Json(app.runs.start_benchmark(request.0, packed).await?))
}

async fn show_current(app: App) -> Json<CurrentBenchmark> {
    Json(CurrentBenchmark { benchmark: app.runs.current_benchmark() })
}

async fn stop_benchmark(app: App, path: InPath<BenchmarkPath>) -> JsonResult<BenchmarkProgress> {
    Ok(Json(app.runs.stop_benchmark(&path.id).await?))
}

async fn show_benchmark(app: App, path: InPath<BenchmarkPath>) -> ApiResult<Response> {
    let answer = app.large_answer().await?;
    let report = answer.runs.benchmark_report(&path.id).await?;
    // A report stored by an earlier version may lack figures.
    answer.written(report, |kept| Ok(serde_json::from_slice(&kept).map_or(kept, written))).await
}

async fn compare_benchmarks(
    app: App,
    path: InPath<BenchmarkPath>,
    InQuery(query): InQuery<ComparisonQuery>,
) -> ApiResult<Response> {
    let answer = app.large_answer().await?;
    let read = async |id: &str| {
        let (kept, report) = (answer.runs.benchmark(id).await?, answer.runs.benchmark_report(id).await?);
        Ok::<_, ApiError>((summary(kept).ok_or_else(|| other_version(id))?, report))
    };
    let both = [read(&query.base).await?, read(&path.id).await?];
    let write = |[(base, before), (benchmark, after)]: [(BenchmarkSummary, Vec<u8>); 2]| {
        let parsed = |kept: &BenchmarkSummary, report: Vec<u8>| {
            serde_json::from_slice::<BenchReport>(&report).map_err(|_| other_version(&kept.id))
        };
        let comparison = compare(&parsed(&base, before)?, &parsed(&benchmark, after)?);
        Ok(serde_json::to_vec(&BenchmarkComparison { base, benchmark, comparison })?)
    };
    answer.written(both, write).await
}

fn other_version(id: &str) -> ApiError {
    let detail =
        format!("benchmark `{id}` was stored by another version of Penstock; upload its report again");
    ApiError::new(ProblemKind::IN_USE, detail)
}

/// Serializes a report as JSON, after adding the figures that can be computed from others.
fn written(report: BenchReport) -> Vec<u8> {
    serde_json::to_vec(&report.completed()).expect("numbers and texts are JSON")
}

async fn delete_benchmark(app: App, path: InPath<BenchmarkPath>) -> ApiResult<NoContent> {
    app.runs.delete_benchmark(&path.id).await?;
    Ok(NoContent)
}

/// Parses the summary of a benchmark. If another version has stored it in another form, logs an error and returns `None`.
fn summary(kept: KeptBenchmark) -> Option<BenchmarkSummary> {
    let KeptBenchmark { id, kept_at, summary } = kept;
    match serde_json::from_value(summary) {
        Ok(summary) => Some(KeptBenchmark { id, kept_at, summary }),
        Err(error) => {
            tracing::error!(id, %error, "left out a benchmark whose summary cannot be read");
            None
        }
    }
}

impl ReportSummary {
    fn of(report: &BenchReport) -> Self {
        let short = |text: &str| printable(text, NAME_BYTES);
        let fastest = report.fastest().map(|cell| FastestLoad {
            load: cell.label(),
            items_per_s: cell.items_per_s,
            mb_per_s: cell.mb_per_s,
        });
        let findings = report.findings.iter().take(FINDINGS);
        Self {
            name: short(&report.name),
            started_at: short(&report.started_at),
            elapsed_s: report.elapsed_s,
            state: report.state,
            balanced: report.balanced,
            is_sound: report.is_sound(),
            store: short(&report.objects.store),
            kind: report.objects.kind,
            objects: report.objects.count,
            bytes: report.objects.bytes,
            fastest,
            findings: findings.map(|finding| printable(finding, SENTENCE_BYTES)).collect(),
        }
    }
}
