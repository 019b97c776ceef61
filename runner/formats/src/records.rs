//! The sources `records`, `csv` and `tsv`: a sample for every line of NDJSON, or for every row of a table.

mod charset;
mod delimiter;
mod fault;
mod format;
mod in_order;
mod json;
mod kinds;
mod layout;
mod lenient;
mod numbered;
mod part;
mod rows;
mod split;
mod stream;
mod written;

pub use fault::RecordFault;
pub use format::RecordFormat;
pub use in_order::RecordSource;
pub use json::sample_of;
pub use layout::SAMPLE_KEY;
pub(crate) use numbered::{Limits, open_records};
pub use numbered::{RECORD_CURES, record_samples};
use std::collections::BTreeSet;
use std::sync::Arc;

use penstock_engine::ports::SourceFault;
use penstock_storage::{AHEAD_BYTES, BoundedStore, shown};

use crate::shards::Shards;
use crate::value::plain_name;

/// Bytes that may be read ahead, of the memory of a source.
fn ahead_bytes(most_bytes: u64) -> u64 {
    AHEAD_BYTES.min(most_bytes / 4)
}

/// Keys of objects with records, in order. Fails if a listing has an object both compressed and not.
async fn record_keys(objects: &Shards, store: &BoundedStore) -> Result<Vec<Arc<str>>, SourceFault> {
    let keys = objects.keys(store).await?;
    if matches!(objects, Shards::Listed(_)) {
        let compressed = || keys.iter().filter(|key| plain_name(key).len() < key.len());
        let plain: BTreeSet<&str> = match compressed().next() {
            Some(_) => keys.iter().map(|key| &**key).collect(),
            None => BTreeSet::new(),
        };
        if let Some(key) = compressed().find(|key| plain.contains(plain_name(key))) {
            let (one, other, store) = (shown(plain_name(key)), shown(key), store.name());
            let message = format!(
                "store `{store}` has both {one} and {other}, which seem to be the same records: remove one of them, or name the end of \
                 those to read by `suffix`"
            );
            return Err(SourceFault::new(message, None));
        }
    }
    Ok(keys)
}
