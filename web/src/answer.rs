//! JSON responses. Only a few large responses are produced at a time, in bounded memory.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::{ByteBudget, HeldBytes};
use crate::problem::{ApiError, ApiResult};
use crate::settings::ServeLimits;

pub(crate) const JSON: &str = "application/json";
/// Maximum time that a request waits for a permit before its response is produced.
const TURN: Duration = Duration::from_secs(10);
/// Size of a chunk of a response, in bytes.
const PIECE: usize = 64 << 10;

/// Bounds of large responses: the number produced at a time, and the bytes that clients have not read yet. The limits of `tower`
/// end when a response begins, not when the client has read it.
#[derive(Clone, Debug)]
pub(crate) struct LargeAnswers {
    making: Arc<Semaphore>,
    rooms: ByteBudget,
}

impl LargeAnswers {
    pub(crate) fn new(limits: &ServeLimits) -> Self {
        Self {
            making: Arc::new(Semaphore::new(limits.large_answers)),
            rooms: ByteBudget::new(limits.answer_bytes),
        }
    }

    /// Responds with a value as JSON. A permit limits the number of values that are produced at a time; the bytes count against
    /// the budget until the client has read them.
    pub(crate) async fn send_json<T: Serialize + Send + 'static>(
        &self,
        value: impl Future<Output = ApiResult<T>>,
    ) -> ApiResult<Response> {
        self.send_written(value, |value| Ok(serde_json::to_vec(&value)?)).await
    }

    /// Responds like [`send_json`](Self::send_json), with the value serialized by `write`.
    pub(crate) async fn send_written<T: Send + 'static>(
        &self,
        value: impl Future<Output = ApiResult<T>>,
        write: impl FnOnce(T) -> ApiResult<Vec<u8>> + Send + 'static,
    ) -> ApiResult<Response> {
        let turn = self.turn().await?;
        let value = value.await?;
        let written = tokio::task::spawn_blocking(move || {
            // The permit is held until the value is serialized, even if the client disconnects.
            let _turn = turn;
            write(value).map(Bytes::from)
        });
        let bytes = written.await.map_err(|error| unwritten(&error))??;
        self.sent(bytes)
    }

    async fn turn(&self) -> ApiResult<OwnedSemaphorePermit> {
        let turn = tokio::time::timeout(TURN, self.making.clone().acquire_owned()).await;
        turn.map_err(|_| busy())?.map_err(|_| busy())
    }

    fn sent(&self, bytes: Bytes) -> ApiResult<Response> {
        let room = HeldBytes::for_answer(&self.rooms, bytes.len()).ok_or_else(busy)?;
        Ok(([(header::CONTENT_TYPE, JSON)], in_pieces(bytes, room)).into_response())
    }
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

fn in_pieces(bytes: Bytes, room: HeldBytes) -> Body {
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
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn unread_responses_take_bounded_memory_and_release_it() {
        let limits = ServeLimits { large_answers: 1, answer_bytes: 1 << 20, ..ServeLimits::default() };
        let answers = LargeAnswers::new(&limits);
        let large = || async { Ok("x".repeat(600 << 10)) };
        let first = answers.send_json(large()).await.unwrap();
        // The first response has not been read yet.
        assert_eq!(answers.send_json(large()).await.unwrap_err().status(), 503);
        // Small responses do not count against the budget.
        assert!(answers.send_json(async { Ok(1) }).await.is_ok());
        // Values that are already serialized count against the budget, too.
        assert_eq!(
            answers.send_written(async { Ok(vec![b' '; 600 << 10]) }, Ok).await.unwrap_err().status(),
            503
        );
        let read = first.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(read.len(), (600 << 10) + 2);
        answers.send_json(large()).await.unwrap();
    }

    #[tokio::test]
    async fn a_large_response_waits_for_its_permit() {
        let limits = ServeLimits { large_answers: 1, ..ServeLimits::default() };
        let answers = LargeAnswers::new(&limits);
        let mut first = Box::pin(answers.send_json(std::future::pending::<ApiResult<u32>>()));
        assert!(futures::poll!(first.as_mut()).is_pending());
        let mut second = std::pin::pin!(answers.send_json(async { Ok(1) }));
        assert!(futures::poll!(second.as_mut()).is_pending());
        drop(first);
        assert!(second.await.is_ok());
    }
}
