//! JSON responses. Large ones are made in turns, and their memory is bounded until clients have read them.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use penstock_server::{HeldAmount, Runs, RunsError, SharedAmount};
use serde::Serialize;

use crate::access::client;
use crate::app::App;
use crate::body::{SMALL_BYTES, beyond_small};
use crate::problem::{ApiError, ApiResult};

pub(crate) const JSON: &str = "application/json";
/// Size of a chunk of a response, in bytes.
const PIECE: usize = 64 << 10;
/// Memory of the compression of a response, in bytes.
const COMPRESSION_BYTES: u64 = 384 << 10;

/// Large response that is being made: the turn of its client, and the memory that it takes.
pub(crate) struct LargeAnswer {
    turn: HeldAmount,
    room: Arc<HeldAmount>,
    /// Handle whose answers are made in this memory.
    pub(crate) runs: Runs,
}

impl App {
    /// Waits for the client's turn to make a large response. The limits of `tower` end when a response begins, not when the client
    /// has read it.
    pub(crate) async fn large_answer(&self) -> ApiResult<LargeAnswer> {
        LargeAnswer::begin(&self.runs, &self.answers).await
    }

    /// Responds with the large value that `read` gets, as JSON.
    pub(crate) async fn large_json<T: Serialize + Send + 'static>(
        &self,
        read: impl AsyncFnOnce(Runs) -> Result<T, RunsError>,
    ) -> ApiResult<Response> {
        let answer = self.large_answer().await?;
        let value = read(answer.runs.clone()).await?;
        answer.json(value).await
    }
}

impl LargeAnswer {
    async fn begin(runs: &Runs, answers: &SharedAmount) -> ApiResult<Self> {
        let turn = runs.turn_to_answer().await?;
        let room = Arc::new(answers.part(runs.client()));
        Ok(Self { turn, runs: runs.within(room.clone()), room })
    }

    pub(crate) async fn json<T: Serialize + Send + 'static>(self, value: T) -> ApiResult<Response> {
        self.written(value, |value| Ok(serde_json::to_vec(&value)?)).await
    }

    /// Responds with a value serialized by `write`. Its bytes count against the budget until the client has read them.
    pub(crate) async fn written<T: Send + 'static>(
        self,
        value: T,
        write: impl FnOnce(T) -> ApiResult<Vec<u8>> + Send + 'static,
    ) -> ApiResult<Response> {
        let Self { turn, room, runs: _ } = self;
        let written = tokio::task::spawn_blocking(move || {
            // The permit and the memory are held until the value is serialized, even if the client disconnects.
            let _turn = turn;
            write(value).map(|bytes| (Bytes::from(bytes), room))
        });
        let (bytes, room) = written.await.map_err(|error| unwritten(&error))??;
        if !room.set(held_bytes(bytes.len() as u64)) {
            return Err(busy());
        }
        Ok(([(header::CONTENT_TYPE, JSON)], in_pieces(bytes, room)).into_response())
    }
}

/// Counts a response whose size is known against the budget until the client has read it. If the budget is used up, the response to
/// a `GET` is replaced by 503; that to a change is sent in any case.
pub(crate) async fn hold_answer(
    State(answers): State<SharedAmount>,
    request: Request,
    next: Next,
) -> Response {
    let (client, is_get) = (client(request.extensions()), request.method() == Method::GET);
    let response = next.run(request).await;
    let size = response.body().size_hint().exact().unwrap_or(0);
    if size <= SMALL_BYTES as u64 {
        return response;
    }
    let room = Arc::new(answers.part(&client));
    if !room.set(held_bytes(size)) && is_get {
        return busy().into_response();
    }
    let (mut parts, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, usize::MAX).await else { return ApiError::defect().into_response() };
    parts.headers.insert(header::CONTENT_LENGTH, size.into());
    Response::from_parts(parts, in_pieces(bytes, room))
}

/// Memory of a response of this size that counts against the budget.
fn held_bytes(size: u64) -> u64 {
    if size <= SMALL_BYTES as u64 { 0 } else { beyond_small(size) + COMPRESSION_BYTES }
}

/// Responds with 201 for a new resource, or with 200 for an existing one. Both responses name the address of the resource.
pub(crate) fn created(is_new: bool, address: &str, what: impl Serialize) -> Response {
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    (status, [(header::LOCATION, format!("/api/v1/{address}"))], Json(what)).into_response()
}

fn unwritten(error: &dyn std::error::Error) -> ApiError {
    tracing::error!(%error, "failed to serialize a response");
    ApiError::defect()
}

impl From<serde_json::Error> for ApiError {
    fn from(error: serde_json::Error) -> Self {
        unwritten(&error)
    }
}

fn busy() -> ApiError {
    ApiError::busy("too many large responses are in progress; try again later", 5)
}

fn in_pieces(bytes: Bytes, room: Arc<HeldAmount>) -> Body {
    let pieces = stream::unfold((bytes, room), |(mut bytes, room)| async move {
        if bytes.is_empty() {
            return None;
        }
        let piece = bytes.split_to(bytes.len().min(PIECE));
        Some((Ok::<_, Infallible>(piece), (bytes, room)))
    });
    // Fused, because the compression layer polls the stream again after its end.
    Body::from_stream(pieces.fuse())
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::{get, post};
    use http_body_util::BodyExt;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;
    use penstock_pipeline::Stores;
    use penstock_server::RunsSettings;
    use penstock_types::spec::Percent;

    use super::*;

    const LARGE: usize = 600 << 10;

    fn shared(bytes: u64) -> SharedAmount {
        SharedAmount::new(bytes, Percent::default())
    }

    fn asked(answers: &SharedAmount, request: Request) -> impl Future<Output = Response> {
        let large = || async { "x".repeat(LARGE) };
        let app =
            Router::new().route("/large", get(large).post(large)).route("/small", post(|| async { "x" }));
        let app = app.route_layer(from_fn_with_state(answers.clone(), hold_answer));
        let answer = TowerToHyperService::new(app).call(request);
        async move { answer.await.unwrap() }
    }

    fn request(method: &str, path: &str) -> Request {
        Request::builder().method(method).uri(path).body(Body::empty()).unwrap()
    }

    #[tokio::test]
    async fn a_response_counts_until_it_is_read_and_further_ones_are_refused() {
        let answers = shared(2 << 20);
        let first = asked(&answers, request("GET", "/large")).await;
        let held = answers.used();
        assert!(held > LARGE as u64, "{held}");
        assert_eq!(
            asked(&answers, request("GET", "/large")).await.status(),
            503,
            "beyond the share of a client"
        );
        assert_eq!(asked(&answers, request("POST", "/large")).await.status(), 200, "the change is made");
        assert_eq!(asked(&answers, request("POST", "/small")).await.status(), 200);
        assert_eq!(answers.used(), held);
        assert_eq!(first.headers()[header::CONTENT_LENGTH], LARGE.to_string());
        let mut body = first.into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), PIECE);
        assert_eq!(answers.used(), held);
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), LARGE - PIECE);
        assert_eq!(answers.used(), 0);
        drop(asked(&answers, request("GET", "/large")).await);
        assert_eq!(answers.used(), 0, "a client that leaves frees its memory");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_large_answer_takes_its_turn_and_memory_until_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let settings = RunsSettings::new(folder.path(), Stores::default());
        let runs = Runs::open(&tokio::runtime::Handle::current(), settings).unwrap();
        let answers = shared(2 << 20);
        let begin = async || LargeAnswer::begin(&runs, &answers).await.unwrap();
        let making = begin().await;
        assert!(making.room.set(1 << 20), "what the making of a value takes");
        let first = making.json("x".repeat(LARGE)).await.unwrap();
        assert!((LARGE as u64..1 << 20).contains(&answers.used()));
        assert_eq!(begin().await.json("x".repeat(LARGE)).await.unwrap_err().into_response().status(), 503);
        assert!(begin().await.json(1).await.is_ok(), "small responses do not count");
        assert_eq!(first.into_body().collect().await.unwrap().to_bytes().len(), LARGE + 2);
        assert_eq!(answers.used(), 0);
        // One client makes at most two answers at a time, so that another has its turn.
        let held = [begin().await, begin().await];
        let mut third = Box::pin(begin());
        assert!(futures::poll!(third.as_mut()).is_pending());
        assert!(runs.for_client(penstock_server::ClientId::new("other")).turn_to_answer().await.is_ok());
        drop(held);
        third.await;
    }
}
