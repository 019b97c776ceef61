//! Tests of buckets and services that differ from a plain one: see [`Mode`].

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use futures::future::try_join_all;
use penstock_s3_server::{Mode, Server, Settings};
use penstock_storage::{Keys, S3Credentials, S3Settings, S3Store, Store};
use tempfile::TempDir;

use crate::s3::settings;

fn served(modes: Vec<Mode>) -> Server {
    Server::start(Settings { modes, page: 10, ..Settings::default() }).unwrap()
}

fn store(settings: S3Settings) -> S3Store {
    S3Store::new("data", settings).unwrap()
}

async fn listed(store: &S3Store) -> Vec<String> {
    let pages: Vec<Keys> = store.list_all("").try_collect().await.unwrap();
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
        assert_eq!(store.size(key.clone()).await.unwrap(), key.len() as u64);
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
    assert_eq!(
        told,
        "reading `00/0000` of store `data` failed: status 400 without an S3 error; another search gives the same credentials"
    );
    assert_eq!(server.seen().len(), 7, "no request is repeated with the same credentials");
}
