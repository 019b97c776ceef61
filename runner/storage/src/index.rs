//! The `index` source: a sample for every key in an index.

mod parser;

use std::io::{self, Write};
use std::sync::Arc;

use futures::FutureExt;
use penstock_engine::numbered::Open;
use penstock_engine::ports::SourceFault;
use tokio::task::spawn_blocking;

use crate::blocks::RangedObject;
use crate::bounded::BoundedStore;
use crate::error::interrupted;
use crate::keyed::KeyedSamples;
use crate::keys::PackedKeys;
use parser::Parser;

/// Maximum size of an index, and of the keys that a source keeps, in bytes.
pub const MAX_INDEX_BYTES: u64 = 1 << 30;

/// End of an error message: remedy for a source that exceeds its part of the run's memory budget.
pub const RAISE_BUFFER: &str = ", or raise `buffer_mib`, of which the source may use a part";

/// Size of a read in bytes. An index up to this size is read in one request, so it never mixes an old and a new version.
const BLOCK_BYTES: u64 = 8 << 20;

/// Samples without fields, one for every key in an index: a JSON array of strings, in its order. A key that occurs twice makes two
/// samples. The objects named by the keys may be in another store.
///
/// The index is read once, in blocks, and its keys are kept for all epochs, front-coded: sorted, numbered names take about 10 bytes
/// each. A malformed index is a fault whose message states the element and the byte; an empty index is a fault, too, and so are keys
/// that take more than `most_bytes`. Missing objects are detected only when a stage reads them.
pub fn index_samples(store: BoundedStore, index: impl Into<Arc<str>>, most_bytes: u64) -> Open {
    let index = index.into();
    async move { Ok(KeyedSamples::numbered(read(&store, &index, most_bytes.min(MAX_INDEX_BYTES)).await?)) }
        .boxed()
}

/// Writes `keys` as a JSON array with a key per line.
pub fn write_index(keys: &PackedKeys, mut out: impl Write) -> io::Result<()> {
    for (position, key) in keys.iter().enumerate() {
        out.write_all(if position == 0 { b"[\n  " } else { b",\n  " })?;
        serde_json::to_writer(&mut out, &key)?;
    }
    out.write_all(if keys.is_empty() { b"[]\n" } else { b"\n]\n" })
}

async fn read(store: &BoundedStore, index: &Arc<str>, most_bytes: u64) -> Result<PackedKeys, SourceFault> {
    let fault = |reason: &str| SourceFault::new(format!("the index {} {reason}", store.named(index)), None);
    let object = RangedObject::open(store.clone(), index.clone(), BLOCK_BYTES).await?;
    if object.size() > MAX_INDEX_BYTES {
        let reason = format!("has {} bytes, at most {MAX_INDEX_BYTES} are read; split it up", object.size());
        return Err(fault(&reason));
    }
    let mut parser = Parser::default();
    let mut start = 0;
    while start < object.size() {
        let end = object.size().min(start + BLOCK_BYTES);
        let block = object.read(start..end).await?;
        // Runs on a blocking thread, because parsing a few MiB of JSON takes milliseconds.
        let parsing = spawn_blocking(move || parser.read(&block).map(|()| parser));
        let parsed = parsing.await.map_err(|error| interrupted("reading the index", error))?;
        parser = parsed.map_err(|reason| fault(&reason))?;
        let keys = parser.keys();
        if keys.bytes() > most_bytes {
            return Err(fault(&format!(
                "has, in its first {end} of {} bytes, {} keys that take more than the limit of {most_bytes} bytes of \
                 memory; split it up{RAISE_BUFFER}",
                object.size(),
                keys.len()
            )));
        }
        start = end;
    }
    parser.finish().map_err(|reason| fault(&reason))
}
