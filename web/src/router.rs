//! All routes of the server, and the layers in front of them.

use std::sync::Arc;
use std::time::SystemTime;

use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Router, middleware};
use bytes::Bytes;
use penstock_server::{MAX_EVENT_BYTES, Runs};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::trace::TraceLayer;

use crate::access::{RequestGuard, guard_request};
use crate::answer::{JSON, hold_answer};
use crate::app::App;
use crate::limits::{ANSWER_BYTES, EVENT_STREAMS, HELD_BYTES};
use crate::problem::{ApiError, ProblemKind};
use crate::{api, metrics, pages};

pub(crate) fn router(runs: Runs, guard: Arc<RequestGuard>, ending: CancellationToken) -> Router {
    // The events that the server keeps for its streams are part of the budget, too.
    let answers = runs.shared(ANSWER_BYTES - MAX_EVENT_BYTES as u64);
    let app = App {
        runs: runs.clone(),
        guard: guard.clone(),
        streams: runs.shared(EVENT_STREAMS),
        rooms: runs.shared(HELD_BYTES),
        answers: answers.clone(),
        ending,
        started: (SystemTime::now(), Instant::now()),
    };
    let (api, document) = api::routes();
    let document = Bytes::from(document.to_string());
    api.route("/api/openapi.json", get(move || async move { ([(header::CONTENT_TYPE, JSON)], document) }))
        .route("/metrics", get(metrics::metrics))
        .route("/health", get(|| async { "ok\n" }))
        .route_layer(middleware::from_fn_with_state(answers, hold_answer))
        .fallback(pages::page)
        .method_not_allowed_fallback(|| async {
            ApiError::new(
                ProblemKind::METHOD_NOT_ALLOWED,
                "this path does not support the method; `/api/openapi.json` lists the methods of each path",
            )
        })
        // The layer in front of each operation records changes. It is built without the state, so it gets `runs` from this
        // extension.
        .layer(Extension(runs))
        .layer(CatchPanicLayer::custom(|_| ApiError::defect().into_response()))
        .layer(CompressionLayer::new())
        .layer(middleware::from_fn_with_state(guard, guard_request))
        .layer(TraceLayer::new_for_http())
        .with_state(app)
}
