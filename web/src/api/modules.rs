use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, NoContent, Response};
use axum::{Extension, Json};
use penstock_pipeline::ModuleReport;
use penstock_pipeline::trial::TrialReport;
use penstock_server::{
    Draft, ModuleContent, ModuleDetail, ModuleQuery, ModuleSummary, ModuleUpload, ModuleVersion, Page,
    TryRequest, VersionQuery,
};
use penstock_types::spec::JsonBounds;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::io::ReaderStream;

use crate::access::{Caller, Role};
use crate::answer::created;
use crate::app::App;
use crate::body::BodyPieces;
use crate::extract::{InPath, InQuery, JsonBody, Sent, SentModule};
use crate::limits::TRIAL_BYTES;
use crate::openapi::ApiRouter;
use crate::problem::{ApiResult, JsonResult};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UploadQuery {
    /// Alias to set to the uploaded version.
    alias: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct NamePath {
    /// Name of the module.
    name: String,
}

#[derive(Deserialize, JsonSchema)]
struct VersionPath {
    /// Name of the module.
    name: String,
    /// Number of the version, or an alias.
    version: String,
}

#[derive(Deserialize, JsonSchema)]
struct AliasPath {
    /// Name of the module.
    name: String,
    /// Name of the alias; `latest` is reserved: it always points to the newest version.
    alias: String,
}

/// Version to which an alias is set.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AliasTarget {
    /// Number of the version.
    version: u32,
}

impl JsonBody for AliasTarget {}

impl JsonBody for TryRequest {
    fn bounds() -> JsonBounds {
        JsonBounds::of_bytes(TRIAL_BYTES)
    }
}

pub(super) fn routes(api: &mut ApiRouter) {
    api.tag("modules");
    api.route("GET /modules", list_modules).summary("List modules, by name");
    api.route("POST /modules", upload_module)
        .summary("Upload a module")
        .description(
            "The name comes from the module's manifest, and belongs to the token that uploads it first: further versions of others are \
             refused with 403, unless they have the role `admin`. Bytes that are stored already create no new version.",
        )
        .answer::<ModuleUpload>(200)
        .answer::<ModuleUpload>(201);
    api.route("POST /modules/inspect", inspect_module).summary("Inspect a module without storing it");
    api.route("GET /modules/{name}", show_module)
        .summary("Show a module's aliases and versions, newest first");
    api.route("GET /modules/{name}/versions/{version}", show_version).summary("Show one version of a module");
    api.route("DELETE /modules/{name}/versions/{version}", delete_version)
        .summary("Delete a version that no live run uses and no alias points to");
    api.route("GET /modules/{name}/versions/{version}/content", download_module)
        .summary("Download a module as it was uploaded");
    api.route("POST /modules/{name}/versions/{version}/try", try_module)
        .summary("Try a module on a few samples without storing the results");
    api.route("PUT /modules/{name}/aliases/{alias}", set_alias).summary("Set an alias to a version");
    api.route("DELETE /modules/{name}/aliases/{alias}", remove_alias).summary("Remove an alias");
}

async fn list_modules(app: App, query: InQuery<ModuleQuery>) -> JsonResult<Page<ModuleSummary>> {
    Ok(Json(app.runs.modules(query.0).await?))
}

async fn upload_module(
    app: App,
    // The layer in front of the handler has found the caller.
    Extension(caller): Extension<Caller>,
    InQuery(query): InQuery<UploadQuery>,
    SentModule(pieces): SentModule,
) -> ApiResult<Response> {
    if query.alias.is_some() {
        caller.needs(Role::Admin)?;
    }
    let draft = received(&app, pieces).await?;
    let uploaded = draft.finish(query.alias.as_deref()).await?;
    let address = format!("modules/{}/versions/{}", uploaded.version.name, uploaded.version.version);
    Ok(created(uploaded.created, &address, uploaded))
}

async fn inspect_module(app: App, SentModule(pieces): SentModule) -> JsonResult<ModuleReport> {
    Ok(Json(received(&app, pieces).await?.inspect().await?))
}

async fn received(app: &App, mut pieces: BodyPieces) -> ApiResult<Draft> {
    let mut draft = app.runs.begin_upload().await;
    // The body is read to its end even after a failure, because many clients read the response only after they have sent the
    // whole body.
    while let Some(piece) = pieces.next().await? {
        if let Ok(kept) = &mut draft
            && let Err(error) = kept.write(&piece).await
        {
            draft = Err(error);
        }
    }
    Ok(draft?)
}

async fn show_module(
    app: App,
    path: InPath<NamePath>,
    query: InQuery<VersionQuery>,
) -> JsonResult<ModuleDetail> {
    Ok(Json(app.runs.module(&path.name, query.0).await?))
}

async fn show_version(app: App, path: InPath<VersionPath>) -> JsonResult<ModuleVersion> {
    Ok(Json(app.runs.module_version(&path.name, &path.version).await?))
}

async fn delete_version(app: App, path: InPath<VersionPath>) -> ApiResult<NoContent> {
    app.runs.delete_module(&path.name, &path.version).await?;
    Ok(NoContent)
}

async fn download_module(app: App, path: InPath<VersionPath>, headers: HeaderMap) -> ApiResult<Response> {
    let module = app.runs.module_file(&path.name, &path.version).await?;
    let tag = format!("\"{}\"", module.digest);
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    if is_known {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let attachment = format!("attachment; filename=\"{}.wasm\"", path.name.replace('/', "-"));
    let headers = [
        (header::CONTENT_TYPE, "application/wasm".to_owned()),
        (header::CONTENT_LENGTH, module.size_bytes.to_string()),
        (header::CONTENT_DISPOSITION, attachment),
        (header::ETAG, tag),
    ];
    let body = match module.content {
        ModuleContent::File(file) => Body::from_stream(ReaderStream::new(tokio::fs::File::from_std(file))),
        ModuleContent::Program(bytes) => Body::from(bytes),
    };
    Ok((headers, body).into_response())
}

async fn try_module(
    app: App,
    path: InPath<VersionPath>,
    request: Sent<TryRequest>,
) -> JsonResult<TrialReport> {
    Ok(Json(app.runs.try_module(&path.name, &path.version, request.0).await?))
}

async fn set_alias(app: App, path: InPath<AliasPath>, target: Sent<AliasTarget>) -> JsonResult<ModuleDetail> {
    Ok(Json(app.runs.set_alias(&path.name, &path.alias, target.0.version).await?))
}

async fn remove_alias(app: App, path: InPath<AliasPath>) -> ApiResult<NoContent> {
    app.runs.remove_alias(&path.name, &path.alias).await?;
    Ok(NoContent)
}
