//! Tests of the formats through their public API, against what the libraries of these formats read.
#![expect(clippy::unwrap_used, reason = "a failure to set up the files of a test fails the test")]

mod ahead;
mod archives;
mod compressed;
mod copies;
mod csv;
mod damage;
mod hostile;
mod labels;
mod mds;
mod parquet;
mod records;
mod repeating;
mod tables;
mod tar;
mod tfrecord;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::item::Sample;
use penstock_engine::ports::{Produced, Source};
use penstock_formats::{Access, Damage};
use penstock_storage::{BoundedStore, DEFAULT_READS, MemoryStore, Store, Wanted};
use penstock_types::spec::Suffix;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

/// A store named `data` that holds these objects.
async fn store_of(objects: &[(&str, Vec<u8>)]) -> BoundedStore {
    let store = MemoryStore::new("data");
    for (key, content) in objects {
        store.put(Arc::from(*key), Bytes::from(content.clone())).await.unwrap();
    }
    BoundedStore::new(Arc::new(store), DEFAULT_READS)
}

/// A source with these settings in the store `data`, as a document has it.
fn written<T: DeserializeOwned>(mut settings: Json) -> T {
    settings["store"] = "data".into();
    serde_json::from_value(settings).unwrap()
}

/// These settings with another one.
fn with(mut settings: Json, name: &str, value: impl Into<Json>) -> Json {
    settings[name] = value.into();
    settings
}

fn access(store: &BoundedStore, most_bytes: u64) -> Access {
    Access { store: store.clone(), damage: Damage::default(), most_bytes }
}

/// Name of a compression, and the function that compresses an object.
type Compressor = (&'static str, fn(&[u8]) -> Vec<u8>);

const COMPRESSORS: [Compressor; 2] = [("gzip", gzip), ("zstd", zstd)];

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn zstd(content: &[u8]) -> Vec<u8> {
    zstd::encode_all(content, 3).unwrap()
}

/// Keys that start and end with these texts.
fn wanted(prefix: &str, suffix: &str) -> Wanted {
    Wanted { prefix: prefix.to_owned(), suffix: Suffix::One(suffix.to_owned()), ..Wanted::default() }
}

/// Content of a fixture.
fn data(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

/// All samples of a source, and the number of samples before the end of each epoch; or its fault, after the samples before it.
async fn drain(mut source: Box<dyn Source>) -> (Vec<Sample>, Vec<usize>, Option<String>) {
    let (mut samples, mut ends) = (Vec::new(), Vec::new());
    loop {
        match source.next().await {
            Ok(Some(Produced::Samples(more))) => samples.extend(more.into_kept()),
            Ok(Some(Produced::EpochEnd)) => ends.push(samples.len()),
            Ok(None) => return (samples, ends, None),
            Err(fault) => return (samples, ends, Some(fault.to_string())),
        }
    }
}
