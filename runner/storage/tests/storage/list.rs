//! Tests of the `list` source.

use std::future::pending;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use penstock_engine::item::Origin;
use penstock_engine::ports::{Produced, Source};
use penstock_storage::{
    BoundedStore, DEFAULT_READS, IfThere, KeyPages, ListSource, MemoryStore, Store, StoreFuture, Version,
};
use penstock_types::traversal::{Shard, TraversalSettings, Uneven};
use proptest::prelude::*;

use crate::{drain, folder_with, listed_whole, wanted};

const FILES: &[(&str, &[u8])] = &[
    ("a-b.jpg", b""),
    ("a/1.jpg", b""),
    ("a/2.JPG", b""),
    ("a/3.jpg", b""),
    ("a/note.txt", b""),
    ("b.jpg", b""),
];

#[tokio::test]
async fn keys_are_filtered_at_both_ends_and_numbered_in_byte_order() {
    let (_folder, store) = folder_with(FILES);
    let all = drain(ListSource::new(store.clone(), wanted("", ""), TraversalSettings::IN_ORDER)).await;
    assert_eq!(all.keys(), ["a-b.jpg", "a/1.jpg", "a/2.JPG", "a/3.jpg", "a/note.txt", "b.jpg"]);
    let some = drain(ListSource::new(store, wanted("a/", ".jpg"), TraversalSettings::IN_ORDER)).await;
    assert_eq!(some.keys(), ["a/1.jpg", "a/3.jpg"]);
    assert_eq!(some.samples[1].origin, Origin::at(0, 1));
}

#[tokio::test]
async fn epochs_are_shuffled_differently_and_ranks_share_them() {
    let (_folder, store) = folder_with(FILES);
    let of_rank = |rank| {
        let world = NonZeroU32::new(2).unwrap();
        let settings = TraversalSettings {
            seed: 5,
            shuffle: true,
            window: None,
            shard: Some(Shard { rank, world, uneven: Uneven::Drop }),
            limit: None,
            epochs: NonZeroU32::new(2),
            first_epoch: 0,
        };
        drain(listed_whole(store.clone(), "", settings))
    };
    let (one, two) = (of_rank(0).await, of_rank(1).await);
    assert_eq!((&one.ends, &two.ends), (&vec![3], &vec![3]));
    for epoch in [0..3, 3..6] {
        let mut keys = [&one.keys()[epoch.clone()], &two.keys()[epoch]].concat();
        keys.sort_unstable();
        assert!(keys.into_iter().eq(FILES.iter().map(|(key, _)| *key)));
    }
    assert_ne!(one.keys()[..3], one.keys()[3..]);
}

#[tokio::test]
async fn an_empty_result_is_a_fault_that_names_prefix_and_suffix() {
    let (_folder, store) = folder_with(FILES);
    let fault = |prefix, suffix| {
        let source = ListSource::new(store.clone(), wanted(prefix, suffix), TraversalSettings::IN_ORDER);
        async { drain(source).await.fault() }
    };
    assert_eq!(fault("", ".png").await, "none of the 6 objects of store `data` ends with `.png`");
    assert_eq!(
        fault("a/", ".png").await,
        "none of the 4 objects of store `data` that start with `a/` ends with `.png`"
    );
    assert_eq!(fault("c/", ".jpg").await, "store `data` holds no object whose key starts with `c/`");
    let (_empty, store) = folder_with(&[]);
    let source = ListSource::new(store, wanted("", ".jpg"), TraversalSettings::IN_ORDER);
    assert_eq!(drain(source).await.fault(), "store `data` contains no objects");
}

#[tokio::test]
async fn a_prefix_that_leads_upwards_is_a_fault() {
    let (_folder, store) = folder_with(FILES);
    let fault = drain(ListSource::new(store, wanted("../", ""), TraversalSettings::IN_ORDER)).await.fault();
    assert_eq!(
        fault,
        "store `data` refuses the key `../`: it has a segment `.` or `..`; keys name objects directly"
    );
}

/// A store in memory that counts the pages that are read of its listings.
struct Paged {
    store: MemoryStore,
    pages: Arc<AtomicUsize>,
    /// Number of the page, from 0, from which on the listing hangs.
    hangs: usize,
}

impl Store for Paged {
    fn name(&self) -> &Arc<str> {
        self.store.name()
    }

    fn describe(&self) -> String {
        self.store.describe()
    }

    fn list(&self, prefix: &str) -> KeyPages {
        let (pages, hangs) = (self.pages.clone(), self.hangs);
        let counted = self.store.list(prefix).then(move |page| {
            let number = pages.fetch_add(1, Ordering::Relaxed);
            async move {
                if number >= hangs {
                    pending::<()>().await;
                }
                page
            }
        });
        counted.boxed()
    }

    fn get(&self, key: Arc<str>) -> StoreFuture<Bytes> {
        self.store.get(key)
    }

    fn get_range(&self, key: Arc<str>, of: Option<Version>, range: Range<u64>) -> StoreFuture<Bytes> {
        self.store.get_range(key, of, range)
    }

    fn version(&self, key: Arc<str>) -> StoreFuture<Version> {
        self.store.version(key)
    }

    fn write(&self, key: Arc<str>, bytes: Bytes, if_there: IfThere) -> StoreFuture<bool> {
        self.store.write(key, bytes, if_there)
    }
}

/// A store with `count` keys in pages of 1000, and the number of pages read.
fn paged(count: usize, hangs: usize) -> (BoundedStore, Arc<AtomicUsize>) {
    let pages = Arc::new(AtomicUsize::new(0));
    let store = MemoryStore::synthetic("data", &[(count, 0)]);
    let store = Paged { store, pages: pages.clone(), hangs };
    (BoundedStore::new(Arc::new(store), DEFAULT_READS), pages)
}

async fn next_samples(source: &mut ListSource) -> usize {
    match source.next().await {
        Ok(Some(Produced::Samples(samples))) => samples.len(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn keys_of_a_page_are_visited_before_the_next_page_is_listed() {
    let (store, _) = paged(5000, 1);
    let mut source = ListSource::new(store.clone(), wanted("", ""), TraversalSettings::IN_ORDER);
    let mut made = 0;
    while made < 1000 {
        made += next_samples(&mut source).await;
    }
    assert_eq!((made, source.total()), (1000, None));
    assert!(source.next().now_or_never().is_none());

    let shuffle = TraversalSettings { shuffle: true, ..TraversalSettings::IN_ORDER };
    assert!(listed_whole(store, "", shuffle).next().now_or_never().is_none());
}

#[tokio::test]
async fn no_page_is_listed_beyond_the_limit() {
    for (limit, suffix, expected_pages) in [(0, "", 1), (1000, "", 1), (1001, "", 2), (30, "00.bin", 3)] {
        let (store, pages) = paged(5000, usize::MAX);
        let settings = TraversalSettings {
            limit: Some(limit),
            epochs: NonZeroU32::new(2),
            ..TraversalSettings::IN_ORDER
        };
        let source = ListSource::new(store, wanted("", suffix), settings);
        assert_eq!(drain(source).await.keys().len() as u64, 2 * limit);
        assert_eq!(pages.load(Ordering::Relaxed), expected_pages, "limit {limit}");
    }
}

#[tokio::test]
async fn the_total_is_known_at_the_end_of_the_listing() {
    let (store, _) = paged(900, usize::MAX);
    let mut source = ListSource::new(store, wanted("", ""), TraversalSettings::IN_ORDER);
    assert_eq!(next_samples(&mut source).await, 256);
    assert_eq!(source.total(), Some(900));

    let (store, pages) = paged(4500, usize::MAX);
    let twice = TraversalSettings { epochs: NonZeroU32::new(2), ..TraversalSettings::IN_ORDER };
    let mut source = ListSource::new(store, wanted("", ""), twice);
    let mut made = 0;
    while source.total().is_none() {
        made += next_samples(&mut source).await;
    }
    assert!(made <= 4500 && source.total() == Some(9000));
    assert_eq!(made + drain(source).await.samples.len(), 9000);
    assert_eq!(pages.load(Ordering::Relaxed), 5, "the second epoch lists nothing");
}

#[tokio::test]
async fn keys_beyond_the_memory_of_the_source_are_a_fault() {
    let (store, _) = paged(5000, usize::MAX);
    // 16 keys take 12 bytes for the first, at least 7 for each of the others, and 8 for the position of the first.
    let twice = TraversalSettings { epochs: NonZeroU32::new(2), ..TraversalSettings::IN_ORDER };
    let source = ListSource::new(store, wanted("", ""), twice).within(30_000);
    let fault = drain(source).await.fault();
    assert!(
        fault.starts_with("the first 4000 keys of store `data` take more than the limit of 30000 bytes"),
        "{fault}"
    );
}

#[tokio::test]
async fn a_single_epoch_keeps_only_keys_that_are_not_visited_yet() {
    let (store, _) = paged(40_000, usize::MAX);
    let mut source = ListSource::new(store, wanted("", ""), TraversalSettings::IN_ORDER).within(30_000);
    let mut made = 0;
    while let Some(Produced::Samples(samples)) = source.next().await.unwrap() {
        assert_eq!(&*samples[0].key, format!("{made:06}.bin"));
        made += samples.len();
        assert!((1..=30_000).contains(&source.kept_bytes()), "{} bytes", source.kept_bytes());
    }
    assert_eq!((made, source.total()), (40_000, Some(40_000)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn keys_listed_in_pages_are_visited_as_those_of_a_whole_listing(
        count in 1_usize..3500, all: bool, world in 1_u32..6, rank in 0_u32..6, keep: bool,
        limit in proptest::option::of(0_u64..3600), epochs in 1_u32..3, first_epoch in 0_u32..3,
    ) {
        let uneven = if keep { Uneven::Keep } else { Uneven::Drop };
        let shard = Some(Shard { rank: rank % world, world: NonZeroU32::new(world).unwrap(), uneven });
        let epochs = NonZeroU32::new(epochs);
        let settings = TraversalSettings { seed: 0, shuffle: false, window: None, shard, limit, epochs, first_epoch };
        let (store, _) = paged(count, usize::MAX);
        let suffix = if all { "" } else { "7.bin" };
        // A single epoch is visited in little memory.
        let most_bytes = if settings.after(first_epoch).is_none() { 20_000 } else { u64::MAX };
        let source = || ListSource::new(store.clone(), wanted("", suffix), settings);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (found, whole) = runtime.block_on(async { (drain(source().within(most_bytes)).await, drain(listed_whole(store.clone(), suffix, settings)).await) });
        prop_assert_eq!(found.samples, whole.samples);
        prop_assert_eq!(found.ends, whole.ends);
        prop_assert_eq!(found.fault.map(|fault| fault.to_string()), whole.fault.map(|fault| fault.to_string()));
    }
}
