//! Reading what clients send: never more than allowed, and never for longer.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::problem::{ApiError, ApiResult, Kind};

/// What a body may have in any case, in bytes.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// Bytes in which room is counted.
const UNIT: usize = 1 << 10;

/// Pieces of a body, counted while they come. The length that a client announces is believed only when it is too large.
pub(crate) struct Pieces {
    body: Body,
    most: u64,
    came: u64,
    what: &'static str,
    pace: Pace,
}

/// How slowly a body may come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// When it is too late, for one that has not sent a byte more than it had to.
    pub(crate) until: Instant,
    /// The longest pause.
    pub(crate) stall: Duration,
    /// How many bytes buy a second more.
    pub(crate) bytes_per_s: Option<u64>,
}

/// Memory for bodies that are held whole, of all clients together.
#[derive(Clone, Debug)]
pub(crate) struct Rooms(Arc<Semaphore>);

/// The part of it that one body takes, given back when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Room(Option<OwnedSemaphorePermit>);

impl Rooms {
    /// Room for so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / UNIT)))
    }
}

impl Room {
    /// Room for an answer of so many bytes; `None` when others have it.
    pub(crate) fn of_answer(rooms: &Rooms, bytes: usize) -> Option<Self> {
        let mut room = Self::default();
        room.grow(rooms, bytes).is_ok().then_some(room)
    }

    /// Takes what is wanting for a body of so many bytes. Small ones take none: connections are few enough for them.
    fn grow(&mut self, rooms: &Rooms, bytes: usize) -> ApiResult<()> {
        let held = self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let wanting = bytes.saturating_sub(SMALL_BYTES).div_ceil(UNIT).saturating_sub(held);
        if wanting == 0 {
            return Ok(());
        }
        let taken =
            u32::try_from(wanting).ok().and_then(|more| rooms.0.clone().try_acquire_many_owned(more).ok());
        let Some(taken) = taken else {
            return Err(ApiError::busy("others send as much as this server holds at a time", 5));
        };
        match &mut self.0 {
            Some(held) => held.merge(taken),
            None => self.0 = Some(taken),
        }
        Ok(())
    }
}

impl Pieces {
    /// The pieces of a body of at most so many bytes. `what` names it in messages: `a module`.
    pub(crate) fn new(
        headers: &HeaderMap,
        body: Body,
        most: u64,
        what: &'static str,
        pace: Pace,
    ) -> ApiResult<Self> {
        let announced = headers.get(header::CONTENT_LENGTH);
        let announced: Option<u64> = announced.and_then(|length| length.to_str().ok()?.parse().ok());
        if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Err(ApiError::new(Kind::WrongMediaType, format!("send {what} as it is, not compressed")));
        }
        let pieces = Self { body, most, came: 0, what, pace };
        match announced {
            Some(bytes) if bytes > most => Err(pieces.too_large()),
            _ => Ok(pieces),
        }
    }

    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> ApiResult<Option<Bytes>> {
        loop {
            let earned = self.pace.bytes_per_s.map_or(0, |bytes| self.came / bytes);
            let latest =
                (self.pace.until + Duration::from_secs(earned)).min(Instant::now() + self.pace.stall);
            let frame = match timeout_at(latest, self.body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => {
                    return Err(ApiError::new(Kind::BadRequest, format!("{} broke off", self.what)));
                }
                Err(_) => {
                    let detail = format!("{} came too slowly; {} bytes were there", self.what, self.came);
                    return Err(ApiError::new(Kind::TooSlow, detail));
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

    /// All of it, and the room that it takes; both come together, so that nobody holds room for what is not there.
    pub(crate) async fn whole(mut self, rooms: &Rooms) -> ApiResult<(Bytes, Room)> {
        let (mut whole, mut room) = (BytesMut::new(), Room::default());
        while let Some(piece) = self.next().await? {
            room.grow(rooms, whole.len() + piece.len())?;
            whole.extend_from_slice(&piece);
        }
        Ok((whole.freeze(), room))
    }

    fn too_large(&self) -> ApiError {
        let detail = format!("{} may have {} bytes at most", self.what, self.most);
        ApiError::new(Kind::TooLarge, detail)
    }
}

/// Refuses content that says to be something else. A form of a stranger's page cannot send these types.
pub(crate) fn want_type(headers: &HeaderMap, wanted: &[&str]) -> ApiResult<()> {
    let found = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("nothing");
    let essence = found.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if wanted.contains(&essence.as_str()) {
        return Ok(());
    }
    let wanted = wanted.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(" or ");
    let found = penstock_types::text::printable(found, 100);
    Err(ApiError::new(Kind::WrongMediaType, format!("`content-type` says {found}, wanted {wanted}")))
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    fn pieces(body: Body, most: u64) -> Pieces {
        let pace = Pace {
            until: Instant::now() + Duration::from_secs(60),
            stall: Duration::from_secs(60),
            bytes_per_s: None,
        };
        Pieces::new(&HeaderMap::new(), body, most, "a document", pace).unwrap()
    }

    fn status<T: std::fmt::Debug>(refused: ApiResult<T>) -> u16 {
        refused.unwrap_err().into_response().status().as_u16()
    }

    #[tokio::test]
    async fn bodies_that_are_held_have_so_much_room_together() {
        let rooms = Rooms::new(1 << 20);
        let large = || pieces(Body::from(vec![0; 600 << 10]), 1 << 20).whole(&rooms);
        let held = large().await.unwrap();
        assert_eq!(status(large().await), 503);
        let (small, _) = pieces(Body::from(vec![0; SMALL_BYTES]), 1 << 20).whole(&rooms).await.unwrap();
        assert_eq!(small.len(), SMALL_BYTES);
        drop(held);
        assert_eq!(large().await.unwrap().0.len(), 600 << 10);
    }

    #[tokio::test]
    async fn a_body_of_any_length_ends_where_it_is_too_large() {
        let rooms = Rooms::new(1 << 20);
        let endless = futures::stream::repeat_with(|| Ok::<_, std::convert::Infallible>(vec![0_u8; 1000]));
        assert_eq!(status(pieces(Body::from_stream(endless), 5_000).whole(&rooms).await), 413);
        let exact = pieces(Body::from(vec![0; 5_000]), 5_000).whole(&rooms).await.unwrap();
        assert_eq!(exact.0.len(), 5_000);
        let mut announced = HeaderMap::new();
        announced.insert(header::CONTENT_LENGTH, "5001".parse().unwrap());
        let pace = Pace { until: Instant::now(), stall: Duration::ZERO, bytes_per_s: None };
        assert_eq!(status(Pieces::new(&announced, Body::empty(), 5_000, "it", pace).map(|_| ())), 413);
    }

    #[tokio::test]
    async fn a_body_that_stands_still_is_given_up() {
        let rooms = Rooms::new(1 << 20);
        let now = Instant::now();
        let pace = |until, stall| Pace { until, stall, bytes_per_s: None };
        for pace in [pace(now, Duration::from_secs(60)), pace(now + Duration::from_secs(60), Duration::ZERO)]
        {
            let silent =
                Body::from_stream(futures::stream::pending::<Result<Bytes, std::convert::Infallible>>());
            let pieces = Pieces::new(&HeaderMap::new(), silent, 10, "it", pace).unwrap();
            assert_eq!(status(pieces.whole(&rooms).await), 408);
        }
    }

    #[test]
    fn only_what_no_form_sends_is_taken() {
        let with = |kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            want_type(&headers, &["application/json"])
        };
        assert!(with("application/json").is_ok() && with("Application/JSON; charset=utf-8").is_ok());
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""] {
            assert_eq!(status(with(kind)), 415, "{kind}");
        }
        assert_eq!(status(want_type(&HeaderMap::new(), &["application/json"])), 415);
    }
}
