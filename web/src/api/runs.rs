use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use aide::openapi::{
    HeaderStyle, Parameter, ParameterData, ParameterSchemaOrContent, ReferenceOr, SchemaObject,
};
use aide::transform::TransformOperation;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, NoContent, Response};
use penstock_server::{MAX_LIMIT, Page, RunQuery, RunSort, RunSpec, Submission, Validation};
use penstock_types::run::{RunDetail, RunSummary};
use schemars::{JsonSchema, json_schema};
use serde::Deserialize;

use crate::problem::{ApiError, ApiResult, Kind};
use crate::router::App;
use crate::take::{InPath, InQuery, Limit, SentPipeline, words};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunListQuery {
    /// States, separated by commas.
    state: Option<String>,
    /// The pipeline's name.
    name: Option<String>,
    /// Digest of a module that the run used.
    module: Option<String>,
    /// A part of the name or of the id.
    q: Option<String>,
    /// What to sort by, e.g. `name`, with a `-` in front for the other direction; `-submitted_at` when missing.
    sort: Option<String>,
    /// Where an earlier page ended: its `next`.
    cursor: Option<String>,
    /// Most runs; 50 when missing, 200 at most.
    limit: Option<Limit<MAX_LIMIT>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SubmitQuery {
    /// Only checks the document.
    #[serde(default)]
    validate_only: bool,
    /// Ends the run after so many seconds, as completed.
    for_s: Option<f64>,
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct RunPath {
    /// The run's id.
    pub(super) id: String,
}

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/runs",
            get_with(list, |op| op.id("list_runs").tag("runs").summary("Runs, newest first"))
                .post_with(submit, describe_submit),
        )
        .api_route(
            "/runs/{id}",
            get_with(show, |op| op.id("show_run").tag("runs").summary("A run, with all its figures"))
                .delete_with(delete, |op| {
                    op.id("delete_run").tag("runs").summary("Delete a run that is over")
                }),
        )
        .api_route(
            "/runs/{id}/spec",
            get_with(spec, |op| {
                op.id("show_spec")
                    .tag("runs")
                    .summary("The document as it was sent, and what its modules were")
            }),
        )
        .api_route(
            "/runs/{id}/stop",
            post_with(stop, |op| {
                op.id("stop_run").tag("runs").summary("Stop a run; answers when it is over")
            }),
        )
        .api_route(
            "/runs/{id}/clone",
            post_with(clone, |op| {
                op.id("clone_run")
                    .tag("runs")
                    .summary("Submit a run's document again")
                    .response::<201, Json<RunDetail>>()
            }),
        )
}

fn describe_submit(mut op: TransformOperation<'_>) -> TransformOperation<'_> {
    op.inner_mut().parameters.push(ReferenceOr::Item(idempotency_header()));
    op.id("submit_run")
        .tag("runs")
        .summary("Submit a pipeline document, or only check it")
        .description(
            "A request that is repeated with the same `Idempotency-Key` within a day gives the run of the first. \
             With `validate_only` the answer is what the document comes to.",
        )
        .response_with::<200, Json<SubmitAnswer>, _>(|answer| {
            answer.description("What the document comes to, or the run that the same request made before.")
        })
        .response::<201, Json<RunDetail>>()
}

fn idempotency_header() -> Parameter {
    let json_schema =
        json_schema!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" });
    Parameter::Header {
        parameter_data: ParameterData {
            name: "Idempotency-Key".to_owned(),
            description: Some("Makes the request safe to repeat for a day.".to_owned()),
            required: false,
            deprecated: None,
            format: ParameterSchemaOrContent::Schema(SchemaObject {
                json_schema,
                external_docs: None,
                example: None,
            }),
            example: None,
            examples: Default::default(),
            explode: None,
            extensions: Default::default(),
        },
        style: HeaderStyle::Simple,
    }
}

/// For the description alone: a submission is answered by one of these.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, clippy::large_enum_variant, reason = "it has a schema and no values")]
enum SubmitAnswer {
    Valid(Validation),
    Run(RunDetail),
}

async fn list(
    State(app): State<App>,
    InQuery(query): InQuery<RunListQuery>,
) -> ApiResult<Json<Page<RunSummary>>> {
    let sort = match query.sort.as_deref().filter(|sort| !sort.is_empty()) {
        None => RunSort::default(),
        Some(sort) => RunSort::parse(sort).ok_or_else(unsortable)?,
    };
    let query = RunQuery {
        states: words("state", query.state.as_deref())?,
        name: query.name,
        module: query.module,
        text: query.q,
        sort,
        cursor: query.cursor,
        limit: query.limit.map(Limit::get),
    };
    Ok(Json(app.runs.list(query).await?))
}

fn unsortable() -> ApiError {
    let detail = "`sort` takes `submitted_at`, `name`, `state`, `elapsed_s`, `samples`, `failed_samples`, `readiness`, `wait_s` or `qps`, with a \
        `-` in front for the greatest first";
    ApiError::new(Kind::BadRequest, detail)
}

async fn submit(
    State(app): State<App>,
    InQuery(query): InQuery<SubmitQuery>,
    headers: HeaderMap,
    SentPipeline(document): SentPipeline,
) -> ApiResult<Response> {
    if query.validate_only {
        return Ok(Json(app.runs.validate(document).await?).into_response());
    }
    let submission = Submission { document, for_s: query.for_s, idempotency_key: idempotency_key(&headers)? };
    let submitted = app.runs.submit(submission).await?;
    Ok(answer(&submitted.run, submitted.is_new))
}

fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    match key.to_str() {
        Ok(key) => Ok(Some(key.to_owned())),
        Err(_) => Err(ApiError::new(Kind::BadRequest, "an `Idempotency-Key` has ASCII characters only")),
    }
}

fn answer(run: &RunDetail, is_new: bool) -> Response {
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = (status, Json(run)).into_response();
    let location = HeaderValue::from_str(&format!("/api/v1/runs/{}", run.summary.id));
    response.headers_mut().extend(location.ok().map(|location| (header::LOCATION, location)));
    response
}

async fn show(State(app): State<App>, InPath(path): InPath<RunPath>) -> ApiResult<Json<RunDetail>> {
    Ok(Json(app.runs.detail(&path.id).await?))
}

async fn delete(State(app): State<App>, InPath(path): InPath<RunPath>) -> ApiResult<NoContent> {
    app.runs.delete(&path.id).await?;
    Ok(NoContent)
}

async fn spec(State(app): State<App>, InPath(path): InPath<RunPath>) -> ApiResult<Json<RunSpec>> {
    Ok(Json(app.runs.spec(&path.id).await?))
}

async fn stop(State(app): State<App>, InPath(path): InPath<RunPath>) -> ApiResult<Json<RunDetail>> {
    Ok(Json(app.runs.stop(&path.id).await?))
}

async fn clone(State(app): State<App>, InPath(path): InPath<RunPath>) -> ApiResult<Response> {
    Ok(answer(&app.runs.clone_run(&path.id).await?, true))
}
