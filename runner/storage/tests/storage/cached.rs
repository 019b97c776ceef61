//! Tests of small files and parts of files that are in memory, which are read without a switch of threads.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use futures::FutureExt;
use penstock_storage::{BoundedStore, MemoryStore, ReadParts, StoreError, Version, observe};
use rustix::fs::fstatfs;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{LocalSet, spawn_blocking, spawn_local, yield_now};

use crate::folder_with;

const SMALL: &[u8] = &[7; 16 << 10];
const LARGE: &[u8] = &[7; (16 << 10) + 1];

/// A folder with small and large files; `None` if its file system cannot report that a read would wait.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn folder() -> Option<(TempDir, BoundedStore)> {
    let folder = folder_with(&[("small", SMALL), ("large", LARGE), ("empty", b""), ("sub/x", b"x")]);
    let system = fstatfs(std::fs::File::open(folder.0.path()).unwrap()).unwrap().f_type as u64;
    // ext4, XFS, Btrfs.
    let is_known = [0xef53, 0x5846_5342, 0x9123_683e].contains(&system);
    if !is_known {
        eprintln!("skipped: the temporary folder is on a file system of type {system:#x}");
    }
    is_known.then_some(folder)
}

/// A runtime of one thread with one blocking thread, which is in use until the sender is dropped.
fn runtime_without_blocking_threads() -> (Runtime, mpsc::Sender<()>) {
    let runtime = Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    let (end, ended) = mpsc::channel::<()>();
    runtime.block_on(async { drop(spawn_blocking(move || ended.recv())) });
    (runtime, end)
}

#[test]
fn only_small_files_in_memory_are_read_without_a_blocking_thread() {
    let Some((_folder, store)) = folder() else { return };
    let (runtime, end) = runtime_without_blocking_threads();
    runtime.block_on(async {
        let read = |key: &str| store.get(Arc::from(key));
        for (key, bytes) in [("small", SMALL), ("empty", b""), ("sub/x", b"x")] {
            let (found, _) = read(key).now_or_never().unwrap();
            assert_eq!(found.unwrap(), bytes, "{key}");
        }
        for key in ["large", "missing", "sub"] {
            assert!(read(key).now_or_never().is_none(), "{key}");
        }
        // An invalid key is refused without a thread, too.
        let (outside, _) = read("../small").now_or_never().unwrap();
        assert!(matches!(outside, Err(StoreError::Refused { .. })));
        drop(end);
        assert_eq!(read("large").await.0.unwrap(), LARGE);
        assert!(matches!(read("missing").await.0, Err(StoreError::NotFound { .. })));
    });
}

#[test]
fn only_small_parts_of_the_wanted_version_are_read_without_a_blocking_thread() {
    let Some((_folder, store)) = folder() else { return };
    let version = Builder::new_current_thread().build().unwrap();
    let version = version.block_on(store.version(Arc::from("large"))).unwrap();
    let other = Version { tag: Some("other".into()), ..version.clone() };
    let (runtime, end) = runtime_without_blocking_threads();
    runtime.block_on(async {
        let read = |of: &Version, range| store.get_range(Arc::from("large"), Some(of.clone()), range);
        let size = LARGE.len() as u64;
        for range in [0..16 << 10, 1..size, 5..6] {
            let expected = &LARGE[range.start as usize..range.end as usize];
            assert_eq!(read(&version, range).now_or_never().unwrap().unwrap(), expected);
        }
        for (of, range) in [(&version, 0..size), (&version, size..size + 1), (&other, 0..5)] {
            assert!(read(of, range).now_or_never().is_none());
        }
        drop(end);
        assert_eq!(read(&version, 0..size).await.unwrap(), LARGE);
        assert!(read(&version, size..size + 1).await.is_err());
        assert!(read(&other, 0..5).await.is_err());
    });
}

#[tokio::test]
async fn parts_of_any_size_are_copied_from_memory_or_not_at_all() {
    let bytes: Vec<u8> = (0..3 << 17).map(|at: u32| (at % 251) as u8).collect();
    let (_folder, store) = folder_with(&[("x", &bytes)]);
    let (version, size) = (store.version(Arc::from("x")).await.unwrap(), bytes.len() as u64);
    let other = Version { tag: Some("other".into()), ..version.clone() };
    if folder().is_some() {
        for range in [0..size, 1..size, 5..6, 70_000..200_001, 7..7] {
            let found = store.cached_range("x", &version, range.clone()).unwrap();
            assert_eq!(found, bytes[range.start as usize..range.end as usize]);
        }
    }
    for (key, of, range) in [
        ("x", &other, 0..5),
        ("x", &version, 0..size + 1),
        ("x", &version, size + 1..size + 2),
        ("y", &version, 0..5),
        ("../x", &version, 0..5),
        ("", &version, 0..5),
    ] {
        assert_eq!(store.cached_range(key, of, range), None);
    }
    let memory = BoundedStore::new(Arc::new(MemoryStore::new("data")), NonZeroUsize::MIN);
    assert!(!memory.may_be_cached());
}

#[tokio::test]
async fn small_files_that_are_not_in_memory_are_read_from_storage() {
    let (_folder, store) = folder_with(&[("small", SMALL)]);
    let key: Arc<str> = Arc::from("small");
    for _ in 0..5 {
        store.forget(key.clone()).await.unwrap();
        let ((read, time), parts) = observe(store.get(key.clone())).await;
        assert_eq!(read.unwrap(), SMALL);
        let counted =
            ReadParts { attempts: 1, first_byte: parts.first_byte, body: parts.body, ..ReadParts::default() };
        assert_eq!(parts, counted);
        assert!(parts.first_byte + parts.body <= time.end - time.start, "{parts:?} of {time:?}");
    }
}

#[test]
fn a_task_that_reads_many_files_in_memory_lets_others_run() {
    let Some((_folder, store)) = folder() else { return };
    let (runtime, end) = runtime_without_blocking_threads();
    let turns = Rc::new(Cell::new(0));
    let counted = turns.clone();
    LocalSet::new().block_on(&runtime, async move {
        let other = spawn_local(async move {
            loop {
                counted.set(counted.get() + 1);
                yield_now().await;
            }
        });
        for _ in 0..2_000 {
            store.get(Arc::from("sub/x")).await.0.unwrap();
        }
        other.abort();
    });
    assert!(turns.get() >= 10, "{}", turns.get());
    drop(end);
}

#[test]
fn a_read_from_memory_returns_its_permit() {
    let (_folder, store) = folder_with(&[("x", b"x")]);
    let store = store.with_reads(NonZeroUsize::MIN);
    let runtime = Builder::new_current_thread().build().unwrap();
    for _ in 0..3 {
        assert_eq!(runtime.block_on(store.get(Arc::from("x"))).0.unwrap(), "x");
        assert_eq!(store.reads_used(), 0);
    }
}
