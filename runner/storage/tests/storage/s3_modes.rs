//! Tests of buckets and services that differ from a plain one: see [`Mode`].

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use futures::future::try_join_all;
use penstock_s3_server::{Fault, Mode, Order, Server, Settings, Trouble, signed_region};
use penstock_storage::{Keys, S3Credentials, S3Settings, Store, s3_store};
use penstock_types::spec::Links;
use tempfile::TempDir;

use crate::s3::settings;

fn served(modes: Vec<Mode>) -> Server {
    Server::start(Settings { modes, page: 10, ..Settings::default() }).unwrap()
}

fn store(settings: S3Settings) -> Arc<dyn Store> {
    s3_store("data", settings).unwrap()
}

async fn listed(store: &Arc<dyn Store>) -> Vec<String> {
    let pages: Vec<Keys> = store.list_all("", Links::All).try_collect().await.unwrap();
    pages.iter().flat_map(Keys::iter).map(str::to_owned).collect()
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{:02}/{number:04}", number / 50)).collect()
}

/// A bucket with 300 objects, whose credentials are valid for so many requests, and their file.
fn expiring(requests: u64) -> (TempDir, Server, S3Settings) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let server = served(vec![Mode::Token { requests, file: file.clone() }]);
    names(300).iter().for_each(|key| server.put(key, key.clone()));
    let settings = S3Settings { credentials: S3Credentials::File(file), ..settings(server.endpoint()) };
    (folder, server, settings)
}

#[tokio::test]
async fn every_kind_of_request_goes_on_with_renewed_credentials() {
    let (_folder, server, settings) = expiring(25);
    let store = store(settings);
    assert_eq!(listed(&store).await, names(300));
    let keys: Vec<Arc<str>> = names(300).into_iter().map(Arc::from).collect();
    for some in keys.chunks(10) {
        let read = try_join_all(some.iter().map(|key| store.get(key.clone()))).await.unwrap();
        assert!(read.iter().zip(some).all(|(bytes, key)| **bytes == *key.as_bytes()));
    }
    for key in &keys[..60] {
        assert_eq!(store.get_range(key.clone(), None, 1..3).await.unwrap(), key.as_bytes()[1..3]);
        assert_eq!(store.version(key.clone()).await.unwrap().size, key.len() as u64);
        store.put(format!("new/{key}").into(), Bytes::from_static(b"new")).await.unwrap();
    }
    // Each of some 20 replacements costs each of the ten readers one request at most.
    let requests = server.seen().len();
    assert!((510..760).contains(&requests), "{requests}");
}

#[tokio::test]
async fn credentials_that_stay_expired_are_an_error_that_says_so() {
    let (folder, server, settings) = expiring(5);
    let copy = folder.path().join("copy");
    fs::copy(folder.path().join("keys"), &copy).unwrap();
    let store = store(S3Settings { credentials: S3Credentials::File(copy), ..settings });
    let read = |key: &str| store.get(Arc::from(key));
    for _ in 0..5 {
        read("00/0000").await.unwrap();
    }
    assert_eq!(
        read("00/0000").await.unwrap_err().with_causes(),
        "store `data` denies reading `00/0000`; check its credentials and permissions: ExpiredToken: Made to fail. (status 400); another \
         search gives the same credentials"
    );
    let told = store.version(Arc::from("00/0000")).await.unwrap_err().with_causes();
    assert_eq!(told, "reading `00/0000` of store `data` failed: status 400 without an S3 error");
    assert_eq!(server.seen().len(), 7, "no request is repeated with the same credentials");
}

/// A read, a listing, a request for metadata, or a write of an object.
async fn each_kind(store: &Arc<dyn Store>, number: usize) -> Result<(), String> {
    let key: Arc<str> = Arc::from("x");
    let done = match number {
        0 => store.get(key).await.map(drop),
        1 => store.list("").try_collect::<Vec<_>>().await.map(drop),
        2 => store.version(key).await.map(drop),
        _ => store.put(key, Bytes::from_static(b"x")).await,
    };
    done.map_err(|error| error.with_causes())
}

fn with_object(modes: Vec<Mode>) -> Server {
    let server = served(modes);
    server.put("x", "x");
    server
}

#[tokio::test]
async fn a_bucket_in_another_region_is_followed_once_and_remembered() {
    for status in [301, 307, 400] {
        for first in 0..4 {
            let server = with_object(vec![Mode::Region("eu-west-1".to_owned(), status)]);
            let store = store(settings(server.endpoint()));
            for number in [first, 0, 1, 2, 3] {
                each_kind(&store, number).await.unwrap();
            }
            let seen = server.seen();
            let regions: Vec<_> = seen
                .iter()
                .map(|seen| signed_region(seen.authorization.as_ref().unwrap()).unwrap())
                .collect();
            assert_eq!(regions, [&["us-east-1"][..], &["eu-west-1"; 5]].concat(), "{status} {first}");
        }
    }
}

#[tokio::test]
async fn a_region_that_is_no_name_is_not_followed_and_one_that_does_not_help_is_told() {
    for region in ["evil.example", "eu-west-1/", "EU WEST"] {
        let server = with_object(vec![Mode::Region(region.to_owned(), 301)]);
        let told = each_kind(&store(settings(server.endpoint())), 0).await.unwrap_err();
        assert_eq!(told, "reading `x` of store `data` failed: PermanentRedirect: Made to fail. (status 301)");
        assert_eq!(server.seen().len(), 1);
    }
    let server = with_object(Vec::new());
    server.inject(Fault::on("", Trouble::OtherRegion("eu-west-1")));
    for number in 0..4 {
        let told = each_kind(&store(settings(server.endpoint())), number).await.unwrap_err();
        let end = "the bucket is in the region `eu-west-1`, which was tried: set `region` of the store, and, if it has one, its `endpoint` \
                   to that of the region";
        assert!(told.ends_with(end), "{told}");
        assert_eq!(server.seen().len(), 2 * (number + 1));
    }
}

#[tokio::test]
async fn requesters_pay_if_their_store_says_so() {
    let server = with_object(vec![Mode::Payer]);
    let paying = store(S3Settings { requester_pays: true, ..settings(server.endpoint()) });
    let other = store(settings(server.endpoint()));
    for number in 0..4 {
        each_kind(&paying, number).await.unwrap();
        let told = each_kind(&other, number).await.unwrap_err();
        let reason = if number == 2 {
            "status 403 without an S3 error"
        } else {
            "AccessDenied: Made to fail. (status 403)"
        };
        let end = "a bucket whose requesters pay needs `\"requester_pays\": true` of the store";
        assert!(told.ends_with(&format!("{reason}; {end}")), "{told}");
    }
    paying.get_range(Arc::from("x"), None, 0..1).await.unwrap();
}

#[tokio::test]
async fn a_service_without_checksums_is_told_of_the_variable_that_omits_them() {
    let server = with_object(vec![Mode::NoChecksums]);
    let store = store(settings(server.endpoint()));
    let note =
        "; if the service does not know checksums, AWS_REQUEST_CHECKSUM_CALCULATION=when_required omits them";
    assert_eq!(
        each_kind(&store, 3).await.unwrap_err(),
        format!("writing `x` of store `data` failed: NotImplemented: Made to fail. (status 501){note}")
    );
    let told = store.put_new(Arc::from("y"), Bytes::from_static(b"y")).await.unwrap_err().with_causes();
    assert!(told.ends_with(note), "{told}");
    let told = each_kind(&store, 0).await.unwrap_err();
    assert!(told.ends_with("AWS_RESPONSE_CHECKSUM_VALIDATION=when_required omits them"), "{told}");
}

#[tokio::test]
async fn clocks_that_differ_cost_a_request_or_are_named() {
    for ahead in [3 * 3600, -3 * 3600] {
        for first in 0..4 {
            let server = with_object(vec![Mode::Clock(ahead)]);
            let store = store(settings(server.endpoint()));
            for number in [first, 0, 1, 2, 3] {
                each_kind(&store, number).await.unwrap();
            }
            assert_eq!(server.seen().len(), 6, "{ahead} {first}");
        }
    }
    let server = with_object(vec![Mode::Clock(3 * 3600)]);
    server.inject(Fault::on("", Trouble::Status(403, "RequestTimeTooSkewed")));
    let told = each_kind(&store(settings(server.endpoint())), 0).await.unwrap_err();
    assert_eq!(
        told,
        "reading `x` of store `data` failed: gave up after 5 attempts, the last: RequestTimeTooSkewed: Made to fail. (status 403); the \
         clock of this machine is 180 min behind that of the service"
    );
}

#[tokio::test]
async fn keys_are_listed_in_byte_order_whatever_the_order_of_the_service() {
    let count = |page| if page == 7 { 700 } else { 3000 };
    let of = |order, page| {
        let modes = vec![Mode::Listing(order)];
        let server = Server::start(Settings { modes, page, ..Settings::default() }).unwrap();
        names(count(page)).iter().for_each(|key| server.put(key, ""));
        if page != 500 {
            server.put("../up", "");
        }
        server
    };
    for (order, page) in [
        (Order::Repeated, 7),
        (Order::Reversed, 1000),
        (Order::Reversed, 7),
        (Order::Shuffled, 1000),
        (Order::Shuffled, 7),
        (Order::PagesReversed, 7),
    ] {
        let server = of(order, page);
        let store = store(settings(server.endpoint()));
        for _ in 0..2 {
            let before = server.seen().len();
            let pages: Vec<Keys> = store.list_all("", Links::All).try_collect().await.unwrap();
            let left_out: Vec<u64> =
                pages.iter().flat_map(Keys::left_out).map(|left_out| left_out.count).collect();
            assert_eq!(left_out.iter().sum::<u64>(), 1, "{order:?} {page}");
            assert!(pages.iter().flat_map(Keys::iter).eq(names(count(page)).iter().map(String::as_str)));
            let requests = server.seen().len() - before;
            assert!(requests <= 2 * count(page) / page + 20, "{requests} requests, {order:?} {page}");
        }
    }
    // The first page is in use before the second one shows the order.
    let server = of(Order::PagesReversed, 500);
    let late: Result<Vec<Keys>, _> =
        store(settings(server.endpoint())).list_all("", Links::All).try_collect().await;
    assert_eq!(
        late.unwrap_err().with_causes(),
        "listing all keys of store `data` failed: the service does not list keys in byte order, as S3 does, which showed after some of \
         them were used: set `\"sorted\": false` of the store"
    );
    let told = store(S3Settings { is_unsorted: true, ..settings(server.endpoint()) });
    assert_eq!(listed(&told).await, names(3000));
    let server = of(Order::Endless, 500);
    let endless: Result<Vec<Keys>, _> =
        store(settings(server.endpoint())).list_all("", Links::All).try_collect().await;
    let endless = endless.unwrap_err().with_causes();
    assert!(endless.ends_with("the service has returned the same continuation token twice"), "{endless}");
    assert!(server.seen().len() < 40, "{} requests", server.seen().len());
}

#[tokio::test]
async fn no_key_is_lost_between_folders_whatever_the_order_of_the_service() {
    let folder =
        |name: &str, count: usize| (0..count).map(|number| format!("{name}/{number:03}")).collect::<Vec<_>>();
    let files = |name: &str| (0..15).map(|number| format!("{name}{number:02}.txt")).collect::<Vec<_>>();
    for (order, keys) in [
        // `b00.txt` is behind the folder `C/` by its bytes, and before it without case.
        (Order::CaseIgnored, [folder("A", 49), files("b"), folder("C", 30)].concat()),
        (
            Order::CaseIgnored,
            [folder("A", 49), folder("B", 30), files("b"), folder("C", 30), folder("d", 30)].concat(),
        ),
        (Order::CaseIgnored, [folder("a/A", 49), files("a/b"), folder("a/C", 30), folder("b", 30)].concat()),
        (Order::CaseIgnored, [folder("A", 49), folder("C", 30), files("d")].concat()),
        (Order::Utf16, [folder("a", 49), files("\u{1f600}"), folder("\u{ff5e}", 30)].concat()),
        (Order::Utf16, [folder("a", 130), folder("\u{1f600}", 30), folder("\u{ff5e}", 30)].concat()),
        // In the order of bytes, too.
        (Order::CaseIgnored, [folder("a", 49), files("b"), folder("c", 30), folder("d", 30)].concat()),
    ] {
        let server =
            Server::start(Settings { modes: vec![Mode::Listing(order)], page: 10, ..Settings::default() })
                .unwrap();
        keys.iter().for_each(|key| server.put(key, "x"));
        let store = store(settings(server.endpoint()));
        let mut expected = keys.clone();
        expected.sort();
        for _ in 0..2 {
            assert_eq!(listed(&store).await, expected, "{order:?}");
        }
    }
}

#[tokio::test]
async fn keys_that_change_while_folders_are_listed_are_no_disorder() {
    let server = served(Vec::new());
    let names: Vec<String> = (0..2_000).map(|number| format!("{:03}/{number:04}", number / 20)).collect();
    names.iter().for_each(|key| server.put(key, "x"));
    let store = store(settings(server.endpoint()));
    let mut pages = store.list_all("", Links::All);
    let mut found = Vec::new();
    let mut changed = 0;
    while let Some(page) = pages.try_next().await.unwrap() {
        found.extend(page.iter().map(str::to_owned));
        // First keys of folders that may have been read ahead, or not.
        (changed..names.len().min(changed + 3))
            .for_each(|folder| server.put(&format!("{folder:03}/!"), "new"));
        changed += 3;
    }
    found.retain(|key| !key.ends_with('!'));
    assert_eq!(found, names);
    // The service is still one that sorts keys.
    let before = server.seen().len();
    listed(&store).await;
    assert!(server.seen()[before..].iter().any(|seen| seen.query.contains("delimiter=")));
}

#[tokio::test]
async fn an_object_without_a_tag_that_is_replaced_while_it_is_read_is_an_error() {
    let large = |byte| Bytes::from(vec![byte; 20 << 20]);
    let etag = || Mode::Without("etag".to_owned());
    let server = served(vec![etag()]);
    server.put("large", large(1));
    let store = store(settings(server.endpoint()));
    let key: Arc<str> = Arc::from("large");
    assert!(store.get(key.clone()).await.unwrap() == large(1));
    assert!(server.seen().iter().all(|seen| seen.if_match.is_none()));
    let version = store.version(key.clone()).await.unwrap();
    // The times have whole seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.inject(Fault::on("large", Trouble::Slow(Duration::from_millis(500))).after(1));
    let before = server.seen().len();
    let replacing = async {
        while server.seen().len() < before + 2 {
            tokio::task::yield_now().await;
        }
        server.put("large", large(2));
    };
    let (read, ()) = futures::join!(store.get(key.clone()), replacing);
    let changed = "reading `large` of store `data` failed: the object changed while it was read";
    assert_eq!(read.unwrap_err().with_causes(), changed);
    let range = store.get_range(key.clone(), Some(version), 5..9).await;
    assert_eq!(range.unwrap_err().with_causes(), changed);
    // Without a time as well, nothing would show the change.
    let server = served(vec![etag(), Mode::Without("last-modified".to_owned())]);
    server.put("large", large(1));
    server.put("small", "x");
    let store = s3_store("data", settings(server.endpoint())).unwrap();
    assert_eq!(store.get(Arc::from("small")).await.unwrap(), "x");
    assert_eq!(
        store.get(key).await.unwrap_err().with_causes(),
        "reading `large` of store `data` failed: the service states neither a tag nor a time for the object, so that a change between its \
         parts would go unnoticed"
    );
}

#[tokio::test]
async fn keys_with_empty_segments_and_any_characters_are_listed_and_read() {
    let long = "k".repeat(1024);
    let keys = [
        "/",
        "//",
        "/train/c",
        "a//b",
        "a/",
        "a/ b+c%20",
        "a/\u{e9}\u{1f5bb}",
        "a/b",
        "a/b//c/",
        "a/b/c",
        "a\\b",
        "a\u{7f}\n?#&=;:@'\"",
        "a|b<c>[d]{e}~!*()",
        &long,
    ];
    for page in [1, 3, 1000] {
        let server = Server::start(Settings { page, ..Settings::default() }).unwrap();
        keys.iter().for_each(|key| server.put(key, (*key).to_owned()));
        // Objects that represent folders.
        ["a//", "z/", "z//"].iter().for_each(|key| server.put(key, ""));
        let store = store(settings(server.endpoint()));
        let mut sorted = keys;
        sorted.sort_unstable();
        assert_eq!(listed(&store).await, sorted, "{page}");
        for key in keys {
            let key: Arc<str> = Arc::from(key);
            assert_eq!(store.get(key.clone()).await.unwrap(), key.as_bytes(), "{key:?}");
            assert_eq!(store.version(key.clone()).await.unwrap().size, key.len() as u64);
            assert_eq!(store.get_range(key.clone(), None, 0..1).await.unwrap(), key.as_bytes()[..1]);
        }
        let pages: Vec<Keys> = store.list_all("a//", Links::All).try_collect().await.unwrap();
        assert_eq!(pages.iter().flat_map(Keys::iter).collect::<Vec<_>>(), ["a//b"]);
    }
}
