//! Every address of the server, and what stands in front of all of them.

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, middleware};
use bytes::Bytes;
use penstock_server::Runs;
use penstock_types::config::{GateBounds, RunBounds};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::trace::TraceLayer;

use crate::answer::Answers;
use crate::body::Rooms;
use crate::guard::{Guard, keep};
use crate::problem::{ApiError, Kind};
use crate::settings::{ServeLimits, ServeSettings};
use crate::{api, metrics, pages};

/// What handlers share.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) runs: Runs,
    pub(crate) guard: Guard,
    pub(crate) limits: ServeLimits,
    /// What modules and runs may be; others hold to it, here it is shown.
    pub(crate) modules: Arc<GateBounds>,
    pub(crate) bounds: RunBounds,
    /// Places for streams of live events.
    pub(crate) streams: Arc<Semaphore>,
    /// Room for bodies that are held whole.
    pub(crate) rooms: Rooms,
    /// Places for large answers that are being made, and room for those that are on their way.
    pub(crate) answers: Answers,
    /// Whether the server is ending: streams end with it.
    pub(crate) ending: CancellationToken,
    pub(crate) started: Started,
}

/// When the server started, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    pub(crate) at: std::time::SystemTime,
    pub(crate) tick: tokio::time::Instant,
}

pub(crate) fn router(settings: &ServeSettings, runs: Runs, ending: CancellationToken) -> Router {
    let guard = Guard::new(settings);
    let limits = settings.limits;
    let streams = Arc::new(Semaphore::new(limits.event_streams));
    let started = Started { at: std::time::SystemTime::now(), tick: tokio::time::Instant::now() };
    let (modules, bounds) = (Arc::new(settings.modules.clone()), settings.bounds);
    let (rooms, answers) = (Rooms::new(limits.held_bytes), Answers::new(&limits));
    let app =
        App { runs, guard: guard.clone(), limits, modules, bounds, streams, rooms, answers, ending, started };
    let (api, document) = api::routes();
    let document = Bytes::from(document.to_string());
    api.route("/api/openapi.json", get(move || async move { json(document) }))
        .route("/metrics", get(metrics::metrics))
        .route("/health", get(|| async { "ok\n" }))
        .fallback(pages::page)
        .method_not_allowed_fallback(|| async {
            ApiError::new(Kind::MethodNotAllowed, "`/api/openapi.json` lists the methods of each address")
        })
        .layer(DefaultBodyLimit::disable())
        .layer(CatchPanicLayer::custom(|_| panicked()))
        .layer(CompressionLayer::new())
        .layer(middleware::from_fn_with_state(guard, keep))
        .layer(TraceLayer::new_for_http())
        .with_state(app)
}

/// A body of JSON that is written already.
pub(crate) fn json(body: Bytes) -> Response {
    let mut response = Response::new(axum::body::Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn panicked() -> Response {
    ApiError::new(Kind::Defect, "a defect of Penstock; the server's log says more").into_response()
}
