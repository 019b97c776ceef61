//! Request bodies, bounded in size, time and memory.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use penstock_server::HeldAmount;
use penstock_types::spec::JsonSize;
use tokio::time::{Instant, timeout_at};

use crate::limits::{BODY_TIME, STALL_TIME};
use crate::problem::{ApiError, ApiResult, ProblemKind, refuse};

/// Size up to which a body or a response does not count against a budget, in bytes.
pub(crate) const SMALL_BYTES: usize = 64 << 10;

/// Reader of the chunks of a body, which counts the bytes as they arrive. `Content-Length` is used only to refuse large bodies
/// early. `tower_http` can limit the size and pauses, but has neither a minimum rate nor a memory budget for all clients.
pub(crate) struct BodyPieces {
    body: Body,
    most: u64,
    came: u64,
    what: &'static str,
    pace: BodyPace,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyPace {
    /// Deadline for the whole body, which received bytes extend according to `bytes_per_s`.
    pub(crate) until: Instant,
    /// Maximum pause between two chunks.
    pub(crate) stall: Duration,
    /// Number of received bytes that extend the deadline by one second.
    pub(crate) bytes_per_s: u64,
}

impl BodyPace {
    pub(crate) fn at_least(bytes_per_s: u64) -> Self {
        let until = Instant::now() + BODY_TIME;
        Self { until, stall: STALL_TIME, bytes_per_s }
    }
}

/// Part of a size that counts against a budget: the first [`SMALL_BYTES`] do not, because the limit of connections bounds their total.
pub(crate) fn beyond_small(bytes: u64) -> u64 {
    bytes.saturating_sub(SMALL_BYTES as u64)
}

impl BodyPieces {
    /// Prepares to read a body of at most `most` bytes. `what` names the body in messages, e.g. `the module`.
    pub(crate) fn new(
        headers: &HeaderMap,
        body: Body,
        most: u64,
        what: &'static str,
        pace: BodyPace,
    ) -> ApiResult<Self> {
        let announced = headers.get(header::CONTENT_LENGTH);
        let announced: Option<u64> = announced.and_then(|length| length.to_str().ok()?.parse().ok());
        if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            let detail = format!("send {what} uncompressed, without `content-encoding`");
            return refuse(ProblemKind::WRONG_MEDIA_TYPE, detail);
        }
        let pieces = Self { body, most, came: 0, what, pace };
        match announced {
            Some(bytes) if bytes > most => Err(pieces.too_large()),
            _ => Ok(pieces),
        }
    }

    /// Waits for the next chunk; `None` at the end of the body.
    pub(crate) async fn next(&mut self) -> ApiResult<Option<Bytes>> {
        loop {
            let earned = self.came / self.pace.bytes_per_s;
            let latest =
                (self.pace.until + Duration::from_secs(earned)).min(Instant::now() + self.pace.stall);
            let frame = match timeout_at(latest, self.body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => {
                    let detail = format!("{} was cut off before its end", self.what);
                    return refuse(ProblemKind::BAD_REQUEST, detail);
                }
                Err(_) => {
                    let detail =
                        format!("{} arrived too slowly; {} bytes were received", self.what, self.came);
                    return refuse(ProblemKind::TOO_SLOW, detail);
                }
            };
            if let Ok(piece) = frame.into_data() {
                self.came += piece.len() as u64;
                if self.came > self.most {
                    return Err(self.too_large());
                }
                if !piece.is_empty() {
                    return Ok(Some(piece));
                }
            }
        }
    }

    /// Reads a whole JSON body with at most `most_nodes` names and values into `room`, which is empty. The memory for parsing is
    /// reserved as bytes arrive, so that a client cannot reserve memory by `Content-Length` alone.
    pub(crate) async fn whole_json(
        mut self,
        room: HeldAmount,
        most_nodes: usize,
    ) -> ApiResult<(Bytes, HeldAmount)> {
        let (mut whole, mut size) = (BytesMut::new(), JsonSize::default());
        while let Some(piece) = self.next().await? {
            size.add(&piece);
            if size.nodes() > most_nodes {
                let detail = format!("{} may contain at most {most_nodes} names and values", self.what);
                return refuse(ProblemKind::TOO_LARGE, detail);
            }
            if !room.grow(beyond_small(size.memory_bytes() as u64)) {
                return Err(ApiError::busy(
                    "requests of this and other clients fill the server's memory for request bodies; try again later",
                    5,
                ));
            }
            whole.extend_from_slice(&piece);
        }
        Ok((whole.freeze(), room))
    }

    fn too_large(&self) -> ApiError {
        let detail = format!("{} may be at most {} bytes long", self.what, self.most);
        ApiError::new(ProblemKind::TOO_LARGE, detail)
    }
}

/// Refuses content types other than `wanted`. A form on a page of another site cannot send the types in `wanted`.
pub(crate) fn require_content_type(headers: &HeaderMap, wanted: &[&str]) -> ApiResult<()> {
    let found = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("missing");
    let essence = found.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if wanted.contains(&essence.as_str()) {
        return Ok(());
    }
    let wanted = wanted.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(" or ");
    let found = penstock_types::text::printable(found, 100);
    refuse(ProblemKind::WRONG_MEDIA_TYPE, format!("`content-type` is {found}, expected {wanted}"))
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use futures::StreamExt;

    use penstock_server::{ClientId, SharedAmount};
    use penstock_types::spec::Percent;

    use super::*;

    /// Part of one client of a budget of this size.
    fn budget(bytes: u64) -> impl Fn() -> HeldAmount {
        let memory = SharedAmount::new(bytes, Percent::default());
        move || memory.part(&ClientId::default())
    }

    fn pieces(body: Body, most: u64) -> BodyPieces {
        let pace = BodyPace {
            until: Instant::now() + Duration::from_secs(60),
            stall: Duration::from_secs(60),
            bytes_per_s: u64::MAX,
        };
        BodyPieces::new(&HeaderMap::new(), body, most, "a document", pace).unwrap()
    }

    fn status<T: std::fmt::Debug>(refused: ApiResult<T>) -> u16 {
        refused.unwrap_err().into_response().status().as_u16()
    }

    #[tokio::test]
    async fn bodies_held_at_the_same_time_share_one_budget() {
        let rooms = budget(2 << 20);
        let large = || pieces(Body::from(vec![0; 600 << 10]), 1 << 20).whole_json(rooms(), 0);
        let held = large().await.unwrap();
        assert_eq!(status(large().await), 503);
        let small = SMALL_BYTES / 2;
        let (read, _) = pieces(Body::from(vec![0; small]), 1 << 20).whole_json(rooms(), 0).await.unwrap();
        assert_eq!(read.len(), small);
        drop(held);
        assert_eq!(large().await.unwrap().0.len(), 600 << 10);
    }

    #[tokio::test]
    async fn memory_of_parsed_values_counts_against_the_budget() {
        let rooms = budget(2 << 20);
        let list = |values: usize| pieces(Body::from("[".repeat(values)), 1 << 20).whole_json(rooms(), 4_000);
        assert_eq!(status(list(4_001).await), 413);
        // 4 KB of text need far more memory once parsed, so two of these bodies exceed the budget.
        let held = list(4_000).await.unwrap();
        assert_eq!(status(list(4_000).await), 503);
        drop(held);
        list(4_000).await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_disconnects_midway_releases_its_memory() {
        let rooms = budget(2 << 20);
        let came = Ok::<_, std::convert::Infallible>("[".repeat(4_000));
        let half = futures::stream::iter([came]).chain(futures::stream::pending());
        let mut leaves = Box::pin(pieces(Body::from_stream(half), 1 << 20).whole_json(rooms(), 4_000));
        assert!(futures::poll!(leaves.as_mut()).is_pending());
        let other = || pieces(Body::from("[".repeat(4_000)), 1 << 20).whole_json(rooms(), 4_000);
        assert_eq!(status(other().await), 503);
        drop(leaves);
        other().await.unwrap();
    }

    #[tokio::test]
    async fn a_body_is_refused_once_it_exceeds_its_limit() {
        let rooms = budget(1 << 20);
        let endless = futures::stream::repeat_with(|| Ok::<_, std::convert::Infallible>(vec![0_u8; 1000]));
        assert_eq!(status(pieces(Body::from_stream(endless), 5_000).whole_json(rooms(), 0).await), 413);
        let exact = pieces(Body::from(vec![0; 5_000]), 5_000).whole_json(rooms(), 0).await.unwrap();
        assert_eq!(exact.0.len(), 5_000);
        let mut announced = HeaderMap::new();
        announced.insert(header::CONTENT_LENGTH, "5001".parse().unwrap());
        let pace = BodyPace { until: Instant::now(), stall: Duration::ZERO, bytes_per_s: u64::MAX };
        assert_eq!(status(BodyPieces::new(&announced, Body::empty(), 5_000, "it", pace).map(|_| ())), 413);
    }

    #[tokio::test]
    async fn a_stalled_body_times_out() {
        let rooms = budget(1 << 20);
        let now = Instant::now();
        let pace = |until, stall| BodyPace { until, stall, bytes_per_s: u64::MAX };
        for pace in [pace(now, Duration::from_secs(60)), pace(now + Duration::from_secs(60), Duration::ZERO)]
        {
            let silent =
                Body::from_stream(futures::stream::pending::<Result<Bytes, std::convert::Infallible>>());
            let pieces = BodyPieces::new(&HeaderMap::new(), silent, 10, "it", pace).unwrap();
            assert_eq!(status(pieces.whole_json(rooms(), 0).await), 408);
        }
    }

    #[test]
    fn content_types_that_forms_can_send_are_refused() {
        let with = |kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            require_content_type(&headers, &["application/json"])
        };
        assert!(with("application/json").is_ok() && with("Application/JSON; charset=utf-8").is_ok());
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""] {
            assert_eq!(status(with(kind)), 415, "{kind}");
        }
        assert_eq!(status(require_content_type(&HeaderMap::new(), &["application/json"])), 415);
    }
}
