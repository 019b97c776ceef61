//! Reading what clients send: never more than allowed, and never for longer.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::problem::{ApiError, ApiResult, Kind};

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

    /// All of it.
    pub(crate) async fn whole(mut self) -> ApiResult<Bytes> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.next().await? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
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
