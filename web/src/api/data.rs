//! Routes for the figures, logs, failed samples and dead letters of a run.

use std::collections::BTreeMap;

use axum::Json;
use axum::response::Response;
use penstock_pipeline::ReplayReport;
use penstock_server::{
    DeadLetters, ErrorQuery, FiguresQuery, LogEntry, LogQuery, Page, PredictRequest, Predicted, SeriesQuery,
    WindowQuery,
};
use penstock_types::figures::RunFigures;
use penstock_types::ledger::Ledger;
use penstock_types::run::{RunError, RunId, Window};
use penstock_types::series::{Series, TaskTimes, Timeline};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::runs::RunPath;
use crate::access::Role;
use crate::app::App;
use crate::extract::{InPath, InQuery, JsonBody, Sent};
use crate::openapi::ApiRouter;
use crate::problem::{ApiError, ApiResult};

#[derive(Deserialize, JsonSchema)]
struct StagePath {
    /// Id of the run.
    id: RunId,
    /// Id of the stage, e.g. `2:download`.
    stage: String,
}

/// Measuring windows of a run.
#[derive(Serialize, JsonSchema)]
struct WindowList {
    /// Measuring windows, oldest first.
    items: Vec<Window>,
}

/// Modules with which dead letters are replayed.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Replay {
    /// Replacement of each module, by the name of the module in the document: `name`, `name@3`, `name@alias` or a digest. For all
    /// other modules, the replay uses the versions that the names in the document refer to now.
    #[serde(default)]
    modules: BTreeMap<String, String>,
}

impl JsonBody for Replay {}
impl JsonBody for PredictRequest {}

pub(super) fn routes(api: &mut ApiRouter) {
    api.tag("data");
    api.route("GET /runs/{id}/series", "Show time series: means with minimum and maximum", show_series)
        .answer::<Series>(200);
    api.route("GET /runs/{id}/figures", "Show the figures of a run over one window, with a verdict", show_figures)
        .answer::<RunFigures>(200)
        .description(
            "The window is the whole run without warm-up, the last seconds of the run (`last_s`), or a time range (`from_s`, `to_s`). The \
             bounds of a range are moved outwards to bounds of stored rows, which are at least 250 ms long; the response contains the \
             actual bounds. `from_s=0` alone selects the whole run with warm-up.",
        );
    api.route(
        "GET /runs/{id}/windows",
        "List the figures of all stages and queues, window by window",
        list_windows,
    )
    .answer::<WindowList>(200);
    api.route(
        "GET /runs/{id}/timeline",
        "List events of a run: replaced instances and bursts of failures",
        show_timeline,
    )
    .answer::<Timeline>(200);
    api.route(
        "GET /runs/{id}/ledger",
        "Show the ledger, which accounts for every sample of a run",
        show_ledger,
    );
    api.route(
        "GET /runs/{id}/stages/{stage}/times",
        "Show the distribution of a stage's task times",
        show_times,
    );
    api.route("GET /runs/{id}/errors", "List failed samples, with shortened fields", list_errors);
    api.route("GET /runs/{id}/logs", "List log messages of modules", list_logs);
    api.route("GET /runs/{id}/dead-letters", "List the dead letters of a run, by stage", show_dead_letters);
    api.route(
        "POST /runs/{id}/replay",
        "Replay dead letters through the stages that failed",
        replay_dead_letters,
    );
    api.route_for(Some(Role::Read), "POST /runs/{id}/predict", "Predict a run with changed settings", predict_run)
    .description(
        "The prediction uses the times measured so far and the rules that schedule the run. With `sweep`, it also lists changes \
         that would make the run faster.",
    );
}

async fn show_series(
    app: App,
    InPath(path): InPath<RunPath>,
    InQuery(query): InQuery<SeriesQuery>,
) -> ApiResult<Response> {
    let answer = app.large_answer().await?;
    let series = answer.runs.series(&path.id, query).await?;
    answer.json(series).await
}

async fn show_figures(
    app: App,
    InPath(path): InPath<RunPath>,
    InQuery(query): InQuery<FiguresQuery>,
) -> ApiResult<Response> {
    let answer = app.large_answer().await?;
    let figures = answer.runs.figures(&path.id, query).await?;
    answer.json(figures).await
}

async fn list_windows(
    app: App,
    InPath(path): InPath<RunPath>,
    InQuery(query): InQuery<WindowQuery>,
) -> ApiResult<Response> {
    let answer = app.large_answer().await?;
    let items = answer.runs.windows(&path.id, query).await?;
    answer.json(WindowList { items }).await
}

async fn show_timeline(app: App, InPath(path): InPath<RunPath>) -> ApiResult<Json<Timeline>> {
    Ok(Json(app.runs.timeline(&path.id).await?))
}

async fn show_ledger(app: App, InPath(path): InPath<RunPath>) -> ApiResult<Json<Ledger>> {
    let snapshot = app.runs.detail(&path.id).await?.snapshot;
    let ledger = snapshot
        .ok_or_else(|| ApiError::not_found("the run has not started, so it has no ledger yet"))?
        .ledger;
    Ok(Json(ledger))
}

async fn show_times(app: App, InPath(path): InPath<StagePath>) -> ApiResult<Json<TaskTimes>> {
    Ok(Json(app.runs.times(&path.id, &path.stage).await?))
}

async fn list_errors(
    app: App,
    InPath(path): InPath<RunPath>,
    InQuery(query): InQuery<ErrorQuery>,
) -> ApiResult<Json<Page<RunError>>> {
    Ok(Json(app.runs.errors(&path.id, query).await?))
}

async fn list_logs(
    app: App,
    InPath(path): InPath<RunPath>,
    InQuery(query): InQuery<LogQuery>,
) -> ApiResult<Json<Page<LogEntry>>> {
    Ok(Json(app.runs.logs(&path.id, query).await?))
}

async fn show_dead_letters(app: App, InPath(path): InPath<RunPath>) -> ApiResult<Json<DeadLetters>> {
    Ok(Json(app.runs.dead_letters(&path.id).await?))
}

async fn replay_dead_letters(
    app: App,
    InPath(path): InPath<RunPath>,
    Sent(replay, _): Sent<Replay>,
) -> ApiResult<Json<ReplayReport>> {
    Ok(Json(app.runs.replay(&path.id, replay.modules).await?))
}

async fn predict_run(
    app: App,
    InPath(path): InPath<RunPath>,
    Sent(request, _): Sent<PredictRequest>,
) -> ApiResult<Json<Predicted>> {
    Ok(Json(app.runs.predict(&path.id, request).await?))
}
