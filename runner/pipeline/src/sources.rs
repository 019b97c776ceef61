//! Sources of prepared pipelines: the only place that maps a kind of source to its implementation.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::try_join_all;
use penstock_engine::mixed::{Mixed, MixedPart};
use penstock_engine::numbered::{NumberedSource, Open};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_engine::range::{RangeSamples, RangeSource};
use penstock_formats::mds::{Columns, mds_samples};
use penstock_formats::parquet::{Query, parquet_samples};
use penstock_formats::tar::{tar_samples, tar_stream};
use penstock_formats::tfrecord::{RecordFields, count_records, tfrecord_samples, tfrecord_stream};
use penstock_formats::{
    IndexFrom, IndexKind, LabelTable, Labelling, RecordFormat, RecordSource, SAMPLE_KEY, SampleIndex,
    Selection, Shards, expand, labelled_samples, record_samples,
};
use penstock_storage::{AHEAD_BYTES, ListSource as StreamedList, Wanted, index_samples, list_samples};
use penstock_types::spec::{
    self, ColumnType, LabelOrigin, ListSource, MdsSource, MixSource, ObjectKey, RecordDecoding, RecordForm,
    RecordsSource, TableSource, TarSource, TfrecordSource,
};
use penstock_types::traversal::{Traversal, TraversalSettings};

use crate::prepare::Prepared;

/// Divisor of a run's memory budget for the share that its source may keep.
const SOURCE_SHARE: u64 = 2;

impl Prepared {
    /// Builds the source that the document describes. A run reads it; the storage benchmark and [`Self::count`] read it without a run.
    pub fn source(&self) -> Box<dyn Source> {
        let (source, most_bytes) = (&self.plan.source, self.source_bytes());
        let traversal = source.traversal;
        // A source in order finds a position only by its number.
        let is_resumed = self.start.is_some();
        match &source.spec {
            spec::Source::List(list) if !traversal.shuffle && !is_labelled(list) && !is_resumed => {
                let store = self.store(list.store.as_str());
                Box::new(StreamedList::new(store, &list.prefix, &list.suffix, traversal).within(most_bytes))
            }
            spec::Source::Records(_) | spec::Source::Csv(_) | spec::Source::Tsv(_)
                if !traversal.shuffle && !is_resumed =>
            {
                Box::new(self.records(&source.spec).within(most_bytes))
            }
            spec::Source::Range(range) => {
                let traversal = Traversal::new(range.count, traversal);
                let traversal = traversal.expect("a plan's shard was checked");
                Box::new(RangeSource::new(match &self.start {
                    Some(start) => traversal.from(start),
                    None => traversal,
                }))
            }
            spec::Source::Tar(tar) if tar.index.is_none() => {
                let (store, selection) = (self.store(tar.store.as_str()), selection(tar));
                Box::new(
                    tar_stream(store, shards(tar), selection, traversal, most_bytes).from(self.start.clone()),
                )
            }
            spec::Source::Tfrecord(source) if source.index.is_none() => {
                let (store, fields) = (self.store(source.store.as_str()), record_fields(source));
                Box::new(
                    tfrecord_stream(store, files(source), fields, traversal, most_bytes)
                        .from(self.start.clone()),
                )
            }
            numbered => Box::new(self.numbered(numbered, traversal)),
        }
    }

    /// Opens the samples of the source, to be read by their numbers, with up to `reads` concurrent reads of each store. Shards without
    /// an index get one in memory.
    pub fn samples(&self, reads: NonZeroUsize) -> Open {
        let mut own = self.clone();
        own.stores = self.stores.with_reads(reads);
        let source = &own.plan.source;
        own.open(&source.spec, &source.id.to_string(), own.source_bytes())
    }

    fn numbered(&self, source: &spec::Source, traversal: TraversalSettings) -> NumberedSource {
        let most_bytes = self.source_bytes();
        NumberedSource::new(
            self.open(source, &self.plan.source.id.to_string(), most_bytes),
            traversal,
            AHEAD_BYTES.min(most_bytes / 4),
        )
        .from(self.start.clone())
    }

    /// Opens the samples of the source with this `name`, to be read by their numbers. They may keep `most_bytes`.
    fn open(&self, source: &spec::Source, name: &str, most_bytes: u64) -> Open {
        match source {
            spec::Source::List(list) => self.list(list, name, most_bytes),
            spec::Source::Index(index) => {
                let (store, index) = match &index.index {
                    Some(key) => (self.store(index.store.as_str()), Arc::from(key.as_str())),
                    None => {
                        self.stores().index(index.store.as_str()).expect("an index was found for the source")
                    }
                };
                index_samples(store, index, most_bytes)
            }
            spec::Source::Records(RecordsSource { store, .. })
            | spec::Source::Csv(TableSource { store, .. })
            | spec::Source::Tsv(TableSource { store, .. }) => {
                let (objects, format) = records(source);
                record_samples(self.store(store.as_str()), objects, format, most_bytes)
            }
            spec::Source::Range(range) => {
                std::future::ready(Ok(Arc::new(RangeSamples(range.count)) as _)).boxed()
            }
            spec::Source::Tar(tar) => {
                let index = index_from(tar.index.as_ref(), || shards(tar));
                tar_samples(self.store(tar.store.as_str()), index, selection(tar), most_bytes)
            }
            spec::Source::Parquet(parquet) => {
                let spec::ParquetSource { columns, fields, sample_key, filter, shuffle, window, .. } =
                    parquet;
                let fields = fields.iter().map(|(field, column)| (field.to_string(), column.clone()));
                let fields =
                    columns.iter().map(|column| (column.clone(), column.clone())).chain(fields).collect();
                let query = Query { fields, key: sample_key.clone(), filter: filter.clone() };
                let files = listed(parquet.shards.as_ref(), parquet.prefix.as_deref(), ".parquet");
                parquet_samples(
                    self.store(parquet.store.as_str()),
                    files,
                    query,
                    *shuffle,
                    *window,
                    most_bytes,
                )
            }
            spec::Source::Tfrecord(source) => {
                let index = index_from(source.index.as_ref(), || files(source));
                let store = self.store(source.store.as_str());
                tfrecord_samples(store, index, record_fields(source), most_bytes)
            }
            spec::Source::Mds(source) => {
                mds_samples(self.store(source.store.as_str()), &source.prefix, columns(source), most_bytes)
            }
            spec::Source::Mix(mix) => self.mix(mix, most_bytes),
        }
    }

    fn list(&self, list: &ListSource, name: &str, most_bytes: u64) -> Open {
        let store = self.store(list.store.as_str());
        let mut wanted = Wanted { prefix: list.prefix.clone(), suffix: list.suffix.clone(), except: None };
        if !is_labelled(list) {
            return list_samples(store, wanted, most_bytes);
        }
        let table = list.labels.as_ref().map(|labels| {
            let form = labels.form().expect("a plan's labels were checked");
            let format = format(form, labels.types.clone());
            let of_table = labels.store.as_ref().unwrap_or(&list.store);
            if *of_table == list.store {
                wanted.except = Some(labels.key.to_string());
            }
            LabelTable {
                store: self.store(of_table.as_str()),
                key: Arc::from(labels.key.as_str()),
                format: format.with_key(Some(labels.sample_key.as_deref().unwrap_or(SAMPLE_KEY))),
                matches: labels.matches,
                missing: labels.missing,
            }
        });
        let labelling = Labelling { by_folder: list.label == Some(LabelOrigin::Folder), table };
        let (found, name) = (self.labels.clone(), name.to_owned());
        labelled_samples(store, wanted, labelling, move |labels| found.add(name, labels), most_bytes)
    }

    fn mix(&self, mix: &MixSource, most_bytes: u64) -> Open {
        let (seed, pick, stop) = (self.plan.source.traversal.seed, mix.pick, mix.stop);
        let drawn = mix.sources.iter().filter(|(_, part)| part.weight > 0);
        let share = most_bytes / drawn.clone().count().max(1) as u64;
        let opens = drawn.zip(1_u64..).map(|((name, part), number)| {
            // Sources of one length have orders of their own.
            let order = part.source.traversal(seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let (name, weight, open) =
                (Arc::from(name.as_str()), part.weight, self.open(&part.source, name.as_str(), share));
            async move { Ok::<_, SourceFault>(MixedPart { name, samples: open.await?, weight, order }) }
        });
        let opens: Vec<_> = opens.collect();
        async move {
            let parts = try_join_all(opens).await?;
            let names: Vec<Arc<str>> = parts.iter().map(|part| part.name.clone()).collect();
            let mixed = Mixed::new(parts, pick, stop, seed).map_err(|fault| {
                let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                SourceFault::new(format!("the sources {names} cannot be mixed: {fault}"), None)
            })?;
            Ok(Arc::new(mixed) as _)
        }
        .boxed()
    }

    /// Part of the memory budget that the source may keep, in bytes.
    fn source_bytes(&self) -> u64 {
        self.plan.buffer_bytes / SOURCE_SHARE
    }

    /// Records of a source in their order.
    fn records(&self, source: &spec::Source) -> RecordSource {
        let store = source.store().map(|name| self.store(name.as_str())).expect("records lie in a store");
        let (objects, format) = records(source);
        RecordSource::new(store, objects, format, self.plan.source.traversal)
    }

    /// Counts the samples of all epochs, which requires a listing of all keys or a pass over all records. `None` if the epochs
    /// never end.
    pub async fn count(&self) -> Result<Option<u64>, SourceFault> {
        let traversal = self.plan.source.traversal;
        let of = |count| match Traversal::new(count, traversal) {
            Ok(traversal) => Ok(traversal.total()),
            Err(fault) => Err(SourceFault::new(fault.to_string(), None)),
        };
        let mut source: Box<dyn Source> = match &self.plan.source.spec {
            source @ (spec::Source::Records(_) | spec::Source::Csv(_) | spec::Source::Tsv(_)) => {
                return of(self.records(source).within(self.source_bytes()).count().await?);
            }
            spec::Source::Tar(tar) if tar.index.is_none() => {
                let store = self.store(tar.store.as_str());
                return of(SampleIndex::build(IndexKind::Tar, &store, &shards(tar), |_, _| {})
                    .await?
                    .samples());
            }
            spec::Source::Tfrecord(source) if source.index.is_none() => {
                return of(count_records(&self.store(source.store.as_str()), &files(source)).await?);
            }
            spec::Source::Range(_) => self.source(),
            source => Box::new(self.numbered(source, traversal)),
        };
        let first = source.next().await?;
        // A source without samples ends before it reports a total.
        Ok(source.total().or(matches!(first, None | Some(Produced::EpochEnd)).then_some(0)))
    }
}

/// The index that a document names, or else one of `shards`.
fn index_from(index: Option<&ObjectKey>, shards: impl FnOnce() -> Shards) -> IndexFrom {
    index.map_or_else(|| shards().into(), |key| key.as_str().into())
}

/// Shards that a document names without an index.
fn shards(tar: &TarSource) -> Shards {
    listed(tar.shards.as_ref(), tar.prefix.as_deref(), ".tar")
}

/// Shards that a document names by a pattern, or by the start of their keys.
fn listed(pattern: Option<&ObjectKey>, prefix: Option<&str>, suffix: &str) -> Shards {
    match pattern {
        Some(pattern) => {
            Shards::Keys(expand(pattern.as_str()).expect("a prepared plan's pattern was checked"))
        }
        None => Shards::Listed(Wanted {
            prefix: prefix.unwrap_or_default().to_owned(),
            suffix: suffix.to_owned(),
            except: None,
        }),
    }
}

fn is_labelled(list: &ListSource) -> bool {
    list.label.is_some() || list.labels.is_some()
}

/// Objects of a source that reads records, and their format.
fn records(source: &spec::Source) -> (Shards, RecordFormat) {
    let objects = source.records().expect("the source reads records");
    let (key, types) = match source {
        spec::Source::Records(RecordsSource { sample_key, .. }) => (sample_key.as_deref(), BTreeMap::new()),
        spec::Source::Csv(table) | spec::Source::Tsv(table) => {
            (table.sample_key.as_deref(), table.types.clone())
        }
        _ => unreachable!("other sources read no records"),
    };
    let format = format(objects.form, types).with_key(key);
    match objects.key {
        Some(key) => (Shards::Keys(vec![Arc::from(key.as_str())]), format),
        None => (listed(objects.shards, objects.prefix, objects.suffix()), format.of_several()),
    }
}

fn format(form: RecordForm, types: BTreeMap<String, ColumnType>) -> RecordFormat {
    match form {
        RecordForm::Lines => RecordFormat::lines(),
        RecordForm::Rows(delimiter) => RecordFormat::rows(delimiter, types),
    }
}

/// TFRecord files that a document names without an index.
fn files(source: &TfrecordSource) -> Shards {
    match &source.shards {
        Some(pattern) => {
            Shards::Keys(expand(pattern.as_str()).expect("a prepared plan's pattern was checked"))
        }
        None => Shards::TfrecordFiles(Wanted {
            prefix: source.prefix.clone().unwrap_or_default(),
            ..Wanted::default()
        }),
    }
}

fn record_fields(source: &TfrecordSource) -> RecordFields {
    match source.decode {
        RecordDecoding::Bytes => RecordFields::Bytes,
        RecordDecoding::Example => RecordFields::Example {
            selection: Selection::new(
                source.fields.iter().map(|(name, feature)| (name.as_str(), feature.as_str())),
            ),
            key: source.sample_key.clone(),
            texts: source.texts.iter().cloned().collect(),
        },
    }
}

fn columns(source: &MdsSource) -> Columns {
    let selection =
        Selection::new(source.fields.iter().map(|(name, column)| (name.as_str(), column.as_str())));
    Columns { selection, key: source.sample_key.clone() }
}

fn selection(tar: &TarSource) -> Selection {
    Selection::of_files(tar.fields.iter().map(|(name, files)| (name.as_str(), files.as_str())))
}
