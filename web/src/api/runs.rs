use axum::http::HeaderMap;
use axum::response::{IntoResponse, NoContent, Response};
use axum::{Extension, Json};
use penstock_server::{NewSettings, Page, RunQuery, RunSettings, RunSpec, RunTags, Submission, Validation};
use penstock_stream::StreamAddress;
use penstock_types::run::{RunDetail, RunId, RunSummary};
use penstock_types::tags::Tags;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::access::{Recorded, Role};
use crate::answer::created;
use crate::app::App;
use crate::extract::{InPath, InQuery, JsonBody, Sent, SentPipeline};
use crate::openapi::ApiRouter;
use crate::problem::{ApiResult, JsonResult, ProblemKind, refuse};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SubmitQuery {
    /// Checks the document without submitting a run.
    #[serde(default)]
    validate_only: bool,
    /// Time after which the run ends as completed, in seconds.
    for_s: Option<f64>,
    /// Tags of the run, separated by commas: 16 at most, of 1 to 64 characters each.
    #[serde(default, deserialize_with = "penstock_server::tags")]
    #[schemars(with = "Option<String>")]
    tags: Tags,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ResumeQuery {
    /// Resumes the run although a module or the number of samples in the source differs now.
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct RunPath {
    /// Id of the run.
    pub(super) id: RunId,
}

pub(super) fn routes(api: &mut ApiRouter) {
    api.tag("runs");
    api.route("GET /runs", list_runs).summary("List runs, newest first");
    api.route("POST /runs", submit_run)
        .summary("Submit a pipeline document, or only check it")
        .description(
            "A request that the same token repeats with the same `Idempotency-Key` within a day returns the run of the first request. \
             With `validate_only`, the response is the result of the check.",
        )
        .parameter(json!({
            "in": "header",
            "name": "Idempotency-Key",
            "description": "Key that makes the request safe to repeat for a day.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" },
        }))
        .answer::<SubmitAnswer>(200)
        .answer::<RunDetail>(201);
    api.route("GET /runs/{id}", show_run).summary("Show a run with all its figures");
    api.route("DELETE /runs/{id}", delete_run).summary("Delete a run that has ended");
    api.route("GET /runs/{id}/spec", show_spec)
        .summary("Show the document as it was sent, and the modules that it used")
        .answer::<RunSpec>(200);
    api.route("POST /runs/{id}/stop", stop_run).summary("Stop a run and wait until it has ended");
    api.route("POST /runs/{id}/clone", clone_run)
        .summary("Submit a run's document again")
        .answer::<RunDetail>(201);
    api.route("POST /runs/{id}/resume", resume_run)
        .summary("Continue a run that has ended, as a new run")
        .description(
            "The new run begins where the state of the run ends. The status is 409 for a run that has not ended, that has no state, of which \
             nothing is left to do, or, unless `force` is set, of which a module is another one now.",
        )
        .answer::<RunDetail>(201);
    api.route_for(Some(Role::Run), "PUT /runs/{id}/tags", set_tags)
        .summary("Replace the tags of a run")
        .description(
            "A run may have at most 16 tags of 1 to 64 characters each. The document of the run does not change.",
        );
    api.route("GET /runs/{id}/settings", show_settings)
        .summary("Show the settings of a run that can change while it goes on, and their changes");
    api.route_for(Some(Role::Run), "PATCH /runs/{id}/settings", set_settings)
        .answer::<RunSettings>(200)
        .summary("Change settings of a run that goes on")
        .description(
            "Concurrency of stages, capacities of queues and the number of worker threads can change: all of the request, or none. A setting \
             that is raised takes effect at once, a lowered one as tasks end and items are taken. A resumed run begins with the settings that \
             held. The status is 409 for a run that has not started, or has ended.",
        );
    api.route_for(Some(Role::Run), "GET /runs/{id}/stream", show_stream)
        .summary("Show the address of the batches of a run with the consumer `stream`")
        .description(
            "The address consists of a Unix socket on the server's machine and a secret; only processes of the server's user can use it. \
             The status is 409 for a run that has another consumer, is waiting, or has ended.",
        );
}

/// Result of the check with `validate_only`, or the run of an earlier request with the same key.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, clippy::large_enum_variant, reason = "used for its schema only")]
enum SubmitAnswer {
    Valid(Validation),
    Run(RunDetail),
}

async fn list_runs(app: App, query: InQuery<RunQuery>) -> JsonResult<Page<RunSummary>> {
    Ok(Json(app.runs.list(query.0).await?))
}

async fn submit_run(
    app: App,
    InQuery(query): InQuery<SubmitQuery>,
    headers: HeaderMap,
    // `_room` keeps the memory reserved while the request is handled.
    SentPipeline(document, _room): SentPipeline,
) -> ApiResult<Response> {
    if query.validate_only {
        return Ok(Json(app.runs.validate(document).await?).into_response());
    }
    let idempotency_key = idempotency_key(&headers)?;
    let submission = Submission { document, for_s: query.for_s, idempotency_key, tags: query.tags };
    let submitted = app.runs.submit(submission).await?;
    Ok(answer(submitted.run, submitted.is_new))
}

fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    match key.to_str() {
        Ok(key) => Ok(Some(key.to_owned())),
        Err(_) => refuse(ProblemKind::BAD_REQUEST, "`Idempotency-Key` may contain only ASCII characters"),
    }
}

fn answer(run: RunDetail, is_new: bool) -> Response {
    created(is_new, &format!("runs/{}", run.summary.id), run)
}

async fn show_run(app: App, path: InPath<RunPath>) -> JsonResult<RunDetail> {
    Ok(Json(app.runs.detail(&path.id).await?))
}

async fn delete_run(app: App, path: InPath<RunPath>) -> ApiResult<NoContent> {
    app.runs.delete(&path.id).await?;
    Ok(NoContent)
}

async fn show_spec(app: App, path: InPath<RunPath>) -> ApiResult<Response> {
    app.large_json(async |runs| runs.spec(&path.id).await).await
}

async fn stop_run(app: App, path: InPath<RunPath>) -> JsonResult<RunDetail> {
    Ok(Json(app.runs.stop(&path.id).await?))
}

async fn clone_run(app: App, path: InPath<RunPath>) -> ApiResult<Response> {
    Ok(answer(app.runs.clone_run(&path.id).await?, true))
}

async fn resume_run(app: App, path: InPath<RunPath>, query: InQuery<ResumeQuery>) -> ApiResult<Response> {
    Ok(answer(app.runs.resume(&path.id, query.0.force).await?, true))
}

async fn set_tags(app: App, path: InPath<RunPath>, sent: Sent<RunTags>) -> JsonResult<RunTags> {
    Ok(Json(RunTags { tags: app.runs.set_tags(&path.id, sent.0.tags).await? }))
}

impl JsonBody for RunTags {}

async fn show_settings(app: App, path: InPath<RunPath>) -> JsonResult<RunSettings> {
    Ok(Json(app.runs.run_settings(&path.id).await?))
}

async fn set_settings(app: App, path: InPath<RunPath>, sent: Sent<NewSettings>) -> ApiResult<Response> {
    let set = sent.0.set;
    let parts = set.iter().map(|(pointer, value)| format!("{pointer}={value}")).collect();
    let changed = app.runs.set_settings(&path.id, set).await?;
    Ok((Extension(Recorded(parts)), Json(changed)).into_response())
}

impl JsonBody for NewSettings {}

async fn show_stream(app: App, path: InPath<RunPath>) -> JsonResult<StreamAddress> {
    Ok(Json(app.runs.stream(&path.id).await?))
}
