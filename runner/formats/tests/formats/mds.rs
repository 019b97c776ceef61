//! Tests of MDS shards.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use penstock_engine::item::{Sample, Value};
use penstock_engine::numbered::NumberedSource;
use penstock_engine::ports::Source;
use penstock_formats::mds;
use penstock_storage::BoundedStore;
use penstock_types::traversal::TraversalSettings;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::{access, data, drain, store_of, with, written};

const MOST: u64 = 1 << 20;
const IN_ORDER: TraversalSettings = TraversalSettings::IN_ORDER;

/// A sample as mosaicml-streaming reads it: kind and content of each column.
#[derive(Deserialize)]
struct Expected {
    key: String,
    fields: BTreeMap<String, Json>,
}

fn expected(name: &str) -> Vec<Expected> {
    let mut all: BTreeMap<String, Vec<Expected>> =
        serde_json::from_slice(&data("mds/expected.json")).unwrap();
    all.remove(name).unwrap()
}

/// The objects of a data set, below its name.
fn objects(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mds").join(name);
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files
        .map(|file| {
            (format!("{name}/{}", file.file_name().unwrap().to_str().unwrap()), std::fs::read(file).unwrap())
        })
        .collect()
}

async fn store(objects: &[(String, Vec<u8>)]) -> BoundedStore {
    store_of(&objects.iter().map(|(key, content)| (key.as_str(), content.clone())).collect::<Vec<_>>()).await
}

fn source(store: &BoundedStore, prefix: &str, columns: Json, settings: TraversalSettings) -> Box<dyn Source> {
    let open = mds::open(&written(with(columns, "prefix", prefix)), access(store, MOST));
    Box::new(NumberedSource::new(open, settings, MOST))
}

fn columns(fields: &[(&str, &str)], key: Option<&str>) -> Json {
    json!({ "fields": fields.iter().copied().collect::<BTreeMap<_, _>>(), "sample_key": key })
}

/// Samples of a data set, or its fault after the number of samples before it.
async fn read(objects: &[(String, Vec<u8>)], name: &str, columns: Json) -> (Vec<Sample>, Option<String>) {
    let (samples, _, fault) = drain(source(&store(objects).await, name, columns, IN_ORDER)).await;
    (samples, fault)
}

fn assert_same_value(value: &Value, expected: &Json, place: &str) {
    let found = match (value, expected.get("json")) {
        (Value::Text(text), Some(_)) => json!({ "json": serde_json::from_str::<Json>(text).unwrap() }),
        (Value::Text(text), None) => json!({ "text": text }),
        (Value::Blob(bytes), _) => json!({ "blob": bytes.to_vec() }),
        (Value::Int(number), _) => json!({ "int": number }),
        (Value::Real(number), _) => json!({ "real": number }),
        (Value::Tensor(tensor), _) => {
            json!({ "tensor": [tensor.dtype.name(), tensor.shape, tensor.data.to_vec()] })
        }
    };
    assert_eq!(&found, expected, "{place}");
}

#[tokio::test]
async fn shards_are_read_as_mosaicml_streaming_reads_them() {
    for name in ["all", "plain", "zstd", "gz", "br", "bz2", "snappy", "lists"] {
        for prefix in [name.to_owned(), format!("{name}/")] {
            let (samples, fault) = read(&objects(name), &prefix, json!({})).await;
            assert_eq!(fault, None);
            let expected = expected(name);
            assert_eq!(samples.len(), expected.len());
            for (sample, expected) in samples.iter().zip(expected) {
                assert_eq!(*sample.key, expected.key);
                assert_eq!(sample.fields.len(), expected.fields.len(), "{sample:?}");
                for field in &sample.fields {
                    let place = format!("{} of {}", field.name, sample.key);
                    assert_same_value(&field.value, &expected.fields[&*field.name], &place);
                }
            }
        }
    }
}

#[tokio::test]
async fn each_sample_is_visited_once_in_any_order() {
    for name in ["plain", "zstd"] {
        let store = store(&objects(name)).await;
        for window in [None, NonZeroU32::new(2)] {
            let settings =
                TraversalSettings { seed: 3, shuffle: true, window, epochs: NonZeroU32::new(2), ..IN_ORDER };
            let (samples, ends, fault) =
                drain(source(&store, name, columns(&[], Some("id")), settings)).await;
            assert_eq!((fault, ends), (None, vec![12]));
            let keys: Vec<&str> = samples.iter().map(|sample| &*sample.key).collect();
            let (first, second) = keys.split_at(12);
            assert_ne!(first, second);
            for keys in [first, second] {
                let mut numbers: Vec<u32> =
                    keys.iter().map(|key| key.split(' ').nth(1).unwrap().parse().unwrap()).collect();
                numbers.sort_unstable();
                assert_eq!(numbers, (0..12).collect::<Vec<_>>());
            }
        }
    }
}

#[tokio::test]
async fn a_document_names_columns_and_the_key() {
    let (samples, fault) =
        read(&objects("all"), "all", columns(&[("bytes", "photo"), ("class", "label")], Some("id"))).await;
    assert_eq!(fault, None);
    assert_eq!(&*samples[2].key, "sample 2 ä");
    let mut names: Vec<&str> = samples[2].fields.iter().map(|field| &*field.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["bytes", "class"]);
    assert_eq!(samples[2].field("class"), Some(&Value::Int(-2)));
    // A column that is not read may have any encoding.
    let (samples, fault) = read(&objects("pickled"), "pickled", columns(&[("name", "id")], None)).await;
    assert_eq!((samples.len(), fault), (1, None));
}

#[tokio::test]
async fn data_sets_that_are_not_read_state_the_reason() {
    let changed = |name: &str, change: fn(&mut Json)| {
        let mut objects = objects(name);
        let index = objects.iter_mut().find(|(key, _)| key.ends_with("index.json")).unwrap();
        let mut json: Json = serde_json::from_slice(&index.1).unwrap();
        change(&mut json);
        index.1 = serde_json::to_vec(&json).unwrap();
        objects
    };
    let all = || json!({});
    let mut hashed = objects("zstd");
    let shard = hashed.iter_mut().find(|(key, _)| key.contains("00001")).unwrap();
    let middle = shard.1.len() / 2;
    shard.1[middle] ^= 1;
    let mut short = objects("plain");
    short.iter_mut().find(|(key, _)| key.contains("00001")).unwrap().1.pop();
    let cases = [
        ("pickle", read(&objects("pickled"), "pickled", all()).await),
        (
            "compression",
            read(&changed("zstd", |index| index["shards"][0]["compression"] = "lz4:1".into()), "zstd", all())
                .await,
        ),
        ("images as a key", read(&objects("lists"), "lists", columns(&[("id", "id")], Some("photos"))).await),
        ("images as a file", read(&objects("lists"), "lists", columns(&[("bytes", "photos")], None)).await),
        (
            "a field twice",
            read(&objects("lists"), "lists", columns(&[("a", "photos"), ("a.offsets", "id")], None)).await,
        ),
        (
            "raw images",
            read(
                &changed("lists", |index| index["shards"][0]["column_encodings"][1] = "list[pil]".into()),
                "lists",
                all(),
            )
            .await,
        ),
        ("no column", read(&objects("plain"), "plain", columns(&[("bytes", "picture")], None)).await),
        ("no key", read(&objects("plain"), "plain", columns(&[], Some("name"))).await),
        ("no index", read(&objects("plain"), "", all()).await),
        ("no JSON", read(&[("index.json".to_owned(), b"{".to_vec())], "", all()).await),
        ("version", read(&changed("plain", |index| index["version"] = 1.into()), "plain", all()).await),
        (
            "format",
            read(&changed("plain", |index| index["shards"][1]["format"] = "json".into()), "plain", all())
                .await,
        ),
        (
            "sizes",
            read(&changed("plain", |index| index["shards"][1]["column_sizes"] = json!([])), "plain", all())
                .await,
        ),
        (
            "samples",
            read(&changed("plain", |index| index["shards"][1]["samples"] = 3.into()), "plain", all()).await,
        ),
        (
            "many samples",
            read(&changed("plain", |index| index["shards"][1]["samples"] = u64::MAX.into()), "plain", all())
                .await,
        ),
        ("hash", read(&hashed, "zstd", all()).await),
        ("short", read(&short, "plain", all()).await),
        (
            "bomb",
            read(
                &changed("zstd", |index| index["shards"][0]["raw_data"]["bytes"] = 300.into()),
                "zstd",
                all(),
            )
            .await,
        ),
        (
            "large",
            read(
                &changed("zstd", |index| index["shards"][0]["raw_data"]["bytes"] = u64::MAX.into()),
                "zstd",
                all(),
            )
            .await,
        ),
        (
            "outside",
            read(
                &changed("plain", |index| index["shards"][0]["raw_data"]["basename"] = "../x".into()),
                "plain",
                all(),
            )
            .await,
        ),
    ];
    let told = cases.map(|(name, (samples, fault))| {
        format!("{name}, after {}: {}", samples.len(), fault.unwrap_or_default())
    });
    insta::assert_snapshot!(told.join("\n"));
}

/// 64 MiB of zeros, by the package `brotli` of Python with quality 5.
pub(crate) const BROTLI_BOMB: &[u8] = b"\
    \xcb\xff\xff\x3f\x00\x24\x00\xe2\xb1\x40\x72\xef\xff\xf8\xff\xff\x07\x80\x04\x40\x1c\x16\x80\xee\xfd\
    \x1f\xff\xff\xff\x00\x90\x00\x88\xc3\x02\xd0\xbd\xff\xe3\xff\xff\x1f\x00\x12\x00\x71\x58\x00\xba\xf7\
    \x7f\xfc\xff\xff\x03\x40\x02\x20\x0e\x0b\x40\xf7\xfe\x8f\xff\xff\x7f\x00\x48\x00\xc4\x61\x01\xe8\xde\
    \xff\xf1\xff\xff\x0f\x00\x09\x80\x38\x2c\x00\xdd\xfb\x3f\xfe\xff\xff\x01\x20\x01\x10\x87\x05\xa0\x7b\
    \xff\x37";

/// 64 MiB of zeros in each compression that the fixtures have, beside gzip and zstd.
fn bombs() -> [(&'static str, Vec<u8>); 3] {
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), 64 << 20), &mut bzip2).unwrap();
    // A block states its length, here as 64 MiB.
    let snappy = [0x80, 0x80, 0x80, 0x20, 0, 0];
    [("br", BROTLI_BOMB.to_vec()), ("bz2", bzip2.finish().unwrap()), ("snappy", snappy.to_vec())]
}

#[tokio::test]
async fn shards_that_are_larger_than_the_index_says_are_refused_before_they_take_memory() {
    for (name, bomb) in bombs() {
        for (stated, told) in
            [(300, "has other than 300 bytes"), (1 << 60, "together more than the limit of")]
        {
            let file =
                |basename: String, bytes: u64| json!({ "basename": basename, "bytes": bytes, "hashes": {} });
            let zip = format!("shard.00000.mds.{name}");
            let shard = json!({
                "format": "mds", "samples": 2, "compression": name, "column_names": [], "column_encodings": [], "column_sizes": [],
                "raw_data": file("shard.00000.mds".to_owned(), stated), "zip_data": file(zip.clone(), bomb.len() as u64),
            });
            let index = serde_json::to_vec(&json!({ "version": 2, "shards": [shard] })).unwrap();
            let objects = [("index.json".to_owned(), index), (zip, bomb.clone())];
            let (samples, fault) = read(&objects, "", json!({})).await;
            let fault = fault.unwrap();
            assert!(samples.is_empty() && fault.contains(told), "{name}: {fault}");
        }
    }
}

#[tokio::test]
async fn one_image_beside_several_is_refused_before_the_first_sample() {
    let mut objects = objects("plain");
    let index = objects.iter_mut().find(|(key, _)| key.ends_with("index.json")).unwrap();
    let mut json: Json = serde_json::from_slice(&index.1).unwrap();
    let encodings = json["shards"][1]["column_encodings"].as_array_mut().unwrap();
    *encodings.iter_mut().find(|encoding| **encoding == "bytes").unwrap() = "list[png]".into();
    index.1 = serde_json::to_vec(&json).unwrap();
    let (samples, fault) = read(&objects, "plain", json!({})).await;
    let fault = fault.unwrap();
    let told = "is a blob in the shard `plain/shard.00000.mds`, and is a list of images in the shard `plain/shard.00001.mds`; ";
    assert!(samples.is_empty() && fault.contains(told), "{fault}");
}

#[tokio::test]
async fn texts_beside_json_are_refused_before_the_first_sample() {
    let mut objects = objects("plain");
    let index = objects.iter_mut().find(|(key, _)| key.ends_with("index.json")).unwrap();
    let mut json: Json = serde_json::from_slice(&index.1).unwrap();
    let encodings = json["shards"][1]["column_encodings"].as_array_mut().unwrap();
    *encodings.iter_mut().find(|encoding| **encoding == "str").unwrap() = "json".into();
    index.1 = serde_json::to_vec(&json).unwrap();
    let (samples, fault) = read(&objects, "plain", json!({})).await;
    let fault = fault.unwrap();
    assert!(samples.is_empty(), "{fault}");
    let (is_text, is_json) = (
        "` is a text in the shard `plain/shard.00000.mds`, and",
        "is JSON in the shard `plain/shard.00001.mds`; ",
    );
    assert!(fault.contains(is_text) && fault.contains(is_json), "{fault}");
}

#[tokio::test]
async fn damage_at_each_byte_is_a_fault_or_another_value() {
    for name in ["plain", "gz", "br", "bz2", "snappy", "lists"] {
        let mut whole = objects(name);
        if name == "br" {
            let index = whole.iter_mut().find(|(key, _)| key.ends_with("index.json")).unwrap();
            let mut json: Json = serde_json::from_slice(&index.1).unwrap();
            json["shards"][1]["zip_data"]["hashes"] = json!({});
            index.1 = serde_json::to_vec(&json).unwrap();
        }
        let number = if name == "lists" { "00000" } else { "00001" };
        let shard = whole.iter().position(|(key, _)| key.contains(number)).unwrap();
        let count = expected(name).len();
        for at in 0..whole[shard].1.len().min(2_000) {
            let mut changed = whole.clone();
            changed[shard].1[at] ^= 0x55;
            let (samples, fault) = read(&changed, name, json!({})).await;
            // Hashes are those of compressed shards.
            assert!(fault.is_some() || name != "gz" && samples.len() == count, "{name} {at}");
            changed[shard].1.truncate(at);
            let (_, fault) = read(&changed, name, json!({})).await;
            assert!(fault.unwrap().contains("as the index says"), "{name} {at}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn damaged_indexes_never_panic(at in 0_usize..2000, byte: u8, cut in proptest::option::of(0_usize..2000)) {
        let mut objects = objects("zstd");
        let index = &mut objects.iter_mut().find(|(key, _)| key.ends_with("index.json")).unwrap().1;
        let place = at % index.len();
        index[place] = byte;
        if let Some(cut) = cut {
            index.truncate(cut);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read(&objects, "zstd", json!({})));
    }

    #[test]
    fn ranks_read_each_sample_once(world in 1_u32..5, seed: u64, shuffle: bool) {
        use penstock_types::traversal::{Shard, Uneven};
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut keys = Vec::new();
        for rank in 0..world {
            let shard = Some(Shard { rank, world: NonZeroU32::new(world).unwrap(), uneven: Uneven::Keep });
            let settings = TraversalSettings { seed, shuffle, shard, ..IN_ORDER };
            let (samples, _, fault) = runtime.block_on(async {
                drain(source(&store(&objects("zstd")).await, "zstd", columns(&[("x", "label")], None), settings)).await
            });
            prop_assert_eq!(fault, None);
            keys.extend(samples.into_iter().map(|sample| sample.key));
        }
        keys.sort();
        let mut all: Vec<Arc<str>> = expected("zstd").into_iter().map(|sample| Arc::from(sample.key)).collect();
        all.sort();
        prop_assert_eq!(keys, all);
    }
}
