//! Tests of the `index` source.

use std::fs::File;
use std::num::NonZeroU32;

use penstock_engine::item::Origin;
use penstock_engine::numbered::NumberedSource;
use penstock_engine::ports::Source;
use penstock_storage::{BoundedStore, MAX_INDEX_BYTES, index_samples};
use penstock_types::traversal::{Shard, TraversalSettings, Uneven};

use crate::{drain, folder_with, listed_whole, numbered};

const INDEX: &[u8] = br#"["b.jpg", "a/1.jpg", "gone.jpg", "a/1.jpg"]"#;

fn indexed(store: BoundedStore, index: &str, settings: TraversalSettings) -> NumberedSource {
    numbered(index_samples(store, index, u64::MAX), settings)
}

#[tokio::test]
async fn keys_are_numbered_in_the_order_of_the_index_and_need_not_exist() {
    let (_folder, store) = folder_with(&[("index.json", INDEX)]);
    let mut source = indexed(store.clone(), "index.json", TraversalSettings::IN_ORDER);
    assert_eq!(source.total(), None);
    source.next().await.unwrap();
    assert_eq!(source.total(), Some(4));
    let all = drain(indexed(store, "index.json", TraversalSettings::IN_ORDER)).await;
    assert_eq!(all.keys(), ["b.jpg", "a/1.jpg", "gone.jpg", "a/1.jpg"]);
    assert_eq!(all.samples[3].origin, Origin::at(0, 3));
    assert!(all.samples[0].fields.is_empty());
}

#[tokio::test]
async fn an_index_of_a_listing_is_visited_like_the_listing() {
    let keys: Vec<String> = (0..1000).map(|number| format!("{:02}/{number:04}.jpg", number % 7)).collect();
    let files: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), &b""[..])).collect();
    let (folder, store) = folder_with(&files);
    let mut sorted = keys.clone();
    sorted.sort();
    crate::put(folder.path(), "index.json", serde_json::to_string_pretty(&sorted).unwrap().as_bytes());
    let shard = Shard { rank: 1, world: NonZeroU32::new(3).unwrap(), uneven: Uneven::Keep };
    let settings = TraversalSettings {
        seed: 3,
        shuffle: true,
        window: None,
        shard: Some(shard),
        limit: Some(700),
        epochs: NonZeroU32::new(2),
        first_epoch: 0,
    };
    let listed = drain(listed_whole(store.clone(), ".jpg", settings)).await;
    let found = drain(indexed(store, "index.json", settings)).await;
    assert_eq!(found.samples.len(), 466);
    assert_eq!(found.keys(), listed.keys());
    assert_eq!(found.ends, listed.ends);
    assert!(found.samples.iter().zip(&listed.samples).all(|(one, other)| one.origin == other.origin));
}

#[tokio::test]
async fn an_index_larger_than_a_block_is_read_to_its_end() {
    let keys: Vec<String> = (0..200_000).map(|number| format!("{number:060}")).collect();
    let index = serde_json::to_vec(&keys).unwrap();
    assert!(index.len() > 12 << 20);
    let (_folder, store) = folder_with(&[("index.json", &index)]);
    let all = drain(indexed(store, "index.json", TraversalSettings::IN_ORDER)).await;
    assert!(all.keys().into_iter().eq(keys.iter()));
}

#[tokio::test]
async fn a_fault_names_index_and_store() {
    let (folder, store) = folder_with(&[("index.json", br#"["a.jpg", 7]"#), ("empty.json", b"")]);
    File::create(folder.path().join("huge.json")).unwrap().set_len(MAX_INDEX_BYTES + 1).unwrap();
    let fault = |index: &'static str| {
        let source = indexed(store.clone(), index, TraversalSettings::IN_ORDER);
        async { drain(source).await.fault() }
    };
    assert_eq!(
        fault("index.json").await,
        "the index `index.json` in store `data` has, as element 2 at byte 10, a number; expected a key as a string: \"a/b.jpg\""
    );
    assert_eq!(
        fault("empty.json").await,
        "the index `empty.json` in store `data` is empty; expected a JSON array of keys"
    );
    assert_eq!(
        fault("huge.json").await,
        "the index `huge.json` in store `data` has 1073741825 bytes, at most 1073741824 are read; split it up"
    );
    assert_eq!(fault("none.json").await, "store `data` has no object `none.json`");
}

#[tokio::test]
async fn keys_count_as_kept_memory_and_are_a_fault_beyond_the_limit() {
    let (_folder, store) = folder_with(&[("index.json", br#"["a.jpg", "b.jpg"]"#)]);
    let source =
        |bytes| numbered(index_samples(store.clone(), "index.json", bytes), TraversalSettings::IN_ORDER);
    let mut enough = source(22);
    assert!(enough.next().await.unwrap().is_some());
    assert_eq!(enough.kept_bytes(), 22);
    assert_eq!(
        drain(source(21)).await.fault(),
        "the index `index.json` in store `data` has, in its first 18 of 18 bytes, 2 keys that take more than the limit of 21 bytes of \
         memory; split it up, or raise `buffer_mib`, of which the source may use a part"
    );
}
