//! Tar shards in WebDataset's convention: neighbouring files with one key are a sample.

mod members;
mod names;
mod scan;

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::item::{Origin, Sample, Value};
use penstock_engine::numbered::Open;
use penstock_engine::ports::SourceFault;
use penstock_storage::{AHEAD_BYTES, BoundedStore, shown};
use penstock_types::traversal::TraversalSettings;

pub(crate) use scan::scan;

use crate::in_order::{InOrder, ShardStream};
use crate::index::IndexKind;
use crate::indexed::{Decode, IndexFrom, indexed_samples};
use crate::select::Selection;
use crate::shards::Shards;
use crate::value;
use members::Member;
use scan::Samples;

/// Samples of the shards that an index describes, in any order. The index may take `most_bytes` of memory, and so may a field.
pub fn tar_samples(
    store: BoundedStore,
    index: impl Into<IndexFrom>,
    selection: Selection,
    most_bytes: u64,
) -> Open {
    indexed_samples(store, index.into(), IndexKind::Tar, most_bytes, move |fields| {
        let names = fields.iter().map(|field| selection.name_of_file(field)).collect();
        Box::new(Files { fields: fields.to_vec(), names, most_bytes })
    })
}

/// Samples of shards in order, with the selected fields, of at most `most_bytes` each.
pub fn tar_stream(
    store: BoundedStore,
    shards: Shards,
    selection: Selection,
    settings: TraversalSettings,
    most_bytes: u64,
) -> ShardStream {
    let selection = Arc::new(selection);
    ShardStream::new(
        store,
        shards,
        settings,
        AHEAD_BYTES.min(most_bytes),
        Box::new(move |object, ahead_bytes| {
            let samples = Samples::new(object, ahead_bytes);
            Box::new(Archive { samples, selection: selection.clone(), most_bytes })
        }),
    )
}

/// Decodes the files of an index.
struct Files {
    fields: Vec<String>,
    /// Name in samples of each field; `None` for fields that are not selected.
    names: Vec<Option<Arc<str>>>,
    most_bytes: u64,
}

impl Decode for Files {
    fn is_wanted(&self, field: usize) -> bool {
        self.names[field].is_some()
    }

    fn add(&self, sample: &mut Sample, field: usize, content: Bytes) -> Result<(), String> {
        let Some(name) = &self.names[field] else { return Ok(()) };
        let field = &self.fields[field];
        let value = value::of(field, content, self.most_bytes).map_err(|reason| {
            format!("the field {} of the sample {} {reason}", shown(field), shown(&sample.key))
        })?;
        sample.set(name.clone(), value);
        Ok(())
    }
}

/// An archive that is read in order.
struct Archive {
    samples: Samples,
    selection: Arc<Selection>,
    most_bytes: u64,
}

impl InOrder for Archive {
    fn next(&mut self, is_wanted: bool) -> BoxFuture<'_, Result<Option<Sample>, SourceFault>> {
        async move {
            let Some(key) = self.samples.next_sample().await? else { return Ok(None) };
            let mut sample = Sample::new(key, Origin::default());
            while let Some((field, member)) = self.samples.next_file().await? {
                match self.selection.name_of_file(&field).filter(|_| is_wanted) {
                    Some(name) => sample.set(name, self.value(&field, &member).await?),
                    None => self.samples.skip(&member),
                }
            }
            Ok(Some(sample))
        }
        .boxed()
    }

    fn begin(&mut self) {
        self.samples.members.bytes.begin();
    }

    fn ahead_bytes(&self) -> u64 {
        self.samples.members.bytes.ahead_bytes()
    }

    fn left_bytes(&self) -> u64 {
        self.samples.members.bytes.left_bytes()
    }
}

impl Archive {
    async fn value(&mut self, field: &str, member: &Member) -> Result<Value, SourceFault> {
        let (size, name) = (member.content.end - member.content.start, member.name.escape_debug());
        if size > self.most_bytes {
            let most = self.most_bytes;
            let reason =
                format!("has the file `{name}` of {size} bytes, more than {most}; raise `buffer_mib`");
            return Err(self.samples.fault(member, &reason));
        }
        let content = self.samples.content(member).await?;
        value::of(field, content, self.most_bytes)
            .map_err(|reason| self.samples.fault(member, &format!("has the file `{name}`, which {reason}")))
    }
}
