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
use penstock_types::profile::Profile;
use penstock_types::run::{RunError, RunId, Window};
use penstock_types::series::{Series, TaskTimes, Timeline};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::runs::RunPath;
use crate::access::Role;
use crate::app::App;
use crate::extract::{InPath, InQuery, JsonBody, Sent};
use crate::openapi::ApiRouter;
use crate::problem::{ApiError, ApiResult, JsonResult};

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
    api.route("GET /runs/{id}/series", show_series)
        .summary("Show time series: means with minimum and maximum")
        .answer::<Series>(200);
    api.route("GET /runs/{id}/figures", show_figures)
        .summary("Show the figures of a run over one window, with a verdict")
        .answer::<RunFigures>(200)
        .description(
            "The window is the whole run without warm-up, the last seconds of the run (`last_s`), or a time range (`from_s`, `to_s`). The \
             bounds of a range are moved outwards to bounds of stored rows, which are at least 250 ms long; the response contains the \
             actual bounds. `from_s=0` alone selects the whole run with warm-up.",
        );
    api.route("GET /runs/{id}/windows", list_windows)
        .summary("List the figures of all stages and queues, window by window")
        .answer::<WindowList>(200);
    api.route("GET /runs/{id}/timeline", show_timeline)
        .summary("List events of a run: replaced instances and bursts of failures")
        .answer::<Timeline>(200);
    api.route("GET /runs/{id}/ledger", show_ledger)
        .summary("Show the ledger, which accounts for every sample of a run");
    api.route("GET /runs/{id}/stages/{stage}/times", show_times)
        .summary("Show the distribution of a stage's task times");
    api.route("GET /runs/{id}/errors", list_errors).summary("List failed samples, with shortened fields");
    api.route("GET /runs/{id}/logs", list_logs).summary("List log messages of modules");
    api.route("GET /runs/{id}/dead-letters", show_dead_letters)
        .summary("List the dead letters of a run, by stage");
    api.route("POST /runs/{id}/replay", replay_dead_letters)
        .summary("Replay dead letters through the stages that failed");
    api.route("GET /runs/{id}/profile", show_profile)
        .summary("Show the last profile of a run")
        .description("Profiles are kept in memory, so that none is left after a restart of the server.");
    api.route("POST /runs/{id}/profile", profile_run)
        .summary("Measure each stage of a run's document alone")
        .description(
            "A short run of the document records the inputs of its stages; each stage then takes its own again and again, with 1, 2, 4, ... ops \
             at a time. The request takes some seconds for each stage. Later predictions of the run use what it has found.",
        );
    api.route_for(Some(Role::Read), "POST /runs/{id}/predict", predict_run)
        .summary("Predict a run with changed settings")
        .description(
            "The prediction uses the times measured so far and the rules that schedule the run. With `sweep`, it also lists changes \
             that would make the run faster.",
        );
}

async fn show_series(app: App, path: InPath<RunPath>, query: InQuery<SeriesQuery>) -> ApiResult<Response> {
    app.large_json(async |runs| runs.series(&path.id, query.0).await).await
}

async fn show_figures(app: App, path: InPath<RunPath>, query: InQuery<FiguresQuery>) -> ApiResult<Response> {
    app.large_json(async |runs| runs.figures(&path.id, query.0).await).await
}

async fn list_windows(app: App, path: InPath<RunPath>, query: InQuery<WindowQuery>) -> ApiResult<Response> {
    app.large_json(async |runs| Ok(WindowList { items: runs.windows(&path.id, query.0).await? })).await
}

async fn show_timeline(app: App, path: InPath<RunPath>) -> JsonResult<Timeline> {
    Ok(Json(app.runs.timeline(&path.id).await?))
}

async fn show_ledger(app: App, path: InPath<RunPath>) -> JsonResult<Ledger> {
    let snapshot = app.runs.detail(&path.id).await?.snapshot;
    let not_started = || ApiError::not_found("the run has not started, so it has no ledger yet");
    Ok(Json(snapshot.ok_or_else(not_started)?.ledger))
}

async fn show_times(app: App, path: InPath<StagePath>) -> JsonResult<TaskTimes> {
    Ok(Json(app.runs.times(&path.id, &path.stage).await?))
}

async fn list_errors(
    app: App,
    path: InPath<RunPath>,
    query: InQuery<ErrorQuery>,
) -> JsonResult<Page<RunError>> {
    Ok(Json(app.runs.errors(&path.id, query.0).await?))
}

async fn list_logs(app: App, path: InPath<RunPath>, query: InQuery<LogQuery>) -> JsonResult<Page<LogEntry>> {
    Ok(Json(app.runs.logs(&path.id, query.0).await?))
}

async fn show_dead_letters(app: App, path: InPath<RunPath>) -> JsonResult<DeadLetters> {
    Ok(Json(app.runs.dead_letters(&path.id).await?))
}

async fn replay_dead_letters(
    app: App,
    path: InPath<RunPath>,
    replay: Sent<Replay>,
) -> JsonResult<ReplayReport> {
    Ok(Json(app.runs.replay(&path.id, replay.0.modules).await?))
}

async fn show_profile(app: App, path: InPath<RunPath>) -> JsonResult<Profile> {
    Ok(Json(Profile::clone(&*app.runs.run_profile(&path.id).await?)))
}

async fn profile_run(app: App, path: InPath<RunPath>) -> JsonResult<Profile> {
    Ok(Json(Profile::clone(&*app.runs.profile_run(&path.id).await?)))
}

async fn predict_run(
    app: App,
    path: InPath<RunPath>,
    request: Sent<PredictRequest>,
) -> JsonResult<Predicted> {
    Ok(Json(app.runs.predict(&path.id, request.0).await?))
}
