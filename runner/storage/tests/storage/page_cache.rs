//! Tests of probing and dropping files in the page cache.

use std::num::NonZeroUsize;
use std::sync::Arc;

use penstock_storage::{BoundedStore, DEFAULT_READS, MemoryStore, StoreError};

use crate::folder_with;

const BYTES: &[u8] = &[7; 1 << 20];

#[tokio::test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
async fn a_file_that_was_read_is_cached_until_it_is_forgotten() {
    let (_folder, store) = folder_with(&[("x", BYTES)]);
    let key: Arc<str> = Arc::from("x");
    store.get(key.clone()).await.0.unwrap();
    let share = store.cached_share(key.clone()).await.unwrap();
    if share.is_none() || !store.forget(key.clone()).await.unwrap() {
        eprintln!(
            "skipped: the file system of the temporary folder does not report cached pages, or keeps files only in memory"
        );
        return;
    }
    assert_eq!(share, Some(1.0));
    // The file was just written, so `forget` has to write its pages to the disk first. A page that is in use at that moment stays
    // cached, so the call may have to be repeated.
    let mut left = None;
    for _ in 0..20 {
        assert!(store.forget(key.clone()).await.unwrap());
        left = store.cached_share(key.clone()).await.unwrap();
        if left == Some(0.0) {
            break;
        }
    }
    assert_eq!(left, Some(0.0));
    let (version, all) = (store.version(key.clone()).await.unwrap(), 0..BYTES.len() as u64);
    assert_eq!(store.cached_range(&key, &version, all), None);
    assert_eq!(store.get(key.clone()).await.0.unwrap(), BYTES);
    assert_eq!(store.cached_share(key).await.unwrap(), Some(1.0));
}

#[tokio::test]
async fn empty_files_and_memory_objects_have_no_cached_share() {
    let (_folder, folder) = folder_with(&[("empty", b""), ("one page", b"x")]);
    assert_eq!(folder.cached_share(Arc::from("empty")).await.unwrap(), None);
    assert!(matches!(folder.cached_share(Arc::from("one page")).await.unwrap(), None | Some(1.0)));
    let memory = BoundedStore::new(Arc::new(MemoryStore::synthetic("memory", &[(1, 10)])), DEFAULT_READS);
    let key: Arc<str> = Arc::from("000000.bin");
    assert_eq!(memory.cached_share(key.clone()).await.unwrap(), None);
    assert!(!memory.forget(key).await.unwrap());
}

#[tokio::test]
async fn objects_that_cannot_be_read_cannot_be_probed() {
    let (folder, store) = folder_with(&[("x", BYTES)]);
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("outside")).unwrap();
    for key in ["outside", "../x"] {
        let key: Arc<str> = Arc::from(key);
        let forget = store.forget(key.clone()).await.unwrap_err();
        let share = store.cached_share(key).await.unwrap_err();
        assert!(matches!((&forget, &share), (StoreError::Refused { .. }, StoreError::Refused { .. })));
    }
    assert!(matches!(store.forget(Arc::from("y")).await.unwrap_err(), StoreError::NotFound { .. }));
}

#[tokio::test]
async fn a_store_with_a_separate_limit_is_the_same_store() {
    let (_folder, store) = folder_with(&[("x", BYTES)]);
    let own = store.with_reads(NonZeroUsize::MIN);
    assert_eq!(own.name(), store.name());
    assert_eq!(own.get(Arc::from("x")).await.0.unwrap(), BYTES);
}
