//! What a run measured, logged and failed at.

use std::collections::BTreeMap;

use axum::Json;
use axum::response::Response;
use penstock_pipeline::ReplayReport;
use penstock_server::{
    DeadLetters, ErrorQuery, LogEntry, LogQuery, Page, PredictRequest, Predicted, SeriesQuery, WindowQuery,
};
use penstock_types::ledger::Ledger;
use penstock_types::run::{RunError, RunId, Window};
use penstock_types::series::{Series, TaskTimes, Timeline};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::runs::RunPath;
use crate::app::App;
use crate::extract::{InPath, InQuery, JsonBody, Sent};
use crate::openapi::ApiRouter;
use crate::problem::{ApiError, ApiResult};
use crate::tokens::Role;

#[derive(Deserialize, JsonSchema)]
struct StagePath {
    /// The run's id.
    id: RunId,
    /// The stage's id, e.g. `2:download`.
    stage: String,
}

/// Windows of a run.
#[derive(Serialize, JsonSchema)]
struct WindowList {
    /// First to last.
    items: Vec<Window>,
}

/// Which modules take the letters.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Replay {
    /// What a module's name, as the document has it, is to stand for: `name`, `name@3`, `name@alias` or a digest. Those that are
    /// missing are what the document's names mean now.
    #[serde(default)]
    modules: BTreeMap<String, String>,
}

impl JsonBody for Replay {}
impl JsonBody for PredictRequest {}

pub(super) fn routes(api: &mut ApiRouter) {
    api.tag("data");
    api.route("GET /runs/{id}/series", "Lines to draw: means with least and most", show_series)
        .answer::<Series>(200);
    api.route(
        "GET /runs/{id}/windows",
        "The figures of all stages and queues, window by window",
        list_windows,
    )
    .answer::<WindowList>(200);
    api.route(
        "GET /runs/{id}/timeline",
        "Limits that moved, instances that were replaced, bursts of failures",
        show_timeline,
    )
    .answer::<Timeline>(200);
    api.route("GET /runs/{id}/ledger", "Where every sample went", show_ledger);
    api.route("GET /runs/{id}/stages/{stage}/times", "How long the tasks of a stage took", show_times);
    api.route("GET /runs/{id}/errors", "Failed samples, with the head of each", list_errors);
    api.route("GET /runs/{id}/logs", "What modules logged", list_logs);
    api.route(
        "GET /runs/{id}/dead-letters",
        "Failed samples that were kept aside, by stage",
        show_dead_letters,
    );
    api.route(
        "POST /runs/{id}/replay",
        "Put the dead letters through the stages again that failed them",
        replay_dead_letters,
    );
    api.route_for(Some(Role::Read), "POST /runs/{id}/predict", "What a run would do with some settings changed", predict_run)
    .description(
        "Predicted from the times that the run took so far, by the same rules as it runs by. With `sweep`, changes that would \
         make it faster, too.",
    );
}

async fn show_series(
    app: App,
    InPath(path): InPath<RunPath>,
    InQuery(query): InQuery<SeriesQuery>,
) -> ApiResult<Response> {
    app.answers.send_json(async { Ok(app.runs.series(&path.id, query).await?) }).await
}

async fn list_windows(
    app: App,
    InPath(path): InPath<RunPath>,
    InQuery(query): InQuery<WindowQuery>,
) -> ApiResult<Response> {
    app.answers.send_json(async { Ok(WindowList { items: app.runs.windows(&path.id, query).await? }) }).await
}

async fn show_timeline(app: App, InPath(path): InPath<RunPath>) -> ApiResult<Json<Timeline>> {
    Ok(Json(app.runs.timeline(&path.id).await?))
}

async fn show_ledger(app: App, InPath(path): InPath<RunPath>) -> ApiResult<Json<Ledger>> {
    let snapshot = app.runs.detail(&path.id).await?.snapshot;
    let ledger =
        snapshot.ok_or_else(|| ApiError::not_found("the run has not started: it has no books"))?.ledger;
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
