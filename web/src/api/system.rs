use std::net::IpAddr;
use std::time::SystemTime;

use axum::Json;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{AppendHeaders, NoContent};
use penstock_server::{AuditEntry, AuditQuery, BudgetUse, ClientUse, Page, Runs, StorageUse};
use penstock_types::text::with_causes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use crate::access::{CODE_LIFETIME, Role, TokenError, bearer, digest};
use crate::app::App;
use crate::extract::{InQuery, JsonBody, Sent};
use crate::limits::{CONNECTIONS, DOCUMENT_BYTES, EVENT_STREAMS};
use crate::openapi::ApiRouter;
use crate::problem::{ApiError, ApiResult, JsonResult, ProblemKind, refuse};
use crate::process::{ProcessUse, process_use};

/// Version, budget, limits and use of this server.
#[derive(Serialize, JsonSchema)]
struct System {
    /// Version of Penstock on the server.
    version: &'static str,
    /// Start time of the server, RFC 3339 in UTC.
    started_at: String,
    /// Time since the server started, in seconds.
    uptime_s: f64,
    /// Identifier of this start of the server; the first part of the ids of live events.
    epoch: String,
    /// Budget of all runs, and its current use.
    budget: BudgetUse,
    /// Use of the budget by each client; clients without runs are left out.
    clients: Vec<ClientUse>,
    /// Limits of requests and runs.
    limits: SystemLimits,
    /// Use of the data directory.
    storage: StorageUse,
    /// Resources that the server's process uses; `null` if the operating system does not report them.
    process: Option<ProcessUse>,
    /// Example pipeline that runs on this server.
    samples: SampleOffer,
}

/// Limits of requests and runs.
#[derive(Serialize, JsonSchema)]
struct SystemLimits {
    /// Maximum size of a module, in MiB.
    upload_mib: f64,
    /// Maximum size of a pipeline document, in KiB.
    document_kib: u64,
    /// Maximum memory, in MiB, that a document may allow for one instance of a module.
    module_memory_mib: u32,
    /// Maximum output per sample, in MiB, that a document may allow for a module.
    module_output_mib: u32,
    /// Maximum CPU time per sample, in milliseconds, that a document may allow for a module.
    deadline_ms: u32,
    /// Maximum number of waiting runs.
    runs_queued: u32,
    /// Maximum duration of a run, in seconds; `null` if unlimited.
    run_max_s: Option<f64>,
    /// Maximum number of open live streams.
    event_streams: u64,
    /// Maximum number of open connections.
    connections: u64,
}

/// Sign-in state of a client.
#[derive(Serialize, JsonSchema)]
struct Session {
    /// True if this server requires a token.
    token_required: bool,
    /// True if this browser or request may use the API.
    signed_in: bool,
    /// Name of the token that was used; `null` if not signed in.
    name: Option<String>,
    /// Role of the token that was used; `null` if not signed in.
    role: Option<Role>,
}

/// Credentials with which a browser signs in: a token or a code.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SignIn {
    /// Token of the server.
    #[serde(default)]
    token: Option<String>,
    /// Code of a sign-in link.
    #[serde(default)]
    code: Option<String>,
}

/// Code that opens one session.
#[derive(Serialize, JsonSchema)]
struct SignInCode {
    /// One-time code. A sign-in link is the address of a page, followed by `#sign-in=` and the code.
    code: String,
    /// Time until the code expires, in seconds.
    expires_in_s: u64,
}

impl JsonBody for SignIn {}

pub(super) fn routes(api: &mut ApiRouter) {
    api.tag("system");
    api.route("GET /system", show_system).summary("Show the version, budget, limits and use of the server");
    api.route("GET /schema/pipeline", pipeline_schema)
        .summary("Show the JSON Schema of the pipeline document");
    api.route_for(Some(Role::Admin), "GET /audit", list_audit).summary("List the audit log, newest first");
    api.tag("session");
    api.route_for(None, "GET /session", show_session).summary("Show the sign-in state of the client");
    api.route_for(None, "POST /session", sign_in).summary("Exchange a token or a code for a cookie");
    api.route_for(Some(Role::Read), "POST /session/code", make_code)
        .summary("Create the code of a sign-in link")
        .description(
            "The code opens one session. The request must send the token itself; a cookie is not enough.",
        );
    api.route_for(None, "DELETE /session", sign_out).summary("End the session");
}

async fn show_system(app: App) -> JsonResult<System> {
    let settings = app.runs.settings();
    let (started_at, started) = app.started;
    Ok(Json(System {
        version: env!("CARGO_PKG_VERSION"),
        started_at: humantime::format_rfc3339_millis(started_at).to_string(),
        uptime_s: started.elapsed().as_secs_f64(),
        epoch: app.runs.epoch().to_owned(),
        budget: app.runs.use_now(),
        clients: app.runs.clients(),
        limits: SystemLimits {
            upload_mib: settings.sandbox.gate.module_bytes as f64 / f64::from(1 << 20),
            document_kib: DOCUMENT_BYTES as u64 >> 10,
            module_memory_mib: settings.bounds.instance_memory_mib.get(),
            module_output_mib: settings.bounds.output_mib.get(),
            deadline_ms: settings.bounds.deadline_ms.get(),
            runs_queued: settings.bounds.queued.get(),
            run_max_s: settings.bounds.max_time.map(|most| most.get().as_secs_f64()),
            event_streams: EVENT_STREAMS,
            connections: CONNECTIONS as u64,
        },
        storage: app.runs.storage().await?,
        process: process_use(),
        samples: best_sample(&app.runs),
    }))
}

async fn list_audit(app: App, query: InQuery<AuditQuery>) -> JsonResult<Page<AuditEntry>> {
    Ok(Json(app.runs.audit(query.0).await?))
}

async fn pipeline_schema() -> Json<Value> {
    Json(penstock_types::spec::schema())
}

async fn show_session(app: App, headers: HeaderMap) -> Json<Session> {
    let caller = app.guard.caller(&headers).ok();
    Json(Session {
        token_required: app.guard.tokens.is_some(),
        signed_in: caller.is_some(),
        name: caller.as_ref().map(|caller| caller.name.to_string()),
        role: caller.map(|caller| caller.role),
    })
}

async fn sign_in(
    app: App,
    ConnectInfo(address): ConnectInfo<IpAddr>,
    headers: HeaderMap,
    Sent(sign_in, _): Sent<SignIn>,
) -> ApiResult<Cookied> {
    let Some(tokens) = &app.guard.tokens else { return Ok((AppendHeaders(None), NoContent)) };
    let token = match sign_in {
        SignIn { token: Some(offered), .. } => Ok(digest(offered.trim().as_bytes())),
        SignIn { code, .. } => {
            let found = code.and_then(|code| app.guard.take_code(&code, Instant::now()));
            let wrong = "the sign-in link was used or has expired; `penstock token link` prints a new one";
            found.ok_or_else(|| ApiError::new(ProblemKind::SIGN_IN_NEEDED, wrong))
        }
    };
    let now = SystemTime::now();
    match token.and_then(|token| tokens.holder(&token, now).map(|_| token)) {
        Ok(token) => {
            let cookie = app.guard.sessions.begin(token, now, app.guard.is_over_tls(&headers));
            Ok(with_cookie(cookie.map_err(|error| no_random(&error))?))
        }
        Err(error) => {
            app.guard.pause_after_wrong(address).await;
            Err(error)
        }
    }
}

async fn make_code(app: App, headers: HeaderMap) -> JsonResult<SignInCode> {
    if app.guard.tokens.is_none() {
        return Err(ApiError::not_found("this server requires no token, so it has no sign-in codes"));
    }
    // A session cookie is not enough, because a session must not create further sessions that live longer. The guard has checked
    // the token.
    let Some(token) = bearer(&headers).map(digest) else {
        return refuse(ProblemKind::TOKEN_NEEDED, "send the server's token as `Authorization: Bearer …`");
    };
    let code = app.guard.issue_code(token, Instant::now()).map_err(|error| no_random(&error))?;
    Ok(Json(SignInCode { code, expires_in_s: CODE_LIFETIME.as_secs() }))
}

fn no_random(error: &TokenError) -> ApiError {
    tracing::error!(error = with_causes(error), "failed to open a session");
    ApiError::defect()
}

async fn sign_out(app: App, headers: HeaderMap) -> Cookied {
    with_cookie(app.guard.sessions.end(&headers))
}

/// Response 204, which may set a cookie.
type Cookied = (AppendHeaders<Option<(HeaderName, String)>>, NoContent);

fn with_cookie(cookie: String) -> Cookied {
    (AppendHeaders(Some((header::SET_COOKIE, cookie))), NoContent)
}

/// Example pipeline that runs on this server unchanged.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct SampleOffer {
    /// Name of the pipeline.
    name: String,
    /// Description of the pipeline, in one sentence.
    about: &'static str,
    /// Pipeline document, which can be submitted unchanged.
    document: Value,
}

/// Example pipeline, its description, and the store that it needs.
struct Sample {
    document: &'static str,
    about: &'static str,
    /// Name of the store that it reads.
    needs: Option<&'static str>,
}

/// Example pipelines in order of preference. The last one needs no store, so it runs on every server.
const SAMPLES: [Sample; 2] = [
    Sample {
        document: include_str!("../../../examples/pipelines/photos.json"),
        about: "Photos are read in batches, decoded and resized in the sandbox on 12 threads, and consumed by a training step of 30 ms.",
        needs: Some("photos"),
    },
    Sample {
        document: include_str!("../../../examples/pipelines/tour.json"),
        about: "Four stages that only wait, each for a different time, so that queues fill up and run empty; needs no data.",
        needs: None,
    },
];

/// Returns the first example whose store exists on this server.
fn best_sample(runs: &Runs) -> SampleOffer {
    let stores = runs.stores();
    let is_ready =
        |sample: &Sample| sample.needs.is_none_or(|needed| stores.iter().any(|store| store.name == needed));
    let Sample { document, about, .. } =
        SAMPLES.into_iter().find(is_ready).expect("the last example needs no store");
    let document: Value = serde_json::from_str(document).expect("the examples are JSON");
    let name = document["name"].as_str().unwrap_or("sample").to_owned();
    SampleOffer { name, about, document }
}
