use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, NoContent, Response};
use penstock_server::{Page, RunQuery, RunSpec, RunTags, Submission, Validation};
use penstock_stream::StreamAddress;
use penstock_types::run::{RunDetail, RunId, RunSummary};
use penstock_types::tags::Tags;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::answer::created;
use crate::app::App;
use crate::extract::{InPath, InQuery, JsonBody, Sent, SentPipeline};
use crate::openapi::ApiRouter;
use crate::problem::{ApiError, ApiResult, ProblemKind};
use crate::tokens::Role;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SubmitQuery {
    /// Only checks the document.
    #[serde(default)]
    validate_only: bool,
    /// Ends the run after so many seconds, as completed.
    for_s: Option<f64>,
    /// Tags of the run, separated by commas: 16 at most, of 1 to 64 characters each.
    #[serde(default, deserialize_with = "penstock_server::tags")]
    #[schemars(with = "Option<String>")]
    tags: Tags,
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct RunPath {
    /// The run's id.
    pub(super) id: RunId,
}

pub(super) fn routes(api: &mut ApiRouter) {
    api.tag("runs");
    api.route("GET /runs", "Runs, newest first", list_runs);
    api.route("POST /runs", "Submit a pipeline document, or only check it", submit_run)
        .description(
            "A request that is repeated with the same `Idempotency-Key` within a day gives the run of the first. \
             With `validate_only` the answer is what the document comes to.",
        )
        .parameter(json!({
            "in": "header",
            "name": "Idempotency-Key",
            "description": "Makes the request safe to repeat for a day.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" },
        }))
        .answer::<SubmitAnswer>(200)
        .answer::<RunDetail>(201);
    api.route("GET /runs/{id}", "A run, with all its figures", show_run);
    api.route("DELETE /runs/{id}", "Delete a run that is over", delete_run);
    api.route("GET /runs/{id}/spec", "The document as it was sent, and what its modules were", show_spec)
        .answer::<RunSpec>(200);
    api.route("POST /runs/{id}/stop", "Stop a run; answers when it is over", stop_run);
    api.route("POST /runs/{id}/clone", "Submit a run's document again", clone_run).answer::<RunDetail>(201);
    api.route_for(Some(Role::Run), "PUT /runs/{id}/tags", "Replace the tags of a run", set_tags)
        .description("16 tags at most, of 1 to 64 characters each. The run's document stays as it is.");
    api.route_for(Some(Role::Run), "GET /runs/{id}/stream", "Where the batches of a run with the consumer `stream` are to be had", show_stream)
    .description(
        "A Unix socket of the server's machine, and the secret that opens it to processes of the server's user. 409 for a run \
         that has another consumer, waits, or is over.",
    );
}

/// The checked document with `validate_only`, or the run of an earlier request with the same key.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, clippy::large_enum_variant, reason = "it has a schema and no values")]
enum SubmitAnswer {
    Valid(Validation),
    Run(RunDetail),
}

async fn list_runs(app: App, InQuery(query): InQuery<RunQuery>) -> ApiResult<Json<Page<RunSummary>>> {
    Ok(Json(app.runs.list(query).await?))
}

async fn submit_run(
    app: App,
    InQuery(query): InQuery<SubmitQuery>,
    headers: HeaderMap,
    // It holds its room until it is answered.
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
        Err(_) => {
            Err(ApiError::new(ProblemKind::BAD_REQUEST, "an `Idempotency-Key` has ASCII characters only"))
        }
    }
}

fn answer(run: RunDetail, is_new: bool) -> Response {
    created(is_new, &format!("runs/{}", run.summary.id), run)
}

async fn show_run(app: App, InPath(path): InPath<RunPath>) -> ApiResult<Json<RunDetail>> {
    Ok(Json(app.runs.detail(&path.id).await?))
}

async fn delete_run(app: App, InPath(path): InPath<RunPath>) -> ApiResult<NoContent> {
    app.runs.delete(&path.id).await?;
    Ok(NoContent)
}

async fn show_spec(app: App, InPath(path): InPath<RunPath>) -> ApiResult<Response> {
    app.answers.send_json(async { Ok(app.runs.spec(&path.id).await?) }).await
}

async fn stop_run(app: App, InPath(path): InPath<RunPath>) -> ApiResult<Json<RunDetail>> {
    Ok(Json(app.runs.stop(&path.id).await?))
}

async fn clone_run(app: App, InPath(path): InPath<RunPath>) -> ApiResult<Response> {
    Ok(answer(app.runs.clone_run(&path.id).await?, true))
}

async fn set_tags(
    app: App,
    InPath(path): InPath<RunPath>,
    Sent(RunTags { tags }, _room): Sent<RunTags>,
) -> ApiResult<Json<RunTags>> {
    Ok(Json(RunTags { tags: app.runs.set_tags(&path.id, tags).await? }))
}

impl JsonBody for RunTags {}

async fn show_stream(app: App, InPath(path): InPath<RunPath>) -> ApiResult<Json<StreamAddress>> {
    Ok(Json(app.runs.stream(&path.id).await?))
}
