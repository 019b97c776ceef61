//! Target for objects with many samples: each is read, or refused with a reason, in bounded time and memory; samples that are read by
//! their numbers are those that are read in order.

use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::item::Sample;
use penstock_engine::numbered::{NumberedSource, Open};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_engine::typed::Typing;
use penstock_formats::{
    Access, Damage, IndexKind, RecordFormat, RecordSource, SampleIndex, Shards, mds, parquet, record_samples,
    tar, tfrecord,
};
use penstock_storage::{BoundedStore, MemoryStore};
use penstock_types::spec::{TableForm, TextEncoding};
use penstock_types::traversal::TraversalSettings;
use serde_json::{Value as Json, from_value, json};
use tokio::runtime::{Builder, Runtime};

use crate::told::assert_printable;

/// Memory that a source may keep, in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// Number of samples after which a target has seen enough: few bytes may claim many rows of nulls.
const MOST_SAMPLES: usize = 10_000;

/// Key of the object.
const KEY: &str = "object";
const INDEX: &str = "index";

const WRITTEN: &str = "the settings are those of a source";

/// Formats of the target.
pub const READERS: [&str; 6] = ["csv", "mds", "ndjson", "parquet", "tar", "tfrecord"];

/// What came out of a source: samples, and the reason for which it ended early.
struct Drained {
    samples: Vec<Sample>,
    fault: Option<SourceFault>,
    is_whole: bool,
}

/// Objects of this format among the fixtures.
pub fn reader_seeds(format: &str) -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../runner/formats/tests/data");
    let entries = [data.join(format), data].map(fs::read_dir).into_iter().flatten().flatten().flatten();
    let is_of_format = |path: &PathBuf| path.to_string_lossy().contains(&format!(".{format}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_of_format).collect();
    files.sort();
    files
}

/// Reads the input as an object of this format. Returns the number of samples that came out in both ways of reading, and were compared.
pub fn reader(format: &str, input: &[u8]) -> usize {
    thread_local! {
        static RUNTIME: Runtime = Builder::new_current_thread().build().expect("a runtime is built");
    }
    RUNTIME.with(|runtime| runtime.block_on(read(format, input)))
}

async fn read(format: &str, input: &[u8]) -> usize {
    let store = BoundedStore::new(Arc::new(MemoryStore::new("memory")), NonZeroUsize::MIN);
    let object = || Shards::Keys(vec![Arc::from(KEY)]);
    let put = async |key: &str, bytes: Vec<u8>| {
        store.put(Arc::from(key), Bytes::from(bytes)).await.expect("the memory takes an object");
    };
    match format {
        "tar" => {
            put(KEY, input.to_vec()).await;
            let stream = |store| {
                let (source, in_order) = (
                    from_value(written(json!({ "shards": KEY }))).expect(WRITTEN),
                    TraversalSettings::IN_ORDER,
                );
                tar::stream(&source, access(store), Typing::default(), in_order)
            };
            let streamed = drain(Box::new(stream(store.clone()))).await;
            compare_compressed(input, &streamed, |store| Box::new(stream(store))).await;
            let indexed = |store| {
                tar::open(&from_value(written(json!({ "index": INDEX }))).expect(WRITTEN), access(store))
            };
            compare_indexed(IndexKind::Tar, &store, indexed, streamed).await
        }
        "tfrecord" => {
            let object_bytes = if is_compressed(input) { input.to_vec() } else { with_checksums(input) };
            put(KEY, object_bytes.clone()).await;
            let decode = ["bytes", "example"][input.len() % 2];
            let stream = |store| {
                let source = from_value(written(json!({ "shards": KEY, "decode": decode }))).expect(WRITTEN);
                tfrecord::stream(&source, access(store), Typing::default(), TraversalSettings::IN_ORDER)
            };
            let streamed = drain(Box::new(stream(store.clone()))).await;
            compare_compressed(&object_bytes, &streamed, |store| Box::new(stream(store))).await;
            let source = from_value(written(json!({ "index": INDEX, "decode": decode }))).expect(WRITTEN);
            let indexed = |store| tfrecord::open(&source, access(store));
            compare_indexed(IndexKind::Tfrecord, &store, indexed, streamed).await
        }
        "parquet" => {
            put(KEY, input.to_vec()).await;
            let samples = || {
                parquet::open(
                    &from_value(written(json!({ "shards": KEY }))).expect(WRITTEN),
                    access(store.clone()),
                )
            };
            let in_order = drain(numbered(samples(), TraversalSettings::IN_ORDER)).await;
            let shuffled = TraversalSettings { shuffle: true, ..TraversalSettings::IN_ORDER };
            compare_sets(in_order, drain(numbered(samples(), shuffled)).await)
        }
        "mds" => {
            let (index, shard) =
                input.split_at(input.iter().position(|byte| *byte == 0).unwrap_or(input.len()));
            put("index.json", index.to_vec()).await;
            put("shard.00000.mds", shard.get(1..).unwrap_or_default().to_vec()).await;
            let samples =
                || mds::open(&from_value(written(json!({}))).expect(WRITTEN), access(store.clone()));
            let in_order = drain(numbered(samples(), TraversalSettings::IN_ORDER)).await;
            let shuffled = TraversalSettings { shuffle: true, ..TraversalSettings::IN_ORDER };
            compare_sets(in_order, drain(numbered(samples(), shuffled)).await)
        }
        "csv" | "ndjson" => {
            put(KEY, input.to_vec()).await;
            let formats = match format {
                "csv" => {
                    vec![RecordFormat::rows(b',', [].into()), RecordFormat::rows(form(input), [].into())]
                }
                _ => vec![RecordFormat::lines([].into())],
            };
            let mut compared = 0;
            for format in formats {
                let settings = TraversalSettings::IN_ORDER;
                let stream =
                    RecordSource::new(store.clone(), object(), format.clone(), settings, Typing::default());
                let streamed = drain(Box::new(stream.within(MOST_BYTES))).await;
                let samples =
                    Typing::default().samples(record_samples(store.clone(), object(), format, MOST_BYTES));
                compared += compare_order(streamed, drain(numbered(samples, settings)).await);
            }
            compared
        }
        other => panic!("no format `{other}`"),
    }
}

/// Settings of a source in a document.
fn written(mut settings: Json) -> Json {
    settings["store"] = "memory".into();
    settings
}

fn access(store: BoundedStore) -> Access {
    Access { store, damage: Damage::default(), most_bytes: MOST_BYTES }
}

/// A form of tables that the input chooses.
fn form(input: &[u8]) -> TableForm {
    use TextEncoding::{Latin1, Utf8, Utf16, Windows1252};
    let number = input.len();
    let delimiter = [b';', b'\t', b','][number / 4 % 3];
    let quote = [Some(b'"'), Some(b'\''), None][number / 12 % 3];
    TableForm { delimiter, is_named: true, quote, encoding: [Utf16, Windows1252, Latin1, Utf8][number % 4] }
}

fn numbered(open: Open, settings: TraversalSettings) -> Box<dyn Source> {
    Box::new(NumberedSource::new(open, settings, MOST_BYTES / 4))
}

async fn drain(mut source: Box<dyn Source>) -> Drained {
    let mut samples = Vec::new();
    let mut bytes = 0;
    let (fault, is_whole) = loop {
        match source.next().await {
            Ok(Some(Produced::Samples(more))) => {
                bytes += more.iter().map(Sample::memory_bytes).sum::<u64>();
                samples.extend(more.into_kept());
                if samples.len() > MOST_SAMPLES || bytes > MOST_BYTES {
                    break (None, false);
                }
            }
            Ok(Some(Produced::EpochEnd)) => {}
            Ok(None) => break (None, true),
            Err(fault) => break (Some(fault), true),
        }
    };
    if let Some(fault) = &fault {
        assert_printable(&fault.to_string());
    }
    Drained { samples, fault, is_whole }
}

/// Makes an index and reads by it. It has all samples of an object that can be read in order.
async fn compare_indexed(
    kind: IndexKind,
    store: &BoundedStore,
    open: impl FnOnce(BoundedStore) -> Open,
    streamed: Drained,
) -> usize {
    let shards = Shards::Keys(vec![Arc::from(KEY)]);
    match SampleIndex::build(kind, store, &shards, &Damage::default(), |_, _| {}).await {
        Ok(index) => {
            store.put(Arc::from(INDEX), index.to_bytes().into()).await.expect("the memory takes an index");
            let samples = Typing::default().samples(open(store.clone()));
            compare_order(streamed, drain(numbered(samples, TraversalSettings::IN_ORDER)).await)
        }
        Err(fault) => {
            assert_printable(&fault.to_string());
            0
        }
    }
}

/// Reads the object once more, compressed in two parts: it has the same samples.
async fn compare_compressed(
    object: &[u8],
    plain: &Drained,
    open: impl FnOnce(BoundedStore) -> Box<dyn Source>,
) {
    if is_compressed(object) || object.is_empty() {
        return;
    }
    let parts: [&[u8]; 2] = object.split_at(object.len() / 2).into();
    let compress = |part: &[u8]| {
        if object.len() % 4 < 2 {
            return zstd::encode_all(part, 1);
        }
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(part)?;
        encoder.finish()
    };
    let compressed = parts.map(|part| compress(part).expect("memory takes all")).concat();
    let store = BoundedStore::new(Arc::new(MemoryStore::new("memory")), NonZeroUsize::MIN);
    store.put(Arc::from(KEY), Bytes::from(compressed)).await.expect("the memory takes an object");
    let read = drain(open(store)).await;
    assert_eq!(plain.ends_well(), read.ends_well(), "{:?} and {:?}", plain.fault, read.fault);
    assert_eq!(plain.samples.len(), read.samples.len());
    assert!(plain.samples.iter().zip(&read.samples).all(|(plain, read)| same(plain, read)));
}

/// True for first bytes of compressed objects.
fn is_compressed(object: &[u8]) -> bool {
    let first: [&[u8]; 8] =
        [b"\x1f\x8b", b"\x1f\x9d", b"\x28\xb5", b"BZh", b"\xfd7z", b"7z", b"PK", b"\x04\x22\x4d\x18"];
    matches!(object, [0x50..=0x5f, 0x2a, ..] | [b'L', b'Z', ..] | [0xff, 0x06, ..])
        || first.iter().any(|first| object.starts_with(first))
}

/// If both ended without a fault, they have the same samples in the same order. Returns the number of compared samples.
fn compare_order(one: Drained, other: Drained) -> usize {
    if !one.ends_well() || !other.ends_well() {
        return 0;
    }
    assert_eq!(one.samples.len(), other.samples.len());
    for (one, other) in one.samples.iter().zip(&other.samples) {
        assert!(same(one, other), "{one:?} and {other:?}");
    }
    one.samples.len()
}

/// If both ended without a fault, they have the same samples in any order.
fn compare_sets(mut one: Drained, mut other: Drained) -> usize {
    one.samples.sort_by_key(|sample| sample.origin.index);
    other.samples.sort_by_key(|sample| sample.origin.index);
    compare_order(one, other)
}

/// Compares as text, in which numbers that are not equal to themselves are equal.
fn same(one: &Sample, other: &Sample) -> bool {
    one == other || format!("{one:?}") == format!("{other:?}")
}

impl Drained {
    fn ends_well(&self) -> bool {
        self.fault.is_none() && self.is_whole
    }
}

/// Corrects the checksums of the records, behind which damage would otherwise hide.
fn with_checksums(input: &[u8]) -> Vec<u8> {
    let mut file = input.to_vec();
    let mut start = 0;
    while let Some(header) = file.get(start..start + 12) {
        let length: [u8; 8] = header[..8].try_into().expect("a length has 8 bytes");
        file[start + 8..start + 12].copy_from_slice(&masked_crc(&length).to_le_bytes());
        let record = start + 12;
        let Some(end) =
            usize::try_from(u64::from_le_bytes(length)).ok().and_then(|length| record.checked_add(length))
        else {
            break;
        };
        let Some(sum) = file.get(record..end).map(masked_crc) else { break };
        match file.get_mut(end..end + 4) {
            Some(place) => place.copy_from_slice(&sum.to_le_bytes()),
            None => break,
        }
        start = end + 4;
    }
    file
}

/// Checksum of a TFRecord: CRC-32C, rotated, with a constant added.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}
