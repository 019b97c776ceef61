//! Tests of a bucket as a store, with two independent server implementations.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use futures::future::join_all;
use penstock_s3_server::{Conditions, Fault, Mode, Order, Rclone, Server, Settings, Trouble};
use penstock_storage::{Keys, S3Credentials, S3Settings, Store, StoreError, s3_store};
use penstock_types::config::SecretText;
use penstock_types::spec::Links;
use proptest::prelude::*;
use tokio::runtime::Runtime;

use crate::conformance::{self, OBJECTS};
use crate::{folder_with, put};

pub(crate) fn server() -> Server {
    Server::start(Settings::default()).unwrap()
}

pub(crate) fn credentials(access_key_id: &str, secret: &str) -> S3Credentials {
    let (access_key_id, secret_access_key) = (access_key_id.to_owned(), SecretText::new(secret).unwrap());
    S3Credentials::Static { access_key_id, secret_access_key, session_token: None }
}

pub(crate) fn settings(endpoint: String) -> S3Settings {
    S3Settings {
        bucket: "data".to_owned(),
        endpoint: Some(endpoint),
        region: Some("us-east-1".to_owned()),
        credentials: credentials("penstock-test", "penstock-test-secret"),
        ..S3Settings::default()
    }
}

fn store(server: &Server) -> Arc<dyn Store> {
    s3_store("data", settings(server.endpoint())).unwrap()
}

async fn listed(store: &Arc<dyn Store>, prefix: &str) -> Vec<String> {
    let pages: Vec<Keys> = store.list(prefix).try_collect().await.unwrap();
    pages.iter().flat_map(Keys::iter).map(str::to_owned).collect()
}

/// Pseudo-random bytes that depend on `seed`.
fn noise(length: usize, seed: u64) -> Bytes {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32).to_le_bytes()
    });
    words.flatten().take(length).collect::<Vec<u8>>().into()
}

#[tokio::test]
async fn a_bucket_is_a_store() {
    let server = server();
    OBJECTS.iter().for_each(|(key, bytes)| server.put(key, *bytes));
    conformance::check(&*store(&server)).await;
}

#[tokio::test]
async fn a_prefix_of_a_bucket_is_a_store_without_the_other_objects() {
    let server = server();
    server.put("some/where", "beside");
    server.put("some/where0", "behind");
    OBJECTS.iter().for_each(|(key, bytes)| server.put(&format!("some/where/{key}"), *bytes));
    let prefix = "some/where".to_owned();
    let store = s3_store("data", S3Settings { prefix, ..settings(server.endpoint()) }).unwrap();
    conformance::check(&*store).await;
    let too_long = store.put(Arc::from("k".repeat(1020)), Bytes::new()).await.unwrap_err().to_string();
    assert!(too_long.ends_with("with the store's prefix, the key is longer than 1024 bytes"), "{too_long}");
}

#[tokio::test]
async fn a_bucket_served_by_rclone_is_the_same_store() {
    let (folder, _) = folder_with(&[]);
    OBJECTS.iter().for_each(|(key, bytes)| put(&folder.path().join("data"), key, bytes));
    let rclone = Rclone::serve(folder.path(), "penstock-test", "penstock-test-secret");
    let store = s3_store("data", settings(rclone.endpoint())).unwrap();
    conformance::check_alone(&*store).await;
    // Not checked with rclone, which ignores the condition of a write.
    let key: Arc<str> = Arc::from("put/twice");
    assert!(store.put_new(key.clone(), Bytes::from_static(b"one")).await.unwrap());
    assert!(store.put_new(key, Bytes::from_static(b"two")).await.unwrap());
    let wrong = credentials("penstock-test", "another-secret");
    let wrong = s3_store("data", S3Settings { credentials: wrong, ..settings(rclone.endpoint()) }).unwrap();
    let error = wrong.get(Arc::from("zebra")).await.unwrap_err();
    assert!(matches!(error, StoreError::Credentials { .. }), "{error:?}");
}

#[tokio::test]
async fn a_listing_of_several_pages_is_complete_and_sorted_and_contains_objects_only() {
    let server = server();
    let mut expected = BTreeSet::new();
    for number in 0..2_500 {
        let key = format!("{}/{number}", number % 7);
        server.put(&key, "");
        expected.insert(key);
    }
    // Objects that consoles create to represent folders, and keys that a folder could not store.
    for unusable in ["3/", "folder/", "4/../5", "../up", "6/./x"] {
        server.put(unusable, "");
    }
    let store = store(&server);
    assert!(listed(&store, "").await.into_iter().eq(expected));
    assert_eq!(server.seen().len(), 3);
    for pages in [store.list(""), store.list_all("", Links::All)] {
        let pages: Vec<Keys> = pages.try_collect().await.unwrap();
        let left_out: Vec<&str> = pages
            .iter()
            .flat_map(Keys::left_out)
            .flat_map(|omitted| &omitted.first)
            .map(String::as_str)
            .collect();
        assert_eq!(left_out, ["../up", "4/../5", "6/./x"]);
    }
    assert_eq!(listed(&store, "folder").await, [""; 0]);
    // A folder may have one of these objects alone, or objects that a source does not take.
    let folders = async |folder| store.folders(folder, Links::All).await.unwrap().unwrap();
    let found = folders("").await;
    assert_eq!(found.names, ["0", "1", "2", "3", "4", "5", "6", "folder"]);
    assert!(!found.has_empty);
    assert_eq!(folders("none/").await.names, [""; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_listing_in_parts_has_all_keys_in_order(
        keys in proptest::collection::btree_set("/?[aBb\u{e9}\u{ff5e}\u{1f600}]{1,2}(/[aBc]{0,2}){0,3}", 0..120),
        prefix in "/?([ab]{1,2}/?([ab]{1,2}/?)?)?",
        page in 1_usize..4,
        order in prop_oneof![4 => Just(Order::Sorted), 1 => Just(Order::Repeated), 1 => Just(Order::Reversed), 1 => Just(Order::Shuffled), 1 => Just(Order::PagesReversed),
            2 => Just(Order::CaseIgnored), 2 => Just(Order::Utf16)],
    ) {
        let server = Server::start(Settings { page, modes: vec![Mode::Listing(order)], ..Settings::default() }).unwrap();
        keys.iter().for_each(|key| server.put(key, "x"));
        let listing = async { store(&server).list_all(&prefix, Links::All).try_collect::<Vec<Keys>>().await.unwrap() };
        let pages = Runtime::new().unwrap().block_on(listing);
        let listed: Vec<&str> = pages.iter().flat_map(Keys::iter).collect();
        let expected: Vec<&String> = keys.iter().filter(|key| key.starts_with(&prefix)).collect();
        prop_assert_eq!(listed, expected);
    }
}

#[tokio::test]
async fn folders_are_listed_at_the_same_time_in_few_requests() {
    let server = Server::start(Settings { page: 10, ..Settings::default() }).unwrap();
    for (folder, file) in (0..300).flat_map(|folder| (0..20).map(move |file| (folder, file))) {
        server.put(&format!("images/train/{folder:03}/{file:02}"), "");
    }
    let mut pages = store(&server).list_all("images/", Links::All);
    let mut keys = 0;
    for _ in 0..20 {
        keys += pages.try_next().await.unwrap().unwrap().len();
    }
    // Parts are read without further calls: 20 pages and 3 requests for folders would be 23.
    while server.seen().len() < 30 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while let Some(page) = pages.try_next().await.unwrap() {
        keys += page.len();
    }
    assert_eq!(keys, 6_000);
    // 600 pages would be needed at least, one after the other.
    assert!(server.seen().len() < 1_000, "{}", server.seen().len());
}

#[tokio::test]
async fn keys_that_xml_cannot_hold_are_listed_and_read() {
    let server = server();
    let keys = ["a&b<c>\"d\"", "a\u{1}\r\n\tb", "b c+d%20e", "\u{fffd}"];
    keys.iter().for_each(|key| server.put(key, key.as_bytes()));
    let store = store(&server);
    let mut sorted = keys;
    sorted.sort_unstable();
    assert_eq!(listed(&store, "").await, sorted);
    for key in keys {
        assert_eq!(store.get(Arc::from(key)).await.unwrap(), key, "{key:?}");
    }
}

#[tokio::test]
async fn a_small_object_costs_one_request_even_if_it_is_empty() {
    let server = server();
    server.put("small", noise(60_000, 1));
    server.put("empty", "");
    let store = store(&server);
    assert_eq!(store.get(Arc::from("small")).await.unwrap(), noise(60_000, 1));
    assert_eq!(store.get(Arc::from("empty")).await.unwrap(), "");
    assert_eq!(store.get_range(Arc::from("small"), None, 7..9).await.unwrap(), noise(9, 1).slice(7..));
    let seen: Vec<_> = server.seen().into_iter().map(|seen| (seen.method, seen.key, seen.range)).collect();
    let get = |key: &str, range: Option<&str>| ("GET".to_owned(), key.to_owned(), range.map(str::to_owned));
    assert_eq!(seen, [get("small", None), get("empty", None), get("small", Some("bytes=7-8"))]);
}

#[tokio::test]
async fn a_large_object_is_read_in_parts_of_one_version() {
    const MIB: usize = 1 << 20;
    let server = server();
    let bytes = noise(35 * MIB + 5, 2);
    server.put("large", bytes.clone());
    let store = store(&server);
    assert!(store.get(Arc::from("large")).await.unwrap() == bytes);
    let seen = server.seen();
    let ranges: BTreeSet<_> = seen.iter().map(|seen| seen.range.as_deref().unwrap_or("all")).collect();
    let expected = [
        "all",
        "bytes=16777216-25165823",
        "bytes=25165824-33554431",
        "bytes=33554432-36700164",
        "bytes=8388608-16777215",
    ];
    assert!(ranges.into_iter().eq(expected), "{seen:?}");
    let version = &seen[1].if_match;
    assert!(version.is_some() && seen[1..].iter().all(|part| part.if_match == *version));
    let range = (3 * MIB + 1)..(30 * MIB);
    let read = store.get_range(Arc::from("large"), None, range.start as u64..range.end as u64).await.unwrap();
    assert!(read == bytes.slice(range));
    let beyond = store.get_range(Arc::from("large"), None, 0..40 << 20).await.unwrap_err();
    assert!(matches!(beyond, StoreError::OutOfRange { size: 36_700_165, .. }), "{beyond:?}");
}

#[tokio::test]
async fn an_object_that_is_replaced_while_it_is_read_is_an_error() {
    let (before, after) = (noise(20 << 20, 3), noise(20 << 20, 4));
    // If the server ignores the condition of the request, the version in its response shows the replacement.
    for conditions in [Conditions::Kept, Conditions::Ignored] {
        let server = Server::start(Settings { conditions, ..Settings::default() }).unwrap();
        server.put("large", before.clone());
        server.inject(Fault::on("large", Trouble::Slow(Duration::from_secs(1))).after(1));
        let reading = store(&server).get(Arc::from("large"));
        let replacing = async {
            while server.seen().len() < 2 {
                tokio::task::yield_now().await;
            }
            server.put("large", after.clone());
        };
        let (read, ()) = futures::join!(reading, replacing);
        assert_eq!(
            read.unwrap_err().with_causes(),
            "reading `large` of store `data` failed: the object changed while it was read"
        );
    }
}

#[tokio::test]
async fn the_checksum_of_a_large_object_covers_its_parts() {
    let server = server();
    server.put("large", noise(20 << 20, 6));
    let store = store(&server);
    assert!(store.get(Arc::from("large")).await.unwrap() == noise(20 << 20, 6));
    // The flipped bit is detected only by the checksum of the whole object, because the response with a part has no checksum.
    server.inject(Fault::on("large", Trouble::FlippedBit).after(1).times(1));
    assert_eq!(
        store.get(Arc::from("large")).await.unwrap_err().with_causes(),
        "reading `large` of store `data` failed: its bytes do not match the checksum of the service"
    );
}

#[tokio::test]
async fn without_conditional_writes_the_store_checks_for_an_existing_object() {
    let started = |conditions| Server::start(Settings { conditions, ..Settings::default() }).unwrap();
    let put = async |store: &Arc<dyn Store>, bytes: &'static str| {
        store.put_new(Arc::from("x"), Bytes::from_static(bytes.as_bytes())).await.unwrap()
    };
    let refusing = started(Conditions::Refused);
    let store = store(&refusing);
    assert!(put(&store, "first").await);
    assert!(!put(&store, "second").await);
    assert_eq!(store.get(Arc::from("x")).await.unwrap(), "first");
    // A server that ignores the condition replaces the object, and its response does not reveal the replacement.
    let ignoring = started(Conditions::Ignored);
    let store = s3_store("data", settings(ignoring.endpoint())).unwrap();
    assert!(put(&store, "first").await && put(&store, "second").await);
}

#[tokio::test]
async fn connections_are_kept_for_the_next_request() {
    let server = server();
    server.put("x", noise(60_000, 5));
    let store = store(&server);
    for _ in 0..50 {
        store.get(Arc::from("x")).await.unwrap();
    }
    let ports = || server.seen().iter().map(|seen| seen.port).collect::<BTreeSet<_>>().len();
    assert_eq!(ports(), 1);
    for _ in 0..5 {
        join_all((0..16).map(|_| store.get(Arc::from("x")))).await.into_iter().for_each(|read| {
            read.unwrap();
        });
    }
    // A read that begins just before another one ends may open a connection unnecessarily.
    assert!(ports() <= 32, "{} connections for at most 16 reads in flight", ports());
}

#[tokio::test]
async fn wrong_credentials_are_denied_without_a_retry() {
    let server = server();
    server.put("x", "x");
    for credentials in
        [credentials("penstock-test", "another-secret"), credentials("nobody", "penstock-test-secret")]
    {
        let store = s3_store("data", S3Settings { credentials, ..settings(server.endpoint()) }).unwrap();
        let before = server.seen().len();
        let error = store.get(Arc::from("x")).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "store `data` denies reading `x`; check its credentials and permissions"
        );
        let error = store.put(Arc::from("x"), Bytes::new()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "store `data` denies writing `x`; check its credentials and permissions"
        );
        let listing: Result<Vec<Keys>, StoreError> = store.list("").try_collect().await;
        let error = listing.unwrap_err().to_string();
        assert_eq!(error, "store `data` denies listing all keys; check its credentials and permissions");
        assert_eq!(server.seen().len(), before + 3);
    }
}

#[tokio::test]
async fn credentials_can_be_read_from_a_file() {
    let server = server();
    server.put("x", "x");
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(
        b"[default]\naws_access_key_id = penstock-test\naws_secret_access_key = penstock-test-secret\n",
    )
    .unwrap();
    let credentials = S3Credentials::File(file.path().to_owned());
    let store = s3_store("data", S3Settings { credentials, ..settings(server.endpoint()) }).unwrap();
    assert_eq!(store.get(Arc::from("x")).await.unwrap(), "x");
}

#[tokio::test]
async fn a_missing_bucket_is_not_reported_as_a_missing_object() {
    let server = server();
    let bucket = "elsewhere".to_owned();
    let store = s3_store("data", S3Settings { bucket, ..settings(server.endpoint()) }).unwrap();
    assert_eq!(
        store.get(Arc::from("x")).await.unwrap_err().with_causes(),
        "reading `x` of store `data` failed: NoSuchBucket: The specified bucket does not exist (status 404)"
    );
}

#[test]
fn a_description_names_the_bucket_and_its_host() {
    let described = |settings: S3Settings| s3_store("photos", settings).unwrap().describe();
    let here = S3Settings { prefix: "a/b".to_owned(), ..settings("http://127.0.0.1:9000".to_owned()) };
    assert_eq!(described(here), "store `photos` (S3 bucket `data`, prefix `a/b/` at 127.0.0.1:9000)");
    let at_amazon = S3Settings { bucket: "b".to_owned(), ..S3Settings::default() };
    assert_eq!(described(at_amazon), "store `photos` (S3 bucket `b`)");
}
