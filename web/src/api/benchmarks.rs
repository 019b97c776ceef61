use axum::Json;
use axum::response::{NoContent, Response};
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
use crate::problem::ApiResult;
use crate::settings::ServeLimits;

/// Sentences of a report that lists show.
const FINDINGS: usize = 3;
/// Most names and values of a report: those of hours of loads, each second and each range of latencies with some.
const REPORT_NODES: usize = 1 << 18;
/// Most bytes of a sentence that lists show, and of a name.
const SENTENCE_BYTES: usize = 1_000;
const NAME_BYTES: usize = 200;

#[derive(Deserialize, JsonSchema)]
struct BenchmarkPath {
    /// The benchmark's id.
    id: String,
}

/// The storage benchmark that the server runs.
#[derive(Serialize, JsonSchema)]
struct CurrentBenchmark {
    /// The benchmark under way, or the last one; `null` before the first, and for tokens that may not use its store.
    benchmark: Option<BenchmarkProgress>,
}

impl JsonBody for StartBenchmark {}

type BenchmarkSummary = KeptBenchmark<ReportSummary>;

/// What lists show of a report. It is made once, when the report comes.
#[derive(Serialize, Deserialize, JsonSchema)]
struct ReportSummary {
    /// What the benchmark is called.
    name: String,
    /// When it began, as its report has it.
    started_at: String,
    /// How long all of it took, in seconds.
    elapsed_s: f64,
    /// How it ended.
    state: ReportState,
    /// Whether the books of every load balance.
    balanced: bool,
    /// Whether all of it was measured, nothing is missing, and all books balance.
    is_sound: bool,
    /// The store's name.
    store: String,
    /// What the store is.
    kind: BenchStoreKind,
    /// How many objects it has read.
    objects: u64,
    /// All their bytes; `null` when nobody has asked for sizes.
    bytes: Option<u64>,
    /// The load with the most items in a second; `null` where the books of none balance.
    fastest: Option<FastestLoad>,
    /// What it comes to: the first sentences, 3 at most.
    findings: Vec<String>,
}

/// The load with the most items in a second.
#[derive(Serialize, Deserialize, JsonSchema)]
struct FastestLoad {
    /// What it is called, e.g. `async 4x8`.
    load: String,
    /// Items in a second.
    items_per_s: f64,
    /// Megabytes (10^6 bytes) in a second.
    mb_per_s: f64,
}

impl JsonBody for BenchReport {
    fn bounds(_: &ServeLimits) -> JsonBounds {
        JsonBounds { bytes: MAX_BENCHMARK_BYTES, nodes: REPORT_NODES }
    }

    fn read(document: Value) -> Result<Self, Vec<SpecFault>> {
        // One of another version has another form, and its version is all that is wrong with it.
        match document.get("version").and_then(Value::as_u64) {
            Some(found) if found != u64::from(REPORT_VERSION) => Err(vec![SpecFault::new(
                Pointer::ROOT.key("version"),
                format!("found `{found}`, this server takes reports of version {REPORT_VERSION}"),
            )]),
            _ => spec::read_value(document),
        }
    }
}

pub(super) fn routes(api: &mut ApiRouter) {
    api.tag("benchmarks");
    api.route("GET /benchmarks", "Benchmarks, newest first", list_benchmarks);
    api.route("POST /benchmarks", "Keep the report of a storage benchmark", keep_benchmark)
        .description(
            "A report that is known already makes no new benchmark. When there are too many, the oldest goes.",
        )
        .answer::<BenchmarkSummary>(200)
        .answer::<BenchmarkSummary>(201);
    api.route("POST /benchmarks/start", "Start a storage benchmark on the server", start_benchmark).description(
        "One benchmark runs at a time. It takes threads and memory of the budget of runs, and permits of its store in turn with \
         the runs. The report is kept with the others.",
    );
    api.route("GET /benchmarks/current", "The storage benchmark that the server runs", show_current);
    api.route("POST /benchmarks/{id}/stop", "Stop the storage benchmark under way", stop_benchmark)
        .description("What it measured until then is kept. Answers when it has ended, after 3 s at most.");
    api.route("GET /benchmarks/{id}", "The report of a benchmark", show_benchmark).answer::<BenchReport>(200);
    api.route("DELETE /benchmarks/{id}", "Delete a benchmark and its report", delete_benchmark);
}

async fn list_benchmarks(
    app: App,
    InQuery(query): InQuery<BenchmarkQuery>,
) -> ApiResult<Json<Page<BenchmarkSummary>>> {
    let Page { items, next } = app.runs.benchmarks(query).await?;
    Ok(Json(Page { items: items.into_iter().filter_map(summary).collect(), next }))
}

async fn keep_benchmark(
    app: App,
    // It holds its room until it is answered.
    Sent(report, _room): Sent<BenchReport>,
) -> ApiResult<Response> {
    // What is no part of its form is gone, so that the same report is always the same bytes.
    let (summary, report) = run_blocking(move || packed(report)).await?;
    let PushedBenchmark { benchmark, is_new } = app.runs.keep_benchmark(summary, report).await?;
    let address = format!("benchmarks/{}", benchmark.id);
    Ok(created(is_new, &address, benchmark))
}

/// The summary and the text of a report, as the server keeps them.
fn packed(report: BenchReport) -> (Value, Vec<u8>) {
    let summary = serde_json::to_value(ReportSummary::of(&report)).expect("numbers and texts are JSON");
    (summary, written(report))
}

async fn start_benchmark(
    app: App,
    Sent(request, _): Sent<StartBenchmark>,
) -> ApiResult<Json<BenchmarkProgress>> {
    Ok(Json(app.runs.start_benchmark(request, packed).await?))
}

async fn show_current(app: App) -> Json<CurrentBenchmark> {
    Json(CurrentBenchmark { benchmark: app.runs.current_benchmark() })
}

async fn stop_benchmark(app: App, InPath(path): InPath<BenchmarkPath>) -> ApiResult<Json<BenchmarkProgress>> {
    Ok(Json(app.runs.stop_benchmark(&path.id).await?))
}

async fn show_benchmark(app: App, InPath(path): InPath<BenchmarkPath>) -> ApiResult<Response> {
    let report = async { Ok(app.runs.benchmark_report(&path.id).await?) };
    // An earlier version may have kept it, with fewer figures.
    app.answers.send_written(report, |kept| Ok(serde_json::from_slice(&kept).map_or(kept, written))).await
}

/// A report with all its figures, as JSON.
fn written(report: BenchReport) -> Vec<u8> {
    serde_json::to_vec(&report.completed()).expect("numbers and texts are JSON")
}

async fn delete_benchmark(app: App, InPath(path): InPath<BenchmarkPath>) -> ApiResult<NoContent> {
    app.runs.delete_benchmark(&path.id).await?;
    Ok(NoContent)
}

/// A benchmark as lists show it; `None`, and said in the log, when another version of this program has kept it otherwise.
fn summary(kept: KeptBenchmark) -> Option<BenchmarkSummary> {
    let KeptBenchmark { id, kept_at, summary } = kept;
    match serde_json::from_value(summary) {
        Ok(summary) => Some(KeptBenchmark { id, kept_at, summary }),
        Err(error) => {
            tracing::error!(id, %error, "the summary of a benchmark cannot be read, and it is left out");
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
