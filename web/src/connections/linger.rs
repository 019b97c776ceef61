//! Unread rest of a refused request. It is read after the response, because a connection that is closed while its client still sends loses
//! the response.

use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, header};
use axum::response::Response;
use futures::stream::{self, StreamExt};
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use tokio::time::timeout;

/// Maximum number of bytes of a rest that are read.
const MOST_BYTES: usize = 64 << 20;
/// Maximum time for which a rest is read.
const MOST_TIME: Duration = Duration::from_secs(5);

/// Place of the unread rest of a request body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unread(Arc<Mutex<Option<Body>>>);

/// Request body that leaves its unread rest in its place when it is dropped.
struct Watched {
    body: Option<Body>,
    unread: Unread,
}

/// Replaces the body of a request by one whose rest is not lost.
pub(crate) fn watched<B>(request: Request<B>) -> (Request<Body>, Unread)
where
    B: HttpBody<Data = Bytes, Error: Into<axum::BoxError>> + Send + 'static,
{
    let unread = Unread::default();
    let request = request.map(|body| match body.is_end_stream() {
        true => Body::empty(),
        false => Body::new(Watched { body: Some(Body::new(body)), unread: unread.clone() }),
    });
    (request, unread)
}

impl Unread {
    /// Reads the rest, within bounds, after an error has been sent and before the response ends. Does nothing without a rest.
    pub(crate) fn read_after(self, response: Response) -> Response {
        let is_error = response.status().is_client_error() || response.status().is_server_error();
        let rest = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(rest) = rest.filter(|_| is_error) else { return response };
        let (mut parts, body) = response.into_parts();
        // A response of known length would end with its last byte.
        parts.headers.remove(header::CONTENT_LENGTH);
        let read = stream::once(async move { drop(timeout(MOST_TIME, read(rest)).await) });
        let end = read.filter_map(|()| ready(None));
        Response::from_parts(parts, Body::from_stream(body.into_data_stream().chain(end)))
    }
}

async fn read(mut rest: Body) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = rest.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > MOST_BYTES {
            return;
        }
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let rest = self.body.take().filter(|body| !body.is_end_stream());
        *self.unread.0.lock().unwrap_or_else(PoisonError::into_inner) = rest;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::StatusCode;
    use axum::response::IntoResponse;

    use super::*;

    /// Body of pieces of 1 MiB, and the number of pieces that were read.
    fn pieces(count: usize) -> (Body, Arc<AtomicUsize>) {
        let read = Arc::new(AtomicUsize::new(0));
        let own = read.clone();
        let pieces = stream::iter(0..count).map(move |_| {
            own.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(vec![0_u8; 1 << 20])
        });
        (Body::from_stream(pieces), read)
    }

    #[tokio::test]
    async fn the_rest_of_a_refused_request_is_read_within_bounds_after_the_response() {
        // One before the response; then all, or 64 and the one that exceeds the bound.
        for (count, expected) in [(3, 3), (1_000, 66)] {
            let (body, read) = pieces(count);
            let (request, unread) = watched(Request::new(body));
            let mut body = request.into_body();
            body.frame().await.unwrap().unwrap();
            drop(body);
            let mut response =
                unread.read_after((StatusCode::PAYLOAD_TOO_LARGE, "refused").into_response()).into_body();
            let told = response.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!((&told[..], read.load(Ordering::Relaxed)), (&b"refused"[..], 1));
            assert!(response.frame().await.is_none());
            assert_eq!(read.load(Ordering::Relaxed), expected);
        }
    }

    #[tokio::test]
    async fn a_response_to_a_request_that_was_read_is_unchanged() {
        for body in [Body::empty(), Body::from("read")] {
            let (request, unread) = watched(Request::new(body));
            drop(request.into_body().collect().await.unwrap());
            let response = unread.read_after("done".into_response());
            assert_eq!(response.body().size_hint().exact(), Some(4));
        }
    }
}
