//! Tests of tar shards.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use penstock_engine::item::{Sample, Value};
use penstock_engine::numbered::NumberedSource;
use penstock_engine::ports::Source;
use penstock_engine::typed::Typing;
use penstock_formats::{Damage, IndexKind, SampleIndex, Shards, expand, tar};
use penstock_storage::BoundedStore;
use penstock_types::resume::{EpochProgress, Progress, StartPoint, Token};
use penstock_types::traversal::{NextVisits, Shard, Traversal, TraversalSettings, Uneven};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;

use crate::{access, data, drain, store_of, with, written};

const SHARDS: [&str; 3] = ["shard-00", "shard-01", "shard-02"];
const MOST: u64 = 1 << 20;

/// A sample as webdataset reads it: bytes of each field.
#[derive(Deserialize)]
struct Expected {
    key: String,
    fields: BTreeMap<String, Vec<u8>>,
}

fn expected(shard: &str) -> Vec<Expected> {
    let mut all: BTreeMap<String, Vec<Expected>> = serde_json::from_slice(&data("expected.json")).unwrap();
    all.remove(shard).unwrap()
}

async fn store() -> BoundedStore {
    let names = SHARDS.iter().chain(&["odd", "pax"]).map(|name| format!("{name}.tar"));
    let objects: Vec<_> = names.map(|name| (name.clone(), data(&name))).collect();
    store_of(&objects.iter().map(|(name, content)| (name.as_str(), content.clone())).collect::<Vec<_>>())
        .await
}

fn stream(store: &BoundedStore, pattern: &str, settings: TraversalSettings) -> Box<dyn Source> {
    let source = written(json!({ "shards": pattern }));
    Box::new(tar::stream(&source, access(store, MOST), Typing::default(), settings))
}

async fn indexed(store: &BoundedStore, pattern: &str, settings: TraversalSettings) -> Box<dyn Source> {
    let shards = Shards::Keys(expand(pattern).unwrap());
    let index =
        SampleIndex::build(IndexKind::Tar, store, &shards, &Damage::default(), |_, _| {}).await.unwrap();
    store.put(Arc::from("index"), index.to_bytes().into()).await.unwrap();
    Box::new(NumberedSource::new(
        tar::open(&written(json!({ "index": "index" })), access(store, MOST)),
        settings,
        MOST,
    ))
}

/// Bytes of a field, as the file has them.
fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::Blob(bytes) => bytes.to_vec(),
        Value::Text(text) => text.clone().into_bytes(),
        Value::Int(number) => number.to_string().into_bytes(),
        other => panic!("{other:?}"),
    }
}

fn assert_same(samples: &[Sample], expected: &[Expected]) {
    assert_eq!(samples.len(), expected.len());
    for (sample, expected) in samples.iter().zip(expected) {
        assert_eq!(*sample.key, expected.key);
        assert_eq!(sample.fields.len(), expected.fields.len(), "{sample:?}");
        for field in &sample.fields {
            let name = &*field.name;
            match expected.fields.get(name) {
                Some(content) => assert_eq!(bytes(&field.value), *content, "{name} of {}", sample.key),
                // A compressed field has the name of its content.
                None => assert_eq!((name, bytes(&field.value)), ("json", b"{\"a\": 1}".to_vec())),
            }
        }
    }
}

#[tokio::test]
async fn shards_are_read_as_webdataset_reads_them_with_and_without_an_index() {
    let store = store().await;
    for shard in SHARDS.into_iter().chain(["odd", "pax"]) {
        let pattern = format!("{shard}.tar");
        let (samples, _, fault) = drain(stream(&store, &pattern, TraversalSettings::IN_ORDER)).await;
        assert_eq!(fault, None);
        assert_same(&samples, &expected(shard));
        let (samples, _, fault) = drain(indexed(&store, &pattern, TraversalSettings::IN_ORDER).await).await;
        assert_eq!(fault, None);
        assert_same(&samples, &expected(shard));
    }
}

#[tokio::test]
async fn classes_are_numbers_and_texts_are_texts() {
    let store = store().await;
    let (samples, _, _) = drain(stream(&store, "shard-01.tar", TraversalSettings::IN_ORDER)).await;
    let field = |name: &str| &samples[2].fields.iter().find(|field| &*field.name == name).unwrap().value;
    assert_eq!(field("cls"), &Value::Int(12));
    assert_eq!(field("txt"), &Value::Text("text 2 ä".to_owned()));
    assert!(matches!(field("jpg"), Value::Blob(_)));
}

#[tokio::test]
async fn only_selected_files_are_fields_under_the_names_of_the_document() {
    let store = store().await;
    let selected = json!({ "fields": { "image": "png;jpg", "label": "CLS" } });
    let source = written(with(selected.clone(), "shards", "shard-00.tar"));
    let source = tar::stream(&source, access(&store, MOST), Typing::default(), TraversalSettings::IN_ORDER);
    let (streamed, _, _) = drain(Box::new(source)).await;
    drop(indexed(&store, "shard-00.tar", TraversalSettings::IN_ORDER).await);
    let open = tar::open(&written(with(selected, "index", "index")), access(&store, MOST));
    let (read, _, _) = drain(Box::new(NumberedSource::new(open, TraversalSettings::IN_ORDER, MOST))).await;
    for samples in [&streamed, &read] {
        let mut names: Vec<&str> = samples[1].fields.iter().map(|field| &*field.name).collect();
        names.sort_unstable();
        assert_eq!(names, ["image", "label"]);
    }
    assert_eq!(streamed, read);
}

#[tokio::test]
async fn damaged_archives_are_refused_with_place_and_reason() {
    let whole = data("shard-00.tar");
    let changed = |at: usize, byte: u8| {
        let mut archive = whole.clone();
        archive[at] = byte;
        archive
    };
    let store = store_of(&[
        ("cut.tar", whole[..5000].to_vec()),
        ("header.tar", whole[..700].to_vec()),
        ("sum.tar", changed(3, b'!')),
        ("gzip.tar", vec![0x1f; 2000]),
        ("empty.tar", Vec::new()),
    ])
    .await;
    let mut faults = Vec::new();
    for name in ["cut", "header", "sum", "gzip", "empty", "missing"] {
        let pattern = format!("{name}.tar");
        let (samples, _, fault) = drain(stream(&store, &pattern, TraversalSettings::IN_ORDER)).await;
        let shards = Shards::Keys(expand(&pattern).unwrap());
        let scanned =
            SampleIndex::build(IndexKind::Tar, &store, &shards, &Damage::default(), |_, _| {}).await;
        assert_eq!(scanned.err().map(|fault| fault.to_string()), fault);
        faults.push(format!("{name}: {} samples, {}", samples.len(), fault.unwrap_or_default()));
    }
    insta::assert_snapshot!(faults.join("\n"));
}

/// An archive of empty files with these names.
fn archive(names: impl IntoIterator<Item = String>) -> Vec<u8> {
    let mut archive = Vec::new();
    for name in names {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(b"00000000000");
        header[148..156].fill(b' ');
        header[156] = b'0';
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        archive.extend_from_slice(&header);
    }
    archive.extend_from_slice(&[0; 1024]);
    archive
}

#[tokio::test]
async fn ten_thousand_files_of_one_key_are_refused_with_a_reason() {
    let store = store_of(&[
        ("many.tar", archive((0..10_000).map(|number| format!("a.{number}")))),
        ("twice.tar", archive(["a.x", "b.x", "b.y", "b.x"].map(str::to_owned))),
    ])
    .await;
    for (name, expected) in [
        (
            "many",
            "the tar archive `many.tar` in store `data`, at byte 131584, has more than 256 files for the sample `a`",
        ),
        (
            "twice",
            "the tar archive `twice.tar` in store `data`, at byte 2048, has the field `x` of the sample `b` twice",
        ),
    ] {
        let (_, _, fault) = drain(stream(&store, &format!("{name}.tar"), TraversalSettings::IN_ORDER)).await;
        assert_eq!(fault.as_deref(), Some(expected));
    }
}

#[tokio::test]
async fn a_shard_that_changed_after_its_index_was_made_is_a_fault() {
    let store = store().await;
    let source = indexed(&store, "shard-00.tar", TraversalSettings::IN_ORDER).await;
    store.put(Arc::from("shard-00.tar"), data("shard-01.tar").into()).await.unwrap();
    let (samples, _, fault) = drain(source).await;
    assert_eq!(samples.len(), 0);
    assert!(fault.unwrap().contains("`shard-00.tar` in store `data` has changed since `index` was made"));
}

#[tokio::test]
async fn a_compressed_bomb_is_refused_before_it_takes_memory() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), 64 << 20), &mut encoder).unwrap();
    let bomb = encoder.finish().unwrap();
    let mut bytes = archive(["a.json.gz".to_owned()]);
    bytes.truncate(512);
    let size = format!("{:011o}", bomb.len());
    bytes[124..135].copy_from_slice(size.as_bytes());
    bytes[148..156].fill(b' ');
    let sum: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
    bytes[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    bytes.extend_from_slice(&bomb);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    let store = store_of(&[("bomb.tar", bytes)]).await;
    let (_, _, fault) = drain(stream(&store, "bomb.tar", TraversalSettings::IN_ORDER)).await;
    assert!(
        fault
            .unwrap()
            .ends_with("which has more than 1048576 bytes when it is decompressed; raise `buffer_mib`")
    );
}

#[tokio::test]
async fn damaged_indexes_are_refused_with_a_reason() {
    let store = store().await;
    drop(indexed(&store, "shard-{00..02}.tar", TraversalSettings::IN_ORDER).await);
    let (index, _) = store.get(Arc::from("index")).await;
    let index = index.unwrap();
    assert!(SampleIndex::read(index.clone(), IndexKind::Tar).is_ok());
    for length in 0..index.len() {
        assert!(SampleIndex::read(index.slice(..length), IndexKind::Tar).is_err(), "{length} bytes");
    }
    for at in 0..index.len() {
        let mut changed = index.to_vec();
        changed[at] ^= 0x41;
        // A change may be another valid index; it never panics.
        drop(SampleIndex::read(changed.into(), IndexKind::Tar));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn samples_are_visited_in_the_order_of_a_traversal(
        world in 1_u32..5, rank in 0_u32..5, keep: bool, shuffle: bool, seed: u64, window in proptest::option::of(1_u32..4),
        limit in proptest::option::of(0_u64..15), epochs in 1_u32..4, settled in 0_u64..13,
    ) {
        let uneven = if keep { Uneven::Keep } else { Uneven::Drop };
        let shard = Some(Shard { rank: rank % world, world: NonZeroU32::new(world).unwrap(), uneven });
        let window = window.and_then(NonZeroU32::new);
        let settings = TraversalSettings { seed, shuffle, window, shard, limit, epochs: NonZeroU32::new(epochs), first_epoch: 0 };
        let all: Vec<String> = SHARDS.iter().flat_map(|shard| expected(shard)).map(|sample| sample.key).collect();
        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        let traversal = Traversal::in_units(all.len() as u64, [4, 4, 4].into(), settings).unwrap();
        // A run has settled the first samples, except one in the middle.
        let begin = StartPoint::new(Token::new(BTreeMap::new(), &settings), shard).unwrap();
        let settled = settled.min(traversal.len_per_epoch());
        let ranges = [(0, settled / 2), (settled / 2 + 1, settled.saturating_sub(settled / 2 + 1))];
        let ranges = ranges.into_iter().filter(|(_, count)| *count > 0).collect();
        let epochs = vec![EpochProgress { settled: ranges, ..EpochProgress::default() }];
        let token = begin.after(&Progress { epochs, ..Progress::default() });
        let start = Arc::new(StartPoint::new(token, shard).unwrap());
        let mut traversal = traversal.from(&start);
        let start = Some(start);
        while let Some(visits) = traversal.next_visits(7) {
            match visits {
                NextVisits::Visits { indexes, .. } => keys.extend(indexes.iter().map(|index| all[*index as usize].clone())),
                NextVisits::EpochEnd => ends.push(keys.len()),
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (samples, found, fault) = runtime.block_on(async {
            let store = store().await;
            match shuffle {
                true => {
                    drop(indexed(&store, "shard-{00..02}.tar", settings).await);
                    let samples = tar::open(&written(json!({ "index": "index" })), access(&store, MOST));
                    drain(Box::new(NumberedSource::new(samples, settings, MOST).from(start))).await
                }
                false => {
                    let source = written(json!({ "shards": "shard-{00..02}.tar" }));
                    let stream = tar::stream(&source, access(&store, MOST), Typing::default(), settings);
                    drain(Box::new(stream.from(start))).await
                }
            }
        });
        prop_assert_eq!(fault, None);
        prop_assert_eq!(samples.iter().map(|sample| sample.key.to_string()).collect::<Vec<_>>(), keys);
        prop_assert_eq!(found, ends);
    }
}
