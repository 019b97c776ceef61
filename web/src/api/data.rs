//! What a run measured, logged and failed at.

use std::collections::BTreeMap;

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use penstock_pipeline::ReplayReport;
use penstock_server::{
    DeadLetters, ErrorQuery, LogEntry, LogQuery, MAX_LIMIT, MAX_POINTS, Page, SeriesQuery, WindowQuery,
};
use penstock_types::ledger::Ledger;
use penstock_types::run::{RunError, Window};
use penstock_types::series::{Series, TaskTimes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::runs::RunPath;
use crate::problem::{ApiError, ApiResult};
use crate::router::App;
use crate::take::{InPath, InQuery, Limit, Sent, small, word, words};

#[derive(Deserialize, JsonSchema)]
struct StagePath {
    /// The run's id.
    id: String,
    /// The stage's id, e.g. `2:download`.
    stage: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SeriesParameters {
    /// From when, in seconds since the run's start; its start when missing.
    from_s: Option<f64>,
    /// Until when; its end, or now, when missing.
    to_s: Option<f64>,
    /// Most points of a line; 600 when missing, 5000 at most.
    points: Option<Limit<MAX_POINTS>>,
    /// Metrics, separated by commas; all when missing.
    metrics: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WindowParameters {
    /// From when, in seconds since the run's start.
    from_s: Option<f64>,
    /// Until when.
    to_s: Option<f64>,
    /// Length of a window, in seconds, rounded up to a multiple of 0.25; 1 when missing.
    every_s: Option<f64>,
}

/// Windows of a run.
#[derive(Serialize, JsonSchema)]
struct WindowList {
    /// First to last.
    items: Vec<Window>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ErrorParameters {
    /// Id of a stage.
    stage: Option<String>,
    /// Whose fault it is.
    class: Option<String>,
    /// A part of the message or of the key.
    q: Option<String>,
    /// Where an earlier page ended: its `next`.
    cursor: Option<String>,
    /// Most errors; 50 when missing, 200 at most.
    limit: Option<Limit<MAX_LIMIT>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogParameters {
    /// Id of a stage.
    stage: Option<String>,
    /// The least level: `debug`, `info`, `warn` or `error`.
    level: Option<String>,
    /// A part of the line.
    q: Option<String>,
    /// Where an earlier page ended: its `next`.
    cursor: Option<String>,
    /// Most lines; 50 when missing, 200 at most.
    limit: Option<Limit<MAX_LIMIT>>,
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

small!(Replay);

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/runs/{id}/series",
            get_with(series, |op| {
                op.id("show_series")
                    .tag("data")
                    .summary("Lines to draw: means with least and most")
                    .response::<200, Json<Series>>()
            }),
        )
        .api_route(
            "/runs/{id}/windows",
            get_with(windows, |op| {
                op.id("list_windows")
                    .tag("data")
                    .summary("The figures of all stages and queues, window by window")
                    .response::<200, Json<WindowList>>()
            }),
        )
        .api_route(
            "/runs/{id}/ledger",
            get_with(ledger, |op| op.id("show_ledger").tag("data").summary("Where every sample went")),
        )
        .api_route(
            "/runs/{id}/stages/{stage}/times",
            get_with(times, |op| {
                op.id("show_times").tag("data").summary("How long the tasks of a stage took")
            }),
        )
        .api_route(
            "/runs/{id}/errors",
            get_with(errors, |op| {
                op.id("list_errors").tag("data").summary("Failed samples, with the head of each")
            }),
        )
        .api_route(
            "/runs/{id}/logs",
            get_with(logs, |op| op.id("list_logs").tag("data").summary("What modules logged")),
        )
        .api_route(
            "/runs/{id}/dead-letters",
            get_with(dead_letters, |op| {
                op.id("show_dead_letters")
                    .tag("data")
                    .summary("Failed samples that were kept aside, by stage")
            }),
        )
        .api_route(
            "/runs/{id}/replay",
            post_with(replay, |op| {
                op.id("replay_dead_letters")
                    .tag("data")
                    .summary("Put the dead letters through the stages again that failed them")
            }),
        )
}

async fn series(
    State(app): State<App>,
    InPath(path): InPath<RunPath>,
    InQuery(query): InQuery<SeriesParameters>,
) -> ApiResult<Response> {
    let query = SeriesQuery {
        from_s: query.from_s,
        to_s: query.to_s,
        points: query.points.map(Limit::get),
        metrics: words("metrics", query.metrics.as_deref())?,
    };
    app.answers.make(async { Ok(app.runs.series(&path.id, query).await?) }).await
}

async fn windows(
    State(app): State<App>,
    InPath(path): InPath<RunPath>,
    InQuery(query): InQuery<WindowParameters>,
) -> ApiResult<Response> {
    let query = WindowQuery { from_s: query.from_s, to_s: query.to_s, every_s: query.every_s };
    app.answers.make(async { Ok(WindowList { items: app.runs.windows(&path.id, query).await? }) }).await
}

async fn ledger(State(app): State<App>, InPath(path): InPath<RunPath>) -> ApiResult<Json<Ledger>> {
    let snapshot = app.runs.detail(&path.id).await?.snapshot;
    let ledger =
        snapshot.ok_or_else(|| ApiError::not_found("the run has not started: it has no books"))?.ledger;
    Ok(Json(ledger))
}

async fn times(State(app): State<App>, InPath(path): InPath<StagePath>) -> ApiResult<Json<TaskTimes>> {
    Ok(Json(app.runs.times(&path.id, &path.stage).await?))
}

async fn errors(
    State(app): State<App>,
    InPath(path): InPath<RunPath>,
    InQuery(query): InQuery<ErrorParameters>,
) -> ApiResult<Json<Page<RunError>>> {
    let class = query.class.as_deref().map(|class| word("class", class)).transpose()?;
    let query = ErrorQuery {
        stage: query.stage,
        class,
        text: query.q,
        cursor: query.cursor,
        limit: query.limit.map(Limit::get),
    };
    Ok(Json(app.runs.errors(&path.id, query).await?))
}

async fn logs(
    State(app): State<App>,
    InPath(path): InPath<RunPath>,
    InQuery(query): InQuery<LogParameters>,
) -> ApiResult<Json<Page<LogEntry>>> {
    let level = query.level.as_deref().map(|level| word("level", level)).transpose()?;
    let query = LogQuery {
        stage: query.stage,
        level,
        text: query.q,
        cursor: query.cursor,
        limit: query.limit.map(Limit::get),
    };
    Ok(Json(app.runs.logs(&path.id, query).await?))
}

async fn dead_letters(State(app): State<App>, InPath(path): InPath<RunPath>) -> ApiResult<Json<DeadLetters>> {
    Ok(Json(app.runs.dead_letters(&path.id).await?))
}

async fn replay(
    State(app): State<App>,
    InPath(path): InPath<RunPath>,
    Sent(replay, _): Sent<Replay>,
) -> ApiResult<Json<ReplayReport>> {
    Ok(Json(app.runs.replay(&path.id, replay.modules).await?))
}
