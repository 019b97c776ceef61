use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with, put_with};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, NoContent, Response};
use penstock_pipeline::ModuleReport;
use penstock_pipeline::trial::TrialReport;
use penstock_server::{
    Draft, MAX_LIMIT, ModuleDetail, ModuleQuery, ModuleSummary, ModuleUpload, ModuleVersion, Page, TryRequest,
};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::io::ReaderStream;

use crate::body::Pieces;
use crate::problem::ApiResult;
use crate::router::App;
use crate::settings::ServeLimits;
use crate::take::{InPath, InQuery, Limit, Limited, Sent, SentModule, small};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ModuleListQuery {
    /// A part of the name.
    q: Option<String>,
    /// Where an earlier page ended: its `next`.
    cursor: Option<String>,
    /// Most modules; 50 when missing, 200 at most.
    limit: Option<Limit<MAX_LIMIT>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UploadQuery {
    /// An alias that is to mean this version from now on.
    alias: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct NamePath {
    /// The module's name.
    name: String,
}

#[derive(Deserialize, JsonSchema)]
struct VersionPath {
    /// The module's name.
    name: String,
    /// Number of the version, or an alias.
    version: String,
}

#[derive(Deserialize, JsonSchema)]
struct AliasPath {
    /// The module's name.
    name: String,
    /// The alias; `latest` is always the newest version.
    alias: String,
}

/// What an alias is to mean.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AliasTarget {
    /// Number of the version.
    version: u32,
}

small!(AliasTarget);

impl Limited for TryRequest {
    fn most(limits: &ServeLimits) -> usize {
        limits.trial_bytes
    }
}

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/modules",
            get_with(list, |op| op.id("list_modules").tag("modules").summary("Modules, by name")).post_with(
                upload,
                |op| {
                    op.id("upload_module")
                        .tag("modules")
                        .summary("Upload a module")
                        .description("Its name is the one in its manifest. Bytes that are known already make no new version.")
                        .response::<200, Json<ModuleUpload>>()
                        .response::<201, Json<ModuleUpload>>()
                },
            ),
        )
        .api_route(
            "/modules/inspect",
            post_with(inspect, |op| {
                op.id("inspect_module").tag("modules").summary("Tell what a module is, without keeping it")
            }),
        )
        .api_route(
            "/modules/{name}",
            get_with(show, |op| op.id("show_module").tag("modules").summary("A module's versions and aliases")),
        )
        .api_route(
            "/modules/{name}/versions/{version}",
            get_with(version, |op| op.id("show_version").tag("modules").summary("One version of a module"))
                .delete_with(delete, |op| {
                    op.id("delete_version")
                        .tag("modules")
                        .summary("Delete a version that no run needs and no alias means")
                }),
        )
        .api_route(
            "/modules/{name}/versions/{version}/content",
            get_with(content, |op| op.id("download_module").tag("modules").summary("The module as it was uploaded")),
        )
        .api_route(
            "/modules/{name}/versions/{version}/try",
            post_with(attempt, |op| {
                op.id("try_module").tag("modules").summary("Put a few samples through a module; nothing is kept")
            }),
        )
        .api_route(
            "/modules/{name}/aliases/{alias}",
            put_with(set_alias, |op| op.id("set_alias").tag("modules").summary("Let an alias mean a version"))
                .delete_with(remove_alias, |op| op.id("remove_alias").tag("modules").summary("Remove an alias")),
        )
}

async fn list(
    State(app): State<App>,
    InQuery(query): InQuery<ModuleListQuery>,
) -> ApiResult<Json<Page<ModuleSummary>>> {
    let query = ModuleQuery { text: query.q, cursor: query.cursor, limit: query.limit.map(Limit::get) };
    Ok(Json(app.runs.modules(query).await?))
}

async fn upload(
    State(app): State<App>,
    InQuery(query): InQuery<UploadQuery>,
    SentModule(pieces): SentModule,
) -> ApiResult<Response> {
    let draft = received(&app, pieces).await?;
    let uploaded = draft.finish(query.alias.as_deref()).await?;
    let status = if uploaded.created { StatusCode::CREATED } else { StatusCode::OK };
    let version = &uploaded.version;
    let location = format!("/api/v1/modules/{}/versions/{}", version.name, version.version);
    let mut response = (status, Json(&uploaded)).into_response();
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

async fn inspect(State(app): State<App>, SentModule(pieces): SentModule) -> ApiResult<Json<ModuleReport>> {
    Ok(Json(received(&app, pieces).await?.inspect().await?))
}

async fn received(app: &App, mut pieces: Pieces) -> ApiResult<Draft> {
    let mut draft = app.runs.begin_upload().await?;
    while let Some(piece) = pieces.next().await? {
        draft.write(&piece).await?;
    }
    Ok(draft)
}

async fn show(State(app): State<App>, InPath(path): InPath<NamePath>) -> ApiResult<Json<ModuleDetail>> {
    Ok(Json(app.runs.module(&path.name).await?))
}

async fn version(
    State(app): State<App>,
    InPath(path): InPath<VersionPath>,
) -> ApiResult<Json<ModuleVersion>> {
    Ok(Json(app.runs.module_version(&path.name, &path.version).await?))
}

async fn delete(State(app): State<App>, InPath(path): InPath<VersionPath>) -> ApiResult<NoContent> {
    app.runs.delete_module(&path.name, &path.version).await?;
    Ok(NoContent)
}

async fn content(
    State(app): State<App>,
    InPath(path): InPath<VersionPath>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let module = app.runs.module_file(&path.name, &path.version).await?;
    let tag = format!("\"{}\"", module.digest);
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let file = ReaderStream::new(tokio::fs::File::from_std(module.file));
        let mut response = Response::new(Body::from_stream(file));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/wasm"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(module.size_bytes));
        let name = format!("attachment; filename=\"{}.wasm\"", path.name);
        headers.extend(HeaderValue::from_str(&name).ok().map(|name| (header::CONTENT_DISPOSITION, name)));
        response
    };
    response.headers_mut().extend(HeaderValue::from_str(&tag).ok().map(|tag| (header::ETAG, tag)));
    Ok(response)
}

async fn attempt(
    State(app): State<App>,
    InPath(path): InPath<VersionPath>,
    // It holds its room until it is answered.
    Sent(request, _room): Sent<TryRequest>,
) -> ApiResult<Json<TrialReport>> {
    Ok(Json(app.runs.try_module(&path.name, &path.version, request).await?))
}

async fn set_alias(
    State(app): State<App>,
    InPath(path): InPath<AliasPath>,
    Sent(target, _): Sent<AliasTarget>,
) -> ApiResult<Json<ModuleDetail>> {
    Ok(Json(app.runs.set_alias(&path.name, &path.alias, target.version).await?))
}

async fn remove_alias(State(app): State<App>, InPath(path): InPath<AliasPath>) -> ApiResult<NoContent> {
    app.runs.remove_alias(&path.name, &path.alias).await?;
    Ok(NoContent)
}
