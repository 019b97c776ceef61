//! Tests of the `list` source.

use std::num::NonZeroU32;

use penstock_engine::item::Origin;
use penstock_storage::ListSource;
use penstock_types::traversal::{Shard, TraversalSettings, Uneven};

use crate::{drain, folder_with};

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
    let all = drain(ListSource::new(store.clone(), "", "", TraversalSettings::IN_ORDER)).await;
    assert_eq!(all.keys(), ["a-b.jpg", "a/1.jpg", "a/2.JPG", "a/3.jpg", "a/note.txt", "b.jpg"]);
    let some = drain(ListSource::new(store, "a/", ".jpg", TraversalSettings::IN_ORDER)).await;
    assert_eq!(some.keys(), ["a/1.jpg", "a/3.jpg"]);
    assert_eq!(some.samples[1].origin, Origin { epoch: 0, index: 1, path: 0 });
}

#[tokio::test]
async fn epochs_are_shuffled_differently_and_ranks_share_them() {
    let (_folder, store) = folder_with(FILES);
    let of_rank = |rank| {
        let world = NonZeroU32::new(2).unwrap();
        let settings = TraversalSettings {
            seed: 5,
            shuffle: true,
            shard: Some(Shard { rank, world, uneven: Uneven::Drop }),
            limit: None,
            epochs: NonZeroU32::new(2),
            first_epoch: 0,
        };
        drain(ListSource::new(store.clone(), "", "", settings))
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
        let source = ListSource::new(store.clone(), prefix, suffix, TraversalSettings::IN_ORDER);
        async { drain(source).await.fault() }
    };
    assert_eq!(fault("", ".png").await, "none of the 6 objects of store `data` ends with `.png`");
    assert_eq!(
        fault("a/", ".png").await,
        "none of the 4 objects of store `data` that start with `a/` ends with `.png`"
    );
    assert_eq!(fault("c/", ".jpg").await, "store `data` holds no object whose key starts with `c/`");
    let (_empty, store) = folder_with(&[]);
    let source = ListSource::new(store, "", ".jpg", TraversalSettings::IN_ORDER);
    assert_eq!(drain(source).await.fault(), "store `data` contains no objects");
}

#[tokio::test]
async fn a_prefix_that_leads_upwards_is_a_fault() {
    let (_folder, store) = folder_with(FILES);
    let fault = drain(ListSource::new(store, "../", "", TraversalSettings::IN_ORDER)).await.fault();
    assert_eq!(
        fault,
        "store `data` refuses the key `../`: it has a segment `.` or `..`; keys name objects directly"
    );
}
