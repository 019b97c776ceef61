//! Tar shards in WebDataset's convention: neighbouring files with one key are a sample.

mod members;
mod names;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::item::{Origin, Sample, Value};
use penstock_engine::numbered::Open;
use penstock_engine::ports::SourceFault;
use penstock_engine::typed::Typing;
use penstock_storage::shown;
use penstock_types::data_set::{DataField, DataFields, FieldType, TypeFault};
use penstock_types::spec::TarSource;
use penstock_types::traversal::TraversalSettings;

pub(crate) use scan::scan;

use crate::access::Access;
use crate::damage::{Damage, cut_sample};
use crate::in_order::{InOrder, OpenShard, ShardStream, WholeSample};
use crate::index::{IndexKind, SampleIndex};
use crate::indexed::{Decode, indexed_samples};
use crate::reason::Reason;
use crate::select::Selection;
use crate::sequence::Sequence;
use crate::shards::Shards;
use crate::value;
use members::Member;
use scan::Samples;

/// Samples of the shards, in any order, by the index that the document names, or one that is made of all headers first. The index may
/// take `most_bytes` of memory, and so may a field.
pub fn open(source: &TarSource, access: Access) -> Open {
    let (selection, reads) = (Selection::of_files(&source.fields), access.clone());
    let shards = Shards::of(source, &access.damage.notes);
    indexed_samples(access, source.index.as_ref(), shards, IndexKind::Tar, move |index| {
        let names: Vec<_> = index.fields().iter().map(|field| selection.name_of_file(field)).collect();
        let index = without_cut_samples(index, &names, &selection, &reads)?;
        let fields = Some(fields_of(&index, &names)?);
        let decode = Files { fields: index.fields().to_vec(), names, most_bytes: reads.most_bytes };
        Ok((index, Box::new(decode) as _, fields))
    })
}

/// The index without the samples that lack a field and end a shard without its end mark: their other files may have been cut off.
fn without_cut_samples(
    index: SampleIndex,
    names: &[Option<Arc<str>>],
    selection: &Selection,
    Access { store, damage, .. }: &Access,
) -> Result<SampleIndex, SourceFault> {
    let wanted: BTreeSet<&Arc<str>> =
        names.iter().flatten().chain(selection.fields().map(|(_, field)| field)).collect();
    let mut shards = index.shards.clone();
    for shard in &mut shards {
        let Some(last) = shard.unmarked() else { continue };
        let has =
            |name: &Arc<str>| last.files.iter().any(|file| names[file.field as usize].as_ref() == Some(name));
        let Some(name) = wanted.iter().find(|name| !has(name)) else { continue };
        let fault = cut_sample(&shard.key, store, &last.key, name);
        damage.part(&format!("{}: {}", shard.key, last.key), Some(1), fault)?;
        shard.remove_last(&last);
    }
    let fields = index.fields().to_vec();
    Ok(index.with_shards(fields, shards))
}

/// Types of the fields that a document selects: the names of their files determine them.
pub fn types(source: &TarSource) -> BTreeMap<String, FieldType> {
    let selection = Selection::of_files(&source.fields);
    selection.fields().map(|(name, field)| (field.as_ref().to_owned(), value::kind_of(name))).collect()
}

/// Type of a field of this name, if the document selects none.
pub fn type_of(name: &str) -> Option<FieldType> {
    Some(value::kind_of(name))
}

/// Fields of the samples of an index. `names` are those of its fields in the samples.
fn fields_of(index: &SampleIndex, names: &[Option<Arc<str>>]) -> Result<DataFields, SourceFault> {
    // Each with the number of its names in the index, and of its files.
    let mut fields: Vec<(DataField, usize, u64)> = Vec::new();
    for (place, (file, name)) in index.fields().iter().zip(names).enumerate() {
        let Some(name) = name else { continue };
        let (kind, more) = (value::kind_of(file), index.count(place));
        match fields.iter_mut().find(|(field, ..)| field.name == *name) {
            None => fields.push((DataField { name: name.clone(), kind, optional: None }, 1, more)),
            Some((field, ..)) if field.kind != kind => {
                let fault = TypeFault::Differs {
                    name: name.as_ref().to_owned(),
                    one: field.kind,
                    one_at: "some files".to_owned(),
                    other: kind,
                    other_at: format!("those named `.{file}`"),
                };
                return Err(SourceFault::new(format!("{fault}; name files of one kind in `fields`"), None));
            }
            Some((_, names, count)) => (*names, *count) = (*names + 1, *count + more),
        }
    }
    let fields = fields.into_iter().map(|(field, names, count)| {
        // A sample may have several files of one field.
        let optional = match (count < index.samples(), names) {
            (true, _) => Some(true),
            (false, 1) => Some(false),
            (false, _) => None,
        };
        DataField { optional, ..field }
    });
    Ok(DataFields::of(fields.collect()))
}

/// Samples of shards in order, with the selected fields, of at most `most_bytes` each.
pub fn stream(
    source: &TarSource,
    access: Access,
    typing: Typing,
    settings: TraversalSettings,
) -> ShardStream {
    let (selection, most_bytes) = (Arc::new(Selection::of_files(&source.fields)), access.most_bytes);
    let open: OpenShard = Box::new(move |object, ahead_bytes, damage| {
        let samples = Samples::new(object, ahead_bytes, damage.clone());
        Box::new(Archive { samples, selection: selection.clone(), damage, most_bytes })
    });
    let shards = Shards::of(source, &access.damage.notes);
    ShardStream::of(access, shards, typing, settings, open).opened()
}

/// Predicate of a shard that has a file both compressed and not.
fn both(key: &str, one: &str, other: &str) -> String {
    let (one, other) = (shown(one), shown(other));
    format!(
        "has both {one} and {other} for one field of the sample {}: name one of them in `fields`",
        shown(key)
    )
}

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

    fn add(&self, sample: &mut Sample, field: usize, content: Bytes) -> Result<(), Reason> {
        let Some(name) = &self.names[field] else { return Ok(()) };
        let field = &self.fields[field];
        if sample.field(name).is_some() {
            let plain = value::plain_name(field);
            let is_twin = |(other, own): &(&String, &Option<Arc<str>>)| {
                *other != field && own.as_ref() == Some(name) && value::plain_name(other) == plain
            };
            if let Some((other, _)) = self.fields.iter().zip(&self.names).find(is_twin) {
                return Err(format!("a shard {}", both(&sample.key, other, field)).into());
            }
        }
        let left = self.most_bytes.saturating_sub(sample.bytes());
        let value = value::of(field, content, left).map_err(|reason| {
            format!("the field {} of the sample {} {reason}", shown(field), shown(&sample.key))
        })?;
        sample.set(name.clone(), value);
        Ok(())
    }
}

struct Archive {
    samples: Samples,
    selection: Arc<Selection>,
    damage: Damage,
    most_bytes: u64,
}

impl InOrder<WholeSample> for Archive {
    fn next(&mut self, is_wanted: bool) -> BoxFuture<'_, Result<Option<Vec<WholeSample>>, SourceFault>> {
        async move {
            let Some(key) = self.samples.next_sample().await? else { return Ok(None) };
            let mut sample = Sample::new(key, Origin::default());
            let mut outcome = None;
            while let Some((field, member)) = self.samples.next_file().await? {
                let name = self.selection.name_of_file(&field);
                let is_twin = |other: &&String| {
                    **other != field
                        && value::plain_name(other) == value::plain_name(&field)
                        && name.is_some()
                        && self.selection.name_of_file(other) == name
                };
                if let Some(other) = self.samples.fields().iter().find(is_twin) {
                    let fault = self.samples.fault(&member, &both(&sample.key, other, &field));
                    if outcome.is_none() {
                        outcome = Some(self.damage.sample(fault)?);
                    }
                }
                match name.filter(|_| is_wanted && outcome.is_none()) {
                    Some(name) => match self.value(&field, &member, sample.bytes()).await {
                        Ok(value) => sample.set(name, value),
                        Err(fault) => outcome = Some(self.damage.sample(fault)?),
                    },
                    None => self.samples.members.skip(&member),
                }
            }
            let unmarked_fields = self.samples.members.lacks_end.then(|| {
                let fields = self.samples.fields().iter();
                fields.filter_map(|field| self.selection.name_of_file(field)).collect()
            });
            Ok(Some(vec![WholeSample { made: (sample, outcome), unmarked_fields }]))
        }
        .boxed()
    }

    fn content(&mut self) -> &mut Sequence {
        &mut self.samples.members.bytes
    }
}

impl Archive {
    /// Value of a file of a sample that takes `taken` bytes without it.
    async fn value(&mut self, field: &str, member: &Member, taken: u64) -> Result<Value, SourceFault> {
        let (size, name) = (member.content.end - member.content.start, member.name.escape_debug());
        let left = self.most_bytes.saturating_sub(taken);
        if size > left {
            let reason = format!(
                "has the file `{name}` of {size} bytes, more than the {left} that are left to its sample; raise `buffer_mib`"
            );
            return Err(SourceFault { is_damage: false, ..self.samples.fault(member, &reason) });
        }
        let content = self.samples.members.content(member).await?;
        value::of(field, content, left)
            .map_err(|reason| self.samples.fault(member, &format!("has the file `{name}`, which {reason}")))
    }
}
