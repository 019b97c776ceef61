//! Answers that may be large: few are made at a time, and those on their way take bounded memory.

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

use crate::body::{Room, Rooms};
use crate::problem::{ApiError, ApiResult};
use crate::router::json;
use crate::settings::ServeLimits;

/// How long one waits for its turn to be made.
const TURN: Duration = Duration::from_secs(10);
/// Bytes of a piece on its way.
const PIECE: usize = 64 << 10;

/// Places for answers that are being made, and room for those that are on their way.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    making: Arc<Semaphore>,
    rooms: Rooms,
}

impl Answers {
    pub(crate) fn new(limits: &ServeLimits) -> Self {
        Self {
            making: Arc::new(Semaphore::new(limits.large_answers)),
            rooms: Rooms::new(limits.answer_bytes),
        }
    }

    /// Makes an answer when it is its turn, as JSON. It holds its room until the client has it.
    pub(crate) async fn make<T: Serialize + Send + 'static>(
        &self,
        value: impl Future<Output = ApiResult<T>>,
    ) -> ApiResult<Response> {
        let turn = self.turn().await?;
        let value = value.await?;
        let written = tokio::task::spawn_blocking(move || {
            // As long as it is written, whoever waits for it.
            let _turn = turn;
            serde_json::to_vec(&value).map(Bytes::from)
        });
        let bytes = written.await.map_err(std::io::Error::from).and_then(|written| Ok(written?));
        let bytes = bytes.map_err(|error| {
            tracing::error!(%error, "an answer could not be written");
            ApiError::new(crate::problem::Kind::Defect, "a defect of Penstock; the server's log says more")
        })?;
        self.sent(bytes)
    }

    /// Gives JSON that is written already, under the same rules.
    pub(crate) async fn give(&self, bytes: impl Future<Output = ApiResult<Vec<u8>>>) -> ApiResult<Response> {
        let _turn = self.turn().await?;
        self.sent(Bytes::from(bytes.await?))
    }

    async fn turn(&self) -> ApiResult<OwnedSemaphorePermit> {
        let turn = tokio::time::timeout(TURN, self.making.clone().acquire_owned()).await;
        turn.map_err(|_| busy())?.map_err(|_| busy())
    }

    fn sent(&self, bytes: Bytes) -> ApiResult<Response> {
        let room = Room::of_answer(&self.rooms, bytes.len()).ok_or_else(busy)?;
        let mut response = json(Bytes::new());
        *response.body_mut() = in_pieces(bytes, room);
        Ok(response)
    }
}

/// Answers 201 with the address of what is new, or 200 with what was there already.
pub(crate) fn created(is_new: bool, address: &str, what: impl Serialize) -> Response {
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    (status, [(header::LOCATION, format!("/api/v1/{address}"))], Json(what)).into_response()
}

fn busy() -> ApiError {
    ApiError::busy("others ask for as much as this server gives at a time", 5)
}

fn in_pieces(bytes: Bytes, room: Room) -> Body {
    let pieces = stream::unfold((bytes, room), |(mut bytes, room)| async move {
        if bytes.is_empty() {
            return None;
        }
        let piece = bytes.split_to(bytes.len().min(PIECE));
        Some((Ok::<_, Infallible>(piece), (bytes, room)))
    });
    // What compresses it asks again behind its end.
    Body::from_stream(pieces.fuse())
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn answers_on_their_way_take_bounded_room_and_give_it_back() {
        let limits = ServeLimits { large_answers: 1, answer_bytes: 1 << 20, ..ServeLimits::default() };
        let answers = Answers::new(&limits);
        let large = || async { Ok("x".repeat(600 << 10)) };
        let first = answers.make(large()).await.unwrap();
        // Nobody has read the first one yet.
        assert_eq!(answers.make(large()).await.unwrap_err().status(), 503);
        // Small ones always go through.
        assert!(answers.make(async { Ok(1) }).await.is_ok());
        // It takes the same room when it was written before.
        assert_eq!(answers.give(async { Ok(vec![b' '; 600 << 10]) }).await.unwrap_err().status(), 503);
        let read = first.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(read.len(), (600 << 10) + 2);
        answers.make(large()).await.unwrap();
    }

    #[tokio::test]
    async fn only_so_many_are_made_at_a_time() {
        let limits = ServeLimits { large_answers: 1, ..ServeLimits::default() };
        let answers = Answers::new(&limits);
        let mut first = Box::pin(answers.make(std::future::pending::<ApiResult<u32>>()));
        assert!(futures::poll!(first.as_mut()).is_pending());
        let mut second = std::pin::pin!(answers.make(async { Ok(1) }));
        assert!(futures::poll!(second.as_mut()).is_pending());
        drop(first);
        assert!(second.await.is_ok());
    }
}
