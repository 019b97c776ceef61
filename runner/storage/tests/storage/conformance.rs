//! Required behaviour of every store: run [`check`] on a store that contains exactly [`OBJECTS`]. Afterwards the store also
//! contains the objects written by the checks.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use futures::future::join_all;
use penstock_storage::{Keys, Store, StoreError};

/// Objects in the byte order of their keys. Names of folders sort differently: `a` comes before `a-b`.
pub(crate) const OBJECTS: &[(&str, &[u8])] = &[
    ("%2e%2e", b"percent"),
    (".hidden/x", b"hidden"),
    ("A", b"large a"),
    ("a-b", b"before the slash"),
    ("a.b/c", b"also before"),
    ("a/b", b"in the folder"),
    ("a/b-c", b""),
    ("a/b0/z", b"deeper"),
    ("a0", b"behind the slash"),
    ("a\\b", b"backslash"),
    ("zebra", b"0123456789"),
    ("\u{e4}", b"two bytes"),
    ("\u{ff21}", b"three bytes"),
    ("\u{1f5bb}/\u{1f5bb}", b"four bytes"),
];

/// Panics if `store` does not behave as documented in [`Store`].
pub(crate) async fn check(store: &dyn Store) {
    check_alone(store).await;
    one_of_several_concurrent_new_writes_succeeds(store).await;
    readers_see_complete_objects_during_writes(store).await;
}

/// Like [`check`], but for a server that shows an object while it is being written and does not support conditional writes.
/// Amazon's buckets behave differently.
pub(crate) async fn check_alone(store: &dyn Store) {
    every_object_is_read_whole_and_in_parts(store).await;
    listings_are_in_byte_order_and_prefixes_are_strings(store).await;
    missing_objects_are_not_found(store).await;
    invalid_keys_are_refused(store).await;
    ranges_are_exact_or_errors(store).await;
    written_objects_can_be_read(store).await;
    a_replaced_version_is_an_error(store).await;
}

async fn listed(store: &dyn Store, prefix: &str) -> Vec<String> {
    let pages: Vec<Keys> = store.list(prefix).try_collect().await.unwrap();
    pages.iter().flat_map(Keys::iter).map(str::to_owned).collect()
}

async fn every_object_is_read_whole_and_in_parts(store: &dyn Store) {
    for (key, bytes) in OBJECTS {
        let key: Arc<str> = Arc::from(*key);
        let size = bytes.len() as u64;
        assert_eq!(store.get(key.clone()).await.unwrap(), *bytes, "{key}");
        assert_eq!(store.version(key.clone()).await.unwrap().size, size, "{key}");
        assert_eq!(store.get_range(key.clone(), None, 0..size).await.unwrap(), *bytes, "{key}");
    }
}

async fn listings_are_in_byte_order_and_prefixes_are_strings(store: &dyn Store) {
    let keys: Vec<&str> = OBJECTS.iter().map(|(key, _)| *key).collect();
    assert!(keys.is_sorted());
    assert_eq!(listed(store, "").await, keys);
    for prefix in
        ["a", "a/", "a/b", "a/b0/", "a/b0/z", "zeb", ".h", "\u{1f5bb}/", "nothing", "a/nothing/", "zebra/"]
    {
        let expected: Vec<&str> = keys.iter().copied().filter(|key| key.starts_with(prefix)).collect();
        assert_eq!(listed(store, prefix).await, expected, "prefix {prefix:?}");
    }
}

async fn missing_objects_are_not_found(store: &dyn Store) {
    // A folder is not an object, nor is a path below an object.
    for missing in ["nothing", "a", "a/b0", "zebra/x", "%2E%2E", "a/B", &"n".repeat(1024)] {
        let key: Arc<str> = Arc::from(missing);
        for error in [
            store.get(key.clone()).await.unwrap_err(),
            store.get_range(key.clone(), None, 0..1).await.unwrap_err(),
            store.version(key.clone()).await.unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::NotFound { .. }), "{missing}: {error:?}");
        }
    }
    let message = store.get(Arc::from("no\nsuch")).await.unwrap_err().to_string();
    assert_eq!(message, format!("store `{}` has no object `no\\nsuch`", store.name()));
}

async fn invalid_keys_are_refused(store: &dyn Store) {
    let long = "k".repeat(4096);
    for bad in ["", "..", "../x", "a/../zebra", "./zebra", "zebra\0", &long] {
        let key: Arc<str> = Arc::from(bad);
        for error in [
            store.get(key.clone()).await.unwrap_err(),
            store.get_range(key.clone(), None, 0..1).await.unwrap_err(),
            store.version(key.clone()).await.unwrap_err(),
            store.put(key.clone(), Bytes::new()).await.unwrap_err(),
            store.put_new(key.clone(), Bytes::new()).await.unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::Refused { .. }), "{bad:?}: {error:?}");
            assert!(error.to_string().len() < 400, "{} bytes of message", error.to_string().len());
        }
    }
    // A bucket may have such keys, but only other programs write them.
    for bad in ["/etc/passwd", "zebra/", "a//b"] {
        let written = store.put(Arc::from(bad), Bytes::new()).await;
        assert!(matches!(written, Err(StoreError::Refused { .. })), "{bad:?}: {written:?}");
    }
    for bad in ["../", "a/../", "\0", &long] {
        let listing: Result<Vec<Keys>, StoreError> = store.list(bad).try_collect().await;
        assert!(matches!(listing, Err(StoreError::Refused { .. })), "prefix {bad:?}");
    }
}

async fn ranges_are_exact_or_errors(store: &dyn Store) {
    let key: Arc<str> = Arc::from("zebra");
    assert_eq!(store.get_range(key.clone(), None, 3..7).await.unwrap(), "3456");
    assert_eq!(store.get_range(key.clone(), None, 9..10).await.unwrap(), "9");
    assert_eq!(store.get_range(key.clone(), None, 4..4).await.unwrap(), "");
    for beyond in [9..11, 10..11, 50..60, 0..u64::MAX] {
        let error = store.get_range(key.clone(), None, beyond.clone()).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::OutOfRange { range, size: 10, .. } if *range == beyond),
            "{error:?}"
        );
    }
}

async fn written_objects_can_be_read(store: &dyn Store) {
    let before = listed(store, "").await;
    let mut expected = before.clone();
    let puts: [(&str, &[u8]); 5] = [
        ("put/deep/er", b"in new folders"),
        ("put/deep/er", b"in its place, longer than the one before"),
        ("put/deep/er", b"short again"),
        ("put/empty", b""),
        ("put/\u{e4} +&%2f?#\\", b"a key that must be escaped"),
    ];
    for (key, bytes) in puts {
        let key: Arc<str> = Arc::from(key);
        store.put(key.clone(), Bytes::from_static(bytes)).await.unwrap();
        assert_eq!(store.get(key.clone()).await.unwrap(), bytes, "{key}");
        assert_eq!(store.version(key.clone()).await.unwrap().size, bytes.len() as u64, "{key}");
        expected.push(key.to_string());
    }
    expected.sort();
    expected.dedup();
    assert_eq!(listed(store, "").await, expected);
}

async fn a_replaced_version_is_an_error(store: &dyn Store) {
    let key: Arc<str> = Arc::from("put/versions");
    store.put(key.clone(), Bytes::from_static(b"old one")).await.unwrap();
    let old = store.version(key.clone()).await.unwrap();
    assert_eq!((old.size, old.clone()), (7, store.version(key.clone()).await.unwrap()));
    assert_eq!(store.get_range(key.clone(), Some(old.clone()), 0..3).await.unwrap(), "old");
    store.put(key.clone(), Bytes::from_static(b"new one")).await.unwrap();
    let error = store.get_range(key.clone(), Some(old), 0..3).await.unwrap_err().with_causes();
    let changed = format!(
        "reading `put/versions` of store `{}` failed: the object changed while it was read",
        store.name()
    );
    assert_eq!(error, changed);
    let new = store.version(key.clone()).await.unwrap();
    assert_eq!(store.get_range(key, Some(new), 0..7).await.unwrap(), "new one");
}

async fn one_of_several_concurrent_new_writes_succeeds(store: &dyn Store) {
    let key: Arc<str> = Arc::from("put/new/er");
    let version = |byte: u8| Bytes::from(vec![byte; 100_000]);
    let puts = join_all((0..16).map(|byte| store.put_new(key.clone(), version(byte)))).await;
    let written: Vec<u8> =
        (0..16).zip(&puts).filter(|(_, put)| matches!(put, Ok(true))).map(|(byte, _)| byte).collect();
    assert!(written.len() == 1 && puts.iter().all(Result::is_ok), "{puts:?}");
    assert!(store.get(key.clone()).await.unwrap() == version(written[0]));
    assert_eq!(listed(store, "put/new/").await, [&*key]);
    store.put(key.clone(), version(77)).await.unwrap();
    assert!(!store.put_new(key.clone(), version(78)).await.unwrap());
    assert!(store.get(key).await.unwrap() == version(77));
}

async fn readers_see_complete_objects_during_writes(store: &dyn Store) {
    let key: Arc<str> = Arc::from("put/contended");
    let version = |byte: u8| Bytes::from(vec![byte; 100_000 + usize::from(byte)]);
    let is_whole = |read: &Bytes| read.len() == 100_000 + usize::from(read[0]) && *read == version(read[0]);
    store.put(key.clone(), version(0)).await.unwrap();
    let puts = join_all((0..16).map(|byte| store.put(key.clone(), version(byte))));
    let reads = join_all((0..16).map(|_| store.get(key.clone())));
    let (puts, reads) = futures::join!(puts, reads);
    assert!(puts.iter().all(Result::is_ok), "{puts:?}");
    assert!(reads.iter().all(|read| read.as_ref().is_ok_and(is_whole)));
    assert!(is_whole(&store.get(key.clone()).await.unwrap()));
    // These concurrent writes all create the same folder.
    let keys: Vec<String> = (0..16).map(|number| format!("put/together/{number:02}")).collect();
    let puts = join_all(keys.iter().map(|key| store.put(Arc::from(key.as_str()), version(1)))).await;
    assert!(puts.iter().all(Result::is_ok), "{puts:?}");
    assert_eq!(listed(store, "put/together/").await, keys);
}
