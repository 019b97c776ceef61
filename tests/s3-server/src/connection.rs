//! One connection: records its requests, and injects faults into its responses.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, DATE, HeaderName, HeaderValue, IF_MATCH, RANGE, RETRY_AFTER,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use penstock_engine::clock::{Clock, MonotonicClock};
use rustix::net::sockopt::set_socket_linger;
use tokio::net::TcpStream;

use crate::fault::Trouble;
use crate::mode::Refusal;
use crate::server::{Seen, Shared};

const CRC32: HeaderName = HeaderName::from_static("x-amz-checksum-crc32");

/// Time for written bytes to reach the client before a reset of the connection, which discards data in transit.
const UNDER_WAY: Duration = Duration::from_millis(20);

/// Number of bytes that are sent at a time by a server with a limit of the bytes per second.
const PACED: usize = 64 << 10;

/// A response with a latency is woken this much before it is due, and its thread polls for requests until then. On an idle
/// virtual machine, waking a thread takes up to 0.4 ms, by which responses would begin later than `Latency` says.
const WAKE_UP: Duration = Duration::from_micros(1000);

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, Failure>>;

/// Serves the requests of one connection until it ends.
pub(crate) async fn serve(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>) {
    let Ok(socket) = stream.set_nodelay(true).and_then(|()| stream.as_fd().try_clone_to_owned()) else {
        return;
    };
    let socket = Arc::new(socket);
    let service = service_fn(move |request| answer(request, peer, shared.clone(), socket.clone()));
    // Errors of a connection are ignored: the client reports them.
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
}

async fn answer(
    request: Request<Incoming>,
    peer: SocketAddr,
    shared: Arc<Shared>,
    socket: Arc<OwnedFd>,
) -> Result<Answer, Failure> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (trouble, latency) = shared.note(Seen {
        method: request.method().to_string(),
        key: shared.key(request.uri().path()),
        range: header(RANGE),
        if_match: header(IF_MATCH),
        query: request.uri().query().unwrap_or_default().to_owned(),
        authorization: header(AUTHORIZATION),
        headers: amz_headers(&request),
        port: peer.port(),
        trouble: None,
    });
    let clock = MonotonicClock::start();
    let arrival = clock.now();
    let soon = shared.timer.sleep(latency.saturating_sub(WAKE_UP));
    let mut answer = match trouble {
        None => answer_well(request, &shared).await,
        Some(trouble) => answer_badly(request, &shared, trouble, &socket).await,
    };
    if let (Ok(answer), Some(date)) = (&mut answer, shared.date()) {
        answer.headers_mut().insert(DATE, HeaderValue::try_from(date)?);
    }
    if let Ok(answer) = &mut answer {
        shared.omitted().for_each(|name| drop(answer.headers_mut().remove(name)));
    }
    if !latency.is_zero() {
        soon.await;
        while Duration::from_nanos(clock.now() - arrival) < latency {
            tokio::task::yield_now().await;
        }
    }
    match shared.is_paced() {
        true => answer.map(|answer| answer.map(|body| paced(body, shared))),
        false => answer,
    }
}

/// Sends a body as fast as the server's limit permits. Responses take turns.
fn paced(body: UnsyncBoxBody<Bytes, Failure>, shared: Arc<Shared>) -> UnsyncBoxBody<Bytes, Failure> {
    // Its methods have the names of those of bodies.
    use futures::TryStreamExt;

    let pieces = body.into_data_stream().map_ok(|mut rest| {
        let pieces = std::iter::from_fn(move || {
            (!rest.is_empty()).then(|| Ok::<_, Failure>(rest.split_to(PACED.min(rest.len()))))
        });
        stream::iter(pieces)
    });
    let sent = pieces.try_flatten().and_then(move |piece| {
        let shared = shared.clone();
        async move {
            shared.wait_to_send(piece.len()).await;
            Ok(Frame::data(piece))
        }
    });
    UnsyncBoxBody::new(StreamBody::new(sent))
}

async fn answer_well(request: Request<Incoming>, shared: &Shared) -> Result<Answer, Failure> {
    let (parts, body) = request.into_parts();
    if let Some(refusal) = shared.refusal(&parts) {
        return refused(refusal);
    }
    let request = Request::from_parts(parts, s3s::Body::from(body));
    let answer = shared.service.call(request).await.map_err(|error| format!("{error:?}"))?;
    Ok(answer.map(|body| UnsyncBoxBody::new(body.map_err(Failure::from))))
}

async fn answer_badly(
    request: Request<Incoming>,
    shared: &Shared,
    trouble: Trouble,
    socket: &Arc<OwnedFd>,
) -> Result<Answer, Failure> {
    match &trouble {
        Trouble::Status(status, code) => return error(*status, code),
        Trouble::SlowDown { after_s } => {
            let mut answer = error(503, "SlowDown")?;
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(*after_s));
            return Ok(answer);
        }
        Trouble::OtherRegion(region) => {
            let mut answer = error(301, "PermanentRedirect")?;
            answer.headers_mut().insert("x-amz-bucket-region", HeaderValue::from_static(region));
            return Ok(answer);
        }
        Trouble::Page(status) => {
            let page = Bytes::from_static(b"<html><body><h1>Bad gateway</h1></body></html>");
            return Ok(Response::builder().status(*status).body(whole(page))?);
        }
        Trouble::EmptyPages => return empty_page(request.uri().query().unwrap_or_default()),
        Trouble::EqualPages(elements) => {
            return equal_page(request.uri().query().unwrap_or_default(), elements);
        }
        Trouble::Answer(status, body) => {
            return Ok(Response::builder()
                .status(*status)
                .body(whole(Bytes::from_static(body.as_bytes())))?);
        }
        Trouble::Endless(status) => {
            let piece = || Ok(Frame::data(Bytes::from_static(&[b' '; PACED])));
            let endless = StreamBody::new(stream::repeat_with(piece));
            return Ok(Response::builder().status(*status).body(UnsyncBoxBody::new(endless))?);
        }
        Trouble::Reset => {
            reset(socket)?;
            return Err("reset".into());
        }
        Trouble::Slow(pause) => tokio::time::sleep(*pause).await,
        Trouble::Hang => std::future::pending().await,
        Trouble::ChecksumOfWholeOnPart => {}
        Trouble::RangeIgnored => {
            // The header was signed, so it cannot be removed before the signature is checked.
            let object =
                shared.object(&shared.key(request.uri().path())).ok_or("no such object in memory")?;
            return Ok(Response::new(whole(object)));
        }
        _ => {}
    }
    let (mut head, body) = answer_well(request, shared).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    if !head.status.is_success() {
        return Ok(Response::from_parts(head, whole(body)));
    }
    let body = match trouble {
        Trouble::ResetInBody(bytes) => {
            let socket = socket.clone();
            pieces(body.slice(..bytes.min(body.len())), usize::MAX, Duration::ZERO, async move {
                tokio::time::sleep(UNDER_WAY).await;
                reset(&socket).and(Err(Failure::from("reset")))
            })
        }
        Trouble::Truncated(bytes) => {
            pieces(body.slice(..bytes.min(body.len())), usize::MAX, Duration::ZERO, async {
                tokio::time::sleep(UNDER_WAY).await;
                Err(Failure::from("truncated"))
            })
        }
        Trouble::HangInBody(bytes) => {
            pieces(body.slice(..bytes.min(body.len())), usize::MAX, Duration::ZERO, std::future::pending())
        }
        Trouble::Trickle(bytes, pause) => pieces(body, bytes, pause, std::future::ready(Ok(()))),
        Trouble::OverLong(bytes) => {
            let mut longer = BytesMut::from(&*body);
            longer.resize(body.len() + bytes, b'!');
            head.headers.insert(CONTENT_LENGTH, HeaderValue::from(longer.len()));
            whole(longer.freeze())
        }
        Trouble::Cut(text) => {
            let end = position(&body, text.as_bytes()).ok_or("no such text")? + text.len();
            head.headers.insert(CONTENT_LENGTH, HeaderValue::from(end));
            whole(body.slice(..end))
        }
        Trouble::Edited(from, to) => {
            let edited = std::str::from_utf8(&body)?.replace(from, to);
            head.headers.insert(CONTENT_LENGTH, HeaderValue::from(edited.len()));
            whole(Bytes::from(edited))
        }
        Trouble::OtherStatus(status) => {
            head.status = StatusCode::from_u16(status)?;
            whole(body)
        }
        Trouble::Header(name, value) => {
            head.headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            whole(body)
        }
        Trouble::FlippedBit => {
            let mut flipped = BytesMut::from(&*body);
            if let Some(byte) = flipped.first_mut() {
                *byte ^= 1;
            }
            whole(flipped.freeze())
        }
        Trouble::ChecksumOfWholeOnPart => {
            head.headers.insert(CRC32, HeaderValue::from_static("AAAAAA=="));
            whole(body)
        }
        _ => whole(body),
    };
    Ok(Response::from_parts(head, body))
}

fn amz_headers(request: &Request<Incoming>) -> BTreeMap<String, String> {
    let headers = request.headers().iter().filter(|(name, _)| name.as_str().starts_with("x-amz-"));
    headers
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
        .collect()
}

/// Creates an error response in the format of S3.
fn error(status: u16, code: &'static str) -> Result<Answer, Failure> {
    refused(Refusal { status, code, headers: Vec::new(), more: String::new() })
}

fn refused(Refusal { status, code, headers, more }: Refusal) -> Result<Answer, Failure> {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>Made to fail.</Message>{more}</Error>"
    );
    let answer = headers
        .into_iter()
        .fold(Response::builder().status(status), |answer, (name, value)| answer.header(name, value));
    Ok(answer.body(whole(Bytes::from(text)))?)
}

/// Creates a page of a listing without keys that announces another page, alternating between two continuation tokens.
fn empty_page(query: &str) -> Result<Answer, Failure> {
    let next = if query.contains("continuation-token=one") { "two" } else { "one" };
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><IsTruncated>true</IsTruncated>\
         <NextContinuationToken>{next}</NextContinuationToken></ListBucketResult>"
    );
    Ok(Response::builder().status(200).body(whole(Bytes::from(text)))?)
}

/// Creates a page of a listing with these elements that announces another page by a token that was never sent before.
fn equal_page(query: &str, elements: &str) -> Result<Answer, Failure> {
    let token = query.split_once("continuation-token=").and_then(|(_, token)| token.split('&').next());
    let next = token.and_then(|token| token.parse().ok()).unwrap_or(0_u64) + 1;
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><IsTruncated>true</IsTruncated>{elements}\
         <NextContinuationToken>{next}</NextContinuationToken></ListBucketResult>"
    );
    Ok(Response::builder().status(200).body(whole(Bytes::from(text)))?)
}

/// Position of the first occurrence of a text.
fn position(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text)
}

fn whole(bytes: Bytes) -> UnsyncBoxBody<Bytes, Failure> {
    UnsyncBoxBody::new(Full::new(bytes).map_err(|never: Infallible| match never {}))
}

/// Creates a body of pieces of at most `most` bytes with a pause after each, and `end` in place of a regular end.
fn pieces(
    bytes: Bytes,
    most: usize,
    pause: Duration,
    end: impl Future<Output = Result<(), Failure>> + Send + 'static,
) -> UnsyncBoxBody<Bytes, Failure> {
    let begun = stream::unfold(bytes, move |mut rest| async move {
        if rest.is_empty() {
            return None;
        }
        let piece = rest.split_to(most.min(rest.len()));
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Some((Ok(Frame::data(piece)), rest))
    });
    let end = stream::once(end).filter_map(|end| std::future::ready(end.err().map(Err)));
    UnsyncBoxBody::new(StreamBody::new(begun.chain(end)))
}

/// Makes closing the socket a reset, which is sent when the connection is dropped.
fn reset(socket: &OwnedFd) -> Result<(), Failure> {
    Ok(set_socket_linger(socket, Some(Duration::ZERO))?)
}
