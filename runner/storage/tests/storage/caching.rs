//! Tests of stores whose objects are kept in a data cache, over a real server and real folders.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::TryStreamExt;
use futures::future::join_all;
use penstock_s3_server::{Fault, Mode, Server, Settings, Trouble};
use penstock_storage::{
    CacheLimits, DataCache, FolderStore, Keys, ObjectCache, ObjectPlace, S3Settings, Store, Version, s3_store,
};
use penstock_types::config::Revalidate;
use penstock_types::spec::Links;
use penstock_types::stats::StoreCacheFigures;
use proptest::prelude::*;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::s3::settings;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

struct Cached {
    folder: TempDir,
    server: Server,
    bytes: u64,
}

impl Cached {
    fn new(server: Settings) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            server: Server::start(server).unwrap(),
            bytes: 256 * MIB,
        }
    }

    /// The bucket as another run of another process sees it.
    fn run(&self, revalidate: Revalidate) -> Arc<dyn Store> {
        self.run_of("data", "", revalidate)
    }

    fn run_of(&self, name: &str, prefix: &str, revalidate: Revalidate) -> Arc<dyn Store> {
        let settings = S3Settings { prefix: prefix.to_owned(), ..settings(self.server.endpoint()) };
        let place = settings.place().unwrap();
        let limits = CacheLimits { bytes: Some(self.bytes), keep_free: 0 };
        let cache = DataCache::open(self.folder.path(), limits).unwrap();
        ObjectCache::new(s3_store(name, settings).unwrap(), cache, &place, revalidate).for_run()
    }

    /// Requests since the last call: reads, requests for versions, listings.
    fn requests(&self, since: &mut usize) -> [usize; 3] {
        let seen = self.server.seen();
        let new = &seen[*since..];
        *since = seen.len();
        let count = |method: &str, lists: bool| {
            new.iter().filter(|seen| seen.method == method && seen.key.is_empty() == lists).count()
        };
        [count("GET", false), count("HEAD", false), count("GET", true)]
    }
}

async fn listed(store: &Arc<dyn Store>) -> Vec<Arc<str>> {
    let pages: Vec<Keys> = store.list_all("", Links::All).try_collect().await.unwrap();
    pages.iter().flat_map(Keys::iter).map(Arc::from).collect()
}

fn figures(store: &Arc<dyn Store>) -> StoreCacheFigures {
    assert_eq!(store.cache_written(LONG), 0);
    store.cache_figures().unwrap()
}

fn noise(length: usize, seed: u8) -> Bytes {
    // No divisor of the size of a block, so that blocks differ.
    let pattern: Vec<u8> = (0..4099_u32).map(|at| (at * at).to_le_bytes()[1] ^ seed).collect();
    let mut noise = pattern.repeat(length.div_ceil(pattern.len()));
    noise.truncate(length);
    noise.into()
}

#[tokio::test]
async fn a_second_run_reads_nothing_and_asks_for_versions_only_without_a_listing() {
    let cached = Cached::new(Settings::default());
    let keys: Vec<Arc<str>> = (0..30).map(|number| format!("some/{number:02}").into()).collect();
    for (number, key) in keys.iter().enumerate() {
        cached.server.put(key, noise(number * 1000, 1));
    }
    let mut since = 0;
    let read = async |store: &Arc<dyn Store>| {
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(store.get(key.clone()).await.unwrap(), noise(number * 1000, 1), "{key}");
        }
        figures(store)
    };
    let first = cached.run(Revalidate::Run);
    let found = read(&first).await;
    assert_eq!((found.hits, found.misses), (0, 30));
    assert_eq!(cached.requests(&mut since), [30, 0, 0]);
    assert_eq!(read(&first).await.hits, 30);
    assert_eq!(cached.requests(&mut since), [0, 0, 0], "a run asks once");
    drop(first);

    let asking = cached.run(Revalidate::Run);
    assert_eq!((read(&asking).await.hits, read(&asking).await.hits), (30, 60));
    assert_eq!(cached.requests(&mut since), [0, 30, 0]);
    let listing = cached.run(Revalidate::Run);
    assert_eq!(listed(&listing).await, keys);
    let found = read(&listing).await;
    assert_eq!((found.hits, found.misses, found.asked), (30, 0, 0));
    assert_eq!(cached.requests(&mut since), [0, 0, 1]);
    let passing = cached.run(Revalidate::Pass);
    assert_eq!((read(&passing).await.hits, read(&passing).await.hits), (30, 60));
    assert_eq!(cached.requests(&mut since), [0, 60, 0]);
    let part = cached.run_of("other", "some", Revalidate::Run);
    assert_eq!(part.get(Arc::from("07")).await.unwrap(), noise(7000, 1), "another store of the same bucket");
    assert_eq!(cached.requests(&mut since), [0, 1, 0]);
}

#[tokio::test]
async fn objects_that_never_change_are_not_asked_for() {
    let cached = Cached::new(Settings::default());
    cached.server.put("a", noise(1000, 1));
    cached.server.put("large", noise(17 << 20, 2));
    let mut since = 0;
    let read = async |store: Arc<dyn Store>| {
        assert_eq!(store.get(Arc::from("a")).await.unwrap(), noise(1000, 1));
        let version = store.version(Arc::from("large")).await.unwrap();
        let range = store.get_range(Arc::from("large"), Some(version), 5..3 << 20).await.unwrap();
        assert_eq!(range, noise(17 << 20, 2).slice(5..3 << 20));
        figures(&store)
    };
    read(cached.run(Revalidate::Never)).await;
    assert_eq!(cached.requests(&mut since), [2, 1, 0]);
    assert_eq!(read(cached.run(Revalidate::Never)).await.misses, 0);
    assert_eq!(cached.requests(&mut since), [0, 0, 0]);
}

#[tokio::test]
async fn a_changed_object_is_never_served_from_before() {
    let cached = Cached::new(Settings::default());
    cached.server.put("a", noise(100, 0));
    let get = async |store: &Arc<dyn Store>| store.get(Arc::from("a")).await.unwrap();
    for seed in 1..40 {
        let store = cached.run(Revalidate::Run);
        assert_eq!(get(&store).await, noise(100, seed - 1));
        figures(&store);
        // The size stays, and one byte changes.
        cached.server.put("a", noise(100, seed));
        assert_eq!(get(&store).await, noise(100, seed - 1), "a run keeps the version that it has seen");
        assert_eq!(get(&cached.run(Revalidate::Run)).await, noise(100, seed));
        let listing = cached.run(Revalidate::Run);
        listed(&listing).await;
        assert_eq!(get(&listing).await, noise(100, seed));
        let passing = cached.run(Revalidate::Pass);
        get(&passing).await;
        cached.server.put("a", noise(100, seed + 100));
        assert_eq!(get(&passing).await, noise(100, seed + 100));
        cached.server.put("a", noise(100, seed));
    }
    let store = cached.run(Revalidate::Run);
    get(&store).await;
    store.put(Arc::from("a"), noise(100, 200)).await.unwrap();
    assert_eq!(get(&store).await, noise(100, 200), "a run sees what it has written");
}

#[tokio::test]
async fn parts_of_large_objects_are_read_once_and_adjacent_ones_together() {
    let cached = Cached::new(Settings::default());
    let object = noise((20 << 20) + 777, 3);
    cached.server.put("large", object.clone());
    let key: Arc<str> = Arc::from("large");
    let store = cached.run(Revalidate::Run);
    let version = store.version(key.clone()).await.unwrap();
    let mut since = 0;
    cached.requests(&mut since);
    let size = object.len() as u64;
    let ranges = [
        (0..10, [1, 0, 0]),
        (MIB - 1..MIB, [0, 0, 0]),
        (MIB - 1..MIB + 1, [1, 0, 0]),
        (5 * MIB + 5..8 * MIB, [1, 0, 0]),
        (4 * MIB..10 * MIB, [2, 0, 0]),
        (size - 5..size, [1, 0, 0]),
        (0..10 * MIB, [1, 0, 0]),
        (0..10 * MIB, [0, 0, 0]),
    ];
    for (range, requests) in ranges {
        let part = object.slice(range.start as usize..range.end as usize);
        let read = store.get_range(key.clone(), Some(version.clone()), range.clone()).await.unwrap();
        assert_eq!((read == part, figures(&store).damaged), (true, 0), "{range:?}");
        assert_eq!(cached.requests(&mut since), requests, "{range:?}");
    }
    assert_eq!(store.get(key.clone()).await.unwrap(), object);
    let beyond = store.get_range(key.clone(), Some(version.clone()), size - 1..size + 1).await.unwrap_err();
    assert!(beyond.to_string().contains("large"), "{beyond}");
    let other = Version { size: size + 1, ..version };
    assert!(store.get_range(key, Some(other), 0..5).await.is_err());
}

#[tokio::test]
async fn each_object_is_read_once_by_four_processes_at_a_time() {
    let cached = Cached::new(Settings {
        latency: penstock_s3_server::Latency { usual: Duration::from_millis(5), ..Default::default() },
        ..Settings::default()
    });
    let keys: Vec<Arc<str>> = (0..50).map(|number| format!("{number:02}").into()).collect();
    keys.iter().for_each(|key| cached.server.put(key, key.repeat(100)));
    cached.server.put("large", noise(19 << 20, 4));
    let runs: Vec<_> = (0..4).map(|_| cached.run(Revalidate::Run)).collect();
    join_all(runs.iter().map(async |store| {
        let reads = join_all(keys.iter().map(|key| store.get(key.clone()))).await;
        reads.into_iter().zip(&keys).for_each(|(read, key)| assert_eq!(read.unwrap(), key.repeat(100)));
        let version = store.version(Arc::from("large")).await.unwrap();
        let parts = (0..19).map(|part| {
            store.get_range(Arc::from("large"), Some(version.clone()), part * MIB..(part + 1) * MIB)
        });
        let parts: Vec<_> = join_all(parts).await.into_iter().map(Result::unwrap).collect();
        assert!(parts.concat() == noise(19 << 20, 4));
    }))
    .await;
    assert_eq!(cached.requests(&mut 0)[0], 50 + 19);
}

#[tokio::test]
async fn objects_without_a_strong_version_are_read_each_time_and_counted() {
    let cached =
        Cached::new(Settings { modes: vec![Mode::Without("etag".to_owned())], ..Settings::default() });
    cached.server.put("a", "old");
    let store = cached.run(Revalidate::Run);
    assert_eq!(&*store.get(Arc::from("a")).await.unwrap(), b"old");
    cached.server.put("a", "new");
    assert_eq!(&*store.get(Arc::from("a")).await.unwrap(), b"new");
    let found = figures(&store);
    assert_eq!((found.hits, found.misses, found.weak), (0, 2, 2));
}

#[tokio::test]
async fn a_full_cache_serves_what_it_has_and_counts_the_rest() {
    let cached = Cached { bytes: MIB, ..Cached::new(Settings::default()) };
    let keys: Vec<Arc<str>> = (0..40).map(|number| format!("{number:02}").into()).collect();
    keys.iter().for_each(|key| cached.server.put(key, noise(50_000, 5)));
    for pass in 0..3 {
        let store = cached.run(Revalidate::Run);
        listed(&store).await;
        for key in &keys {
            assert_eq!(store.get(key.clone()).await.unwrap(), noise(50_000, 5));
            store.cache_written(LONG);
        }
        let found = figures(&store);
        assert_eq!(found.hits + found.misses, 40);
        if pass > 0 {
            // Room for 20 without what lies around the entries.
            assert!((18..=20).contains(&found.hits), "{found:?}");
            assert!(found.full >= 19, "{found:?}");
        }
    }
}

#[tokio::test]
async fn failures_are_those_of_the_store_and_leave_no_entry() {
    let cached = Cached::new(Settings::default());
    cached.server.put("a", noise(1000, 6));
    let store = cached.run(Revalidate::Run);
    let missing = store.get(Arc::from("b")).await.unwrap_err();
    assert!(missing.to_string().contains("`b`"), "{missing}");
    cached.server.inject(Fault::on("a", Trouble::Status(403, "AccessDenied")).times(1));
    store.get(Arc::from("a")).await.unwrap_err();
    let found = figures(&store);
    assert_eq!((found.hits, found.misses), (0, 2));
    assert_eq!(store.get(Arc::from("a")).await.unwrap(), noise(1000, 6));
}

fn of_folder(root: &Path, cache: &Path) -> Arc<dyn Store> {
    let limits = CacheLimits { bytes: Some(256 * MIB), keep_free: 0 };
    let cache = DataCache::open(cache, limits).unwrap();
    let place =
        ObjectPlace { parts: vec!["folder".to_owned(), root.display().to_string()], prefix: String::new() };
    ObjectCache::new(Arc::new(FolderStore::open("data", root).unwrap()), cache, &place, Revalidate::Run)
        .for_run()
}

#[tokio::test]
async fn files_that_were_just_changed_are_not_kept() {
    let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = root.path().join("a");
    let write = |text: &str, ago: u64| {
        fs::write(&path, text).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(SystemTime::now() - Duration::from_secs(ago))
            .unwrap();
    };
    let get = async |text: &str| {
        let store = of_folder(root.path(), cache.path());
        assert_eq!(&*store.get(Arc::from("a")).await.unwrap(), text.as_bytes());
        figures(&store)
    };
    write("new", 0);
    assert_eq!(get("new").await.recent, 1);
    write("old", 100);
    assert_eq!((get("old").await.misses, get("old").await.hits), (1, 1));
    write("own", 99);
    assert_eq!((get("own").await.misses, get("own").await.hits), (1, 1));
}

#[derive(Clone, Debug)]
enum Step {
    Put(usize, usize, u8),
    Get(usize),
    Part(usize, f64, f64),
    NextRun(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sizes = prop_oneof![6 => 0_usize..300, 1 => Just((16 << 20) + 5), 1 => Just(3 << 20)];
    let step = prop_oneof![
        2 => (0_usize..4, sizes, any::<u8>()).prop_map(|(object, size, seed)| Step::Put(object, size, seed)),
        4 => (0_usize..4).prop_map(Step::Get),
        4 => (0_usize..4, 0.0..1.0, 0.0..1.0).prop_map(|(object, from, to)| Step::Part(object, from, to)),
        3 => any::<bool>().prop_map(Step::NextRun),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_store_with_a_cache_reads_what_one_without_reads(steps in steps()) {
        let runtime = Runtime::new().unwrap();
        let cached = Cached::new(Settings::default());
        let put = |object: usize, size, seed| cached.server.put(&object.to_string(), noise(size, seed));
        (0..4).for_each(|object| put(object, 100, object as u8));
        let mut store = cached.run(Revalidate::Pass);
        let plain = s3_store("data", settings(cached.server.endpoint())).unwrap();
        for step in steps {
            match step {
                Step::Put(object, size, seed) => put(object, size, seed),
                Step::Get(object) => {
                    let key: Arc<str> = object.to_string().into();
                    let (read, there) = runtime.block_on(async { (store.get(key.clone()).await.unwrap(), plain.get(key).await.unwrap()) });
                    prop_assert!(read == there);
                }
                Step::Part(object, from, to) => {
                    let key: Arc<str> = object.to_string().into();
                    let version = runtime.block_on(store.version(key.clone())).unwrap();
                    let at = |share: f64| (version.size as f64 * share) as u64;
                    let range = at(from.min(to))..at(from.max(to));
                    let read = runtime.block_on(store.get_range(key.clone(), Some(version), range.clone())).unwrap();
                    let there = runtime.block_on(plain.get_range(key, None, range)).unwrap();
                    prop_assert!(read == there);
                }
                Step::NextRun(lists) => {
                    prop_assert_eq!(figures(&store).damaged, 0);
                    store = cached.run(Revalidate::Pass);
                    if lists {
                        runtime.block_on(listed(&store));
                    }
                }
            }
        }
    }
}
