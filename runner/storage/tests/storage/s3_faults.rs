//! Tests of failures in the communication between a store and its bucket.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use futures::future::join_all;
use penstock_s3_server::{Fault, Server, Settings, Trouble};
use penstock_storage::{Keys, Retries, S3Credentials, S3Settings, Store, StoreError, Timeouts, s3_store};
use penstock_types::config::SecretText;
use penstock_types::spec::Links;
use tracing_subscriber::fmt::MakeWriter;

use crate::s3::{server, settings};

const BODY: &[u8] = &[7; 60_000];

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Settings with short waits between attempts and default timeouts.
fn quick(server: &Server, attempts: u32) -> S3Settings {
    S3Settings {
        retries: Retries { attempts: NonZeroU32::new(attempts).unwrap(), base: ms(1), cap: ms(5) },
        ..settings(server.endpoint())
    }
}

/// A store with timeouts that are short enough for a test.
fn impatient(server: &Server, timeouts: Timeouts) -> Arc<dyn Store> {
    s3_store("data", S3Settings { timeouts, ..quick(server, 2) }).unwrap()
}

fn store(server: &Server) -> Arc<dyn Store> {
    s3_store("data", quick(server, 5)).unwrap()
}

/// A server with the object `x` that misbehaves in the given way for the first `times` requests.
fn troubled(trouble: Trouble, times: u64) -> Server {
    let server = server();
    server.put("x", BODY);
    server.inject(Fault::on("x", trouble).times(times));
    server
}

async fn failure(store: &Arc<dyn Store>) -> String {
    store.get(Arc::from("x")).await.unwrap_err().with_causes()
}

/// All temporary failures, and their error messages.
fn passing() -> Vec<(Trouble, &'static str)> {
    vec![
        (Trouble::Status(500, "InternalError"), "InternalError: Made to fail. (status 500)"),
        (Trouble::Status(429, "TooManyRequests"), "TooManyRequests: Made to fail. (status 429)"),
        (Trouble::Status(400, "RequestTimeout"), "RequestTimeout: Made to fail. (status 400)"),
        (Trouble::SlowDown { after_s: 3600 }, "SlowDown: Made to fail. (status 503)"),
        (Trouble::Page(502), "status 502 without an S3 error"),
        (Trouble::Reset, "the connection failed: "),
        (Trouble::ResetInBody(20_000), "the response ended early: "),
        (Trouble::Truncated(20_000), "the response ended early: "),
        (Trouble::Truncated(0), "the response ended early: "),
        (Trouble::OverLong(9), "the response ended early: body checksum mismatch"),
        (Trouble::FlippedBit, "the response ended early: body checksum mismatch"),
    ]
}

#[tokio::test]
async fn temporary_failures_cost_attempts_only() {
    for (trouble, _) in passing() {
        let server = troubled(trouble.clone(), 4);
        assert_eq!(store(&server).get(Arc::from("x")).await.unwrap(), BODY, "{trouble:?}");
        assert_eq!(server.seen().len(), 5, "{trouble:?}");
    }
}

#[tokio::test]
async fn a_storm_of_failures_does_not_multiply_the_requests() {
    let server = troubled(Trouble::Status(503, "SlowDown"), u64::MAX);
    let timeouts = Timeouts { operation: ms(2000), ..Timeouts::default() };
    let store = s3_store("data", S3Settings { timeouts, ..quick(&server, 5) }).unwrap();
    let failures = join_all((0..200).map(|_| failure(&store))).await;
    // Each read may make five attempts, 1000 together. Permitted are 100 repetitions at once, and 10 per second in the two seconds
    // in which a read may begin one.
    let requests = server.seen().len();
    assert!(requests <= 200 + 100 + 20 + 1, "{requests} requests");
    assert!(
        failures
            .iter()
            .any(|text| text.contains(" because many requests to this store fail, the last: SlowDown"))
    );
}

#[tokio::test]
async fn persistent_failures_end_after_the_last_attempt_with_their_reason() {
    for (trouble, expected_text) in passing() {
        let server = troubled(trouble.clone(), u64::MAX);
        let failure = failure(&store(&server)).await;
        let expected = format!(
            "reading `x` of store `data` failed: gave up after 5 attempts, the last: {expected_text}"
        );
        assert!(failure.starts_with(&expected), "{trouble:?}: {failure}");
        assert_eq!(server.seen().len(), 5, "{trouble:?}");
    }
}

#[tokio::test]
async fn permanent_failures_are_not_retried() {
    let cases = [
        (Trouble::Status(404, "NoSuchKey"), "store `data` has no object `x`"),
        (
            Trouble::Status(403, "AccessDenied"),
            "store `data` denies reading `x`; check its credentials and permissions: AccessDenied: Made to fail. (status 403); a bucket \
             whose requesters pay needs `\"requester_pays\": true` of the store",
        ),
        (
            Trouble::Status(400, "InvalidRequest"),
            "reading `x` of store `data` failed: InvalidRequest: Made to fail. (status 400)",
        ),
        (
            Trouble::Status(301, "PermanentRedirect"),
            "reading `x` of store `data` failed: PermanentRedirect: Made to fail. (status 301)",
        ),
    ];
    for (trouble, expected_text) in cases {
        let server = troubled(trouble, u64::MAX);
        assert_eq!(failure(&store(&server)).await, expected_text);
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn every_request_that_hangs_is_cancelled() {
    let long = Duration::from_secs(3600);
    let patient = Timeouts { connect: long, first_byte: long, idle: long, attempt: long, operation: long };
    let first_byte = Timeouts { first_byte: ms(200), ..patient };
    let idle = Timeouts { idle: ms(200), ..patient };
    let attempt = Timeouts { attempt: ms(1000), ..patient };
    let cases = [
        (Trouble::Hang, first_byte, "no response within 200ms"),
        (Trouble::Slow(long), first_byte, "no response within 200ms"),
        (Trouble::HangInBody(20_000), idle, "the response stopped for 200ms"),
        (Trouble::HangInBody(0), idle, "the response stopped for 200ms"),
        (Trouble::Trickle(10, ms(100)), attempt, "not finished within 1s"),
        (Trouble::Hang, attempt, "not finished within 1s"),
    ];
    for (trouble, timeouts, expected_text) in cases {
        let server = troubled(trouble.clone(), u64::MAX);
        let failure = failure(&impatient(&server, timeouts)).await;
        let expected = format!(
            "reading `x` of store `data` failed: gave up after 2 attempts, the last: {expected_text}"
        );
        assert_eq!(failure, expected, "{trouble:?}");
        assert_eq!(server.seen().len(), 2, "{trouble:?}");
    }
    let server = troubled(Trouble::Hang, u64::MAX);
    let failure = failure(&impatient(&server, Timeouts { operation: ms(200), ..patient })).await;
    assert!(failure.contains("gave up after 1 attempt and "), "{failure}");
}

#[tokio::test]
async fn a_server_that_is_not_listening_fails_quickly() {
    // Nothing listens on the port, because its server has ended.
    let server = server();
    let settings = quick(&server, 3);
    drop(server);
    let failure = failure(&s3_store("data", settings).unwrap()).await;
    let expected =
        "reading `x` of store `data` failed: gave up after 3 attempts, the last: the connection failed: ";
    assert!(failure.starts_with(expected), "{failure}");
}

#[tokio::test]
async fn ranges_are_correct_despite_misbehaving_servers() {
    let server = troubled(Trouble::ChecksumOfWholeOnPart, u64::MAX);
    assert_eq!(store(&server).get_range(Arc::from("x"), None, 5..15).await.unwrap(), BODY[5..15]);
    assert_eq!(server.seen().len(), 1);
    let cases = [
        (Trouble::RangeIgnored, "the response to a request for a range does not state its range"),
        (Trouble::OverLong(3), "expected 10 bytes, but the response announces 13"),
        (Trouble::Truncated(4), "the response ended early: "),
    ];
    for (trouble, expected_text) in cases {
        let server = troubled(trouble.clone(), 2);
        assert_eq!(store(&server).get_range(Arc::from("x"), None, 5..15).await.unwrap(), BODY[5..15]);
        assert_eq!(server.seen().len(), 3);
        let server = troubled(trouble, u64::MAX);
        let error = store(&server).get_range(Arc::from("x"), None, 5..15).await.unwrap_err().with_causes();
        assert!(error.contains(&format!("gave up after 5 attempts, the last: {expected_text}")), "{error}");
    }
}

#[tokio::test]
async fn a_failed_part_of_a_large_object_is_retried_alone() {
    let server = server();
    let bytes = Bytes::from(vec![3; 30 << 20]);
    server.put("x", bytes.clone());
    server.inject(Fault::on("x", Trouble::ResetInBody(1 << 20)).after(2).times(2));
    assert!(store(&server).get(Arc::from("x")).await.unwrap() == bytes);
    assert_eq!(server.seen().len(), 4 + 2);
}

#[tokio::test]
async fn an_endless_listing_of_empty_pages_is_an_error() {
    let server = server();
    server.inject(Fault::on("", Trouble::EmptyPages).method("GET"));
    let listing: Result<Vec<Keys>, StoreError> = store(&server).list("").try_collect().await;
    assert_eq!(
        listing.unwrap_err().with_causes(),
        "listing all keys of store `data` failed: the listing does not end: the service has returned the same continuation token twice"
    );
    assert_eq!(server.seen().len(), 3);
    // A list of folders that ends early would give classes other numbers.
    assert_eq!(
        store(&server).folders("t/", Links::All).await.unwrap_err().with_causes(),
        "listing `t/` of store `data` failed: the listing does not end: the service has returned the same continuation token twice"
    );
}

const SEVERAL: &str = "the response to one request has several listings, or text behind one";

/// Responses to requests for listings that must not be used, with their messages.
fn unfit() -> Vec<(Trouble, &'static str)> {
    let early = "the listing ended early: its last element has no end";
    let again = "</ListBucketResult><ListBucketResult></ListBucketResult>";
    vec![
        // Without the check, the key would be `bcd`.
        (Trouble::Cut("bcd"), early),
        (Trouble::Cut("</Contents>"), early),
        (Trouble::Cut("<IsTruncated>false</IsTruncated>"), early),
        (Trouble::Edited("</ListBucketResult>", ""), early),
        (Trouble::Edited("</ListBucketResult>", again), SEVERAL),
        (Trouble::Edited("</ListBucketResult>", "</ListBucketResult>!"), SEVERAL),
        (
            Trouble::Edited("<KeyCount>3</KeyCount>", "<KeyCount>4</KeyCount>"),
            "the listing is incomplete: it announces 4 keys and folders, but has 3",
        ),
        (Trouble::Answer(200, "<Error><Code>InternalError</Code></Error>"), "InternalError (status 200)"),
        (
            Trouble::Answer(200, "<!doctype html><html>Sign in</html>"),
            "a listing was requested, but a page of HTML arrived (status 200); is the address that of an S3 service?",
        ),
        (
            Trouble::Answer(200, ""),
            "a listing was requested, but nothing arrived (status 200); is the address that of an S3 service?",
        ),
        (
            Trouble::Answer(204, ""),
            "a listing was requested, but nothing arrived (status 204); is the address that of an S3 service?",
        ),
        (
            Trouble::Edited("<IsTruncated>false", "<IsTruncated>False"),
            "the response is not in the format of S3 (status 200)",
        ),
        (Trouble::Endless(200), "the response is no object, but has more than 16777216 bytes"),
        (Trouble::Endless(500), "the response is no object, but has more than 16777216 bytes"),
    ]
}

#[tokio::test]
async fn a_cut_listing_is_never_taken_for_a_whole_one() {
    for (trouble, expected) in unfit() {
        let server = server();
        ["a/x", "bcdefg/x", "c/x"].iter().for_each(|key| server.put(key, BODY));
        let store = store(&server);
        let listed = async |store: &Arc<dyn Store>| store.list("").try_collect::<Vec<Keys>>().await;
        server.inject(Fault::on("", trouble.clone()).times(3));
        let pages = listed(&store).await.unwrap();
        assert_eq!(
            pages.iter().flat_map(Keys::iter).collect::<Vec<_>>(),
            ["a/x", "bcdefg/x", "c/x"],
            "{trouble:?}"
        );
        server.inject(Fault::on("", trouble.clone()).times(3));
        let found = store.folders("", Links::All).await.unwrap().unwrap();
        assert_eq!(found.names, ["a", "bcdefg", "c"], "{trouble:?}");
        server.inject(Fault::on("", trouble.clone()));
        let told = listed(&store).await.unwrap_err().with_causes();
        let start = "listing all keys of store `data` failed: gave up after 5 attempts, the last: ";
        assert_eq!(told, format!("{start}{expected}"), "{trouble:?}");
    }
}

#[tokio::test]
async fn a_listing_that_does_not_say_if_it_is_truncated_goes_on_at_its_token() {
    let server = Server::start(Settings { page: 2, ..Settings::default() }).unwrap();
    ["a", "b", "c", "d", "e"].iter().for_each(|key| server.put(key, ""));
    server.inject(Fault::on("", Trouble::Edited("<IsTruncated>true</IsTruncated>", "")));
    let pages: Vec<Keys> = store(&server).list("").try_collect().await.unwrap();
    assert_eq!(pages.iter().flat_map(Keys::iter).collect::<Vec<_>>(), ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn an_endless_listing_of_the_same_names_is_an_error() {
    let end = "the listing is truncated, but the last 1000 responses had no new keys";
    let key = "<Contents><Key>a</Key><Size>1</Size></Contents>";
    let keys =
        "<Contents><Key>a</Key><Size>1</Size></Contents><Contents><Key>b</Key><Size>1</Size></Contents>";
    for elements in [key, keys] {
        let server = server();
        server.inject(Fault::on("", Trouble::EqualPages(elements)));
        for pages in [store(&server).list(""), store(&server).list_all("", Links::All)] {
            let told = pages.try_collect::<Vec<Keys>>().await.unwrap_err().with_causes();
            assert_eq!(told, format!("listing all keys of store `data` failed: {end}"));
        }
        assert!(server.seen().len() < 2_100, "{} requests", server.seen().len());
    }
    let server = server();
    server
        .inject(Fault::on("", Trouble::EqualPages("<CommonPrefixes><Prefix>t/a/</Prefix></CommonPrefixes>")));
    let told = store(&server).folders("t/", Links::All).await.unwrap_err().with_causes();
    assert_eq!(told, format!("listing `t/` of store `data` failed: {end}"));
}

#[tokio::test]
async fn a_part_or_a_promise_is_never_taken_for_a_whole_object() {
    let status = |status| format!("a whole object was requested, but the response has the status {status}");
    for (trouble, expected) in [
        (Trouble::OtherStatus(206), status(206)),
        (Trouble::OtherStatus(202), status(202)),
        (Trouble::Answer(204, ""), status(204)),
        (
            Trouble::Header("content-range", "bytes 0-59999/70000"),
            "the whole object was requested, but a part arrived: bytes 0-59999/70000".to_owned(),
        ),
        (
            Trouble::Header("content-range", "bytes */60000"),
            "the whole object was requested, but a part arrived: bytes */60000".to_owned(),
        ),
    ] {
        let server = troubled(trouble.clone(), 2);
        assert_eq!(store(&server).get(Arc::from("x")).await.unwrap(), BODY, "{trouble:?}");
        let server = troubled(trouble, u64::MAX);
        let told = failure(&store(&server)).await;
        let start = "reading `x` of store `data` failed: gave up after 5 attempts, the last: ";
        assert_eq!(told, format!("{start}{expected}"));
    }
    let server = troubled(Trouble::Header("content-range", "bytes 0-59999/60000"), 1);
    assert_eq!(store(&server).get(Arc::from("x")).await.unwrap(), BODY);
    let server = troubled(Trouble::OtherStatus(202), u64::MAX);
    let told = store(&server).version(Arc::from("x")).await.unwrap_err().with_causes();
    assert!(told.ends_with(&status(202)), "{told}");
}

#[tokio::test]
async fn an_error_without_end_is_not_kept_in_memory() {
    let server = troubled(Trouble::Endless(500), u64::MAX);
    let told = failure(&store(&server)).await;
    assert!(told.ends_with("the response is no object, but has more than 16777216 bytes"), "{told}");
    let server = troubled(Trouble::Endless(500), 2);
    assert_eq!(store(&server).get(Arc::from("x")).await.unwrap(), BODY);
}

#[tokio::test]
async fn sizes_listings_and_writes_are_retried_too() {
    let server = server();
    let store = store(&server);
    for trouble in [Trouble::Status(503, "ServiceUnavailable"), Trouble::Reset] {
        server.inject(Fault::on("", trouble.clone()).method("PUT").times(2));
        store.put(Arc::from("x"), Bytes::from_static(BODY)).await.unwrap();
        server.inject(Fault::on("", trouble.clone()).method("HEAD").times(2));
        assert_eq!(store.version(Arc::from("x")).await.unwrap().size, 60_000);
        server.inject(Fault::on("", trouble).method("GET").times(2));
        let pages: Vec<Keys> = store.list("").try_collect().await.unwrap();
        assert_eq!(pages.iter().flat_map(Keys::iter).collect::<Vec<_>>(), ["x"]);
        assert_eq!(store.get(Arc::from("x")).await.unwrap(), BODY);
    }
    server.inject(Fault::on("", Trouble::Reset));
    let error = store.put(Arc::from("x"), Bytes::new()).await.unwrap_err().with_causes();
    assert!(error.starts_with("writing `x` of store `data` failed: gave up after 5 attempts"), "{error}");
    let listing: Result<Vec<Keys>, StoreError> = store.list("some").try_collect().await;
    let error = listing.unwrap_err().with_causes();
    assert!(error.starts_with("listing `some` of store `data` failed: gave up after 5 attempts"), "{error}");
}

/// Collects all log output.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn secrets_are_in_no_log_error_or_description() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(log.clone());
    // Ensures that a subscriber is always set: call sites that another test reaches first without a subscriber would be disabled
    // permanently.
    tracing::subscriber::set_global_default(tracing_subscriber::registry()).ok();
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let mut output = String::new();
    let secrets = |id: &str| S3Credentials::Static {
        access_key_id: id.to_owned(),
        secret_access_key: SecretText::new("canary-secret").unwrap(),
        session_token: Some(SecretText::new("canary-token").unwrap()),
    };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, b"[default\naws_secret_access_key canary-file\n").unwrap();
    for credentials in [secrets("penstock-test"), S3Credentials::File(file.path().to_owned())] {
        let server = troubled(Trouble::Reset, 2);
        let settings = S3Settings { credentials, ..quick(&server, 3) };
        output.push_str(&format!("{settings:?}"));
        let store = s3_store("data", settings).unwrap();
        output.push_str(&store.describe());
        for error in [
            store.get(Arc::from("x")).await.unwrap_err(),
            store.put(Arc::from("x"), Bytes::from_static(BODY)).await.unwrap_err(),
            store.list("").try_collect::<Vec<Keys>>().await.unwrap_err(),
        ] {
            output.push_str(&format!("{error:?} {} ", error.with_causes()));
        }
    }
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    // The log contains the retries, and messages of other crates.
    assert!(log.contains("attempt failed, will retry"), "{log}");
    for text in [&output, &log] {
        let at = text.find("canary");
        assert!(at.is_none(), "{}", &text[at.unwrap_or_default().saturating_sub(300)..]);
    }
}
