//! Sources of prepared pipelines: the only place that maps a kind of source to its implementation.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::try_join_all;
use penstock_engine::mixed::{Mixed, MixedPart};
use penstock_engine::numbered::{NumberedSource, Open};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_engine::range::{RangeSamples, RangeSource};
use penstock_formats::tar::{Selection, TarStream, tar_samples};
use penstock_formats::{Shards, expand};
use penstock_storage::{
    AHEAD_BYTES, ListSource, RecordSource, Wanted, index_samples, list_samples, record_samples,
};
use penstock_types::spec::{self, MixSource, TarSource};
use penstock_types::traversal::{Traversal, TraversalSettings};

use crate::prepare::Prepared;

/// Divisor of a run's memory budget for the share that its source may keep.
const SOURCE_SHARE: u64 = 2;

impl Prepared {
    /// Builds the source that the document describes. A run reads it; the storage benchmark and [`Self::count`] read it without a run.
    pub fn source(&self) -> Box<dyn Source> {
        let (source, most_bytes) = (&self.plan.source, self.source_bytes());
        let traversal = source.traversal;
        match &source.spec {
            spec::Source::List(list) if !traversal.shuffle => {
                let store = self.store(list.store.as_str());
                Box::new(ListSource::new(store, &list.prefix, &list.suffix, traversal).within(most_bytes))
            }
            spec::Source::Records(records) if !traversal.shuffle => Box::new(self.records(records)),
            spec::Source::Range(range) => {
                let traversal = Traversal::new(range.count, traversal);
                Box::new(RangeSource::new(traversal.expect("a plan's shard was checked")))
            }
            spec::Source::Tar(tar) if tar.index.is_none() => {
                let (store, selection) = (self.store(tar.store.as_str()), selection(tar));
                Box::new(TarStream::new(store, shards(tar), selection, traversal, most_bytes))
            }
            numbered => Box::new(self.numbered(numbered, traversal)),
        }
    }

    fn numbered(&self, source: &spec::Source, traversal: TraversalSettings) -> NumberedSource {
        let most_bytes = self.source_bytes();
        NumberedSource::new(self.open(source, most_bytes), traversal, AHEAD_BYTES.min(most_bytes / 4))
    }

    /// Opens the samples of a source, to be read by their numbers. They may keep `most_bytes`.
    fn open(&self, source: &spec::Source, most_bytes: u64) -> Open {
        match source {
            spec::Source::List(list) => {
                let wanted =
                    Wanted { prefix: list.prefix.clone(), suffix: list.suffix.clone(), except: None };
                list_samples(self.store(list.store.as_str()), wanted, most_bytes)
            }
            spec::Source::Index(index) => {
                let (store, index) = match &index.index {
                    Some(key) => (self.store(index.store.as_str()), Arc::from(key.as_str())),
                    None => {
                        self.stores().index(index.store.as_str()).expect("an index was found for the source")
                    }
                };
                index_samples(store, index, most_bytes)
            }
            spec::Source::Records(records) => {
                record_samples(self.store(records.store.as_str()), records.key.as_str(), most_bytes)
            }
            spec::Source::Range(range) => {
                std::future::ready(Ok(Arc::new(RangeSamples(range.count)) as _)).boxed()
            }
            spec::Source::Tar(tar) => {
                let index = tar.index.as_ref().expect("only tar shards with an index are read by numbers");
                tar_samples(self.store(tar.store.as_str()), index.as_str(), selection(tar), most_bytes)
            }
            spec::Source::Mix(mix) => self.mix(mix, most_bytes),
        }
    }

    fn mix(&self, mix: &MixSource, most_bytes: u64) -> Open {
        let (seed, pick, stop) = (self.plan.source.traversal.seed, mix.pick, mix.stop);
        let drawn = mix.sources.iter().filter(|(_, part)| part.weight > 0);
        let share = most_bytes / drawn.clone().count().max(1) as u64;
        let opens = drawn.zip(1_u64..).map(|((name, part), number)| {
            // Sources of one length have orders of their own.
            let order = part.source.traversal(seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let (name, weight, open) =
                (Arc::from(name.as_str()), part.weight, self.open(&part.source, share));
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

    fn records(&self, records: &spec::RecordsSource) -> RecordSource {
        let store = self.store(records.store.as_str());
        RecordSource::new(store, records.key.as_str(), self.plan.source.traversal).within(self.source_bytes())
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
            spec::Source::Records(records) => return of(self.records(records).count().await?),
            spec::Source::Tar(tar) if tar.index.is_none() => {
                let store = self.store(tar.store.as_str());
                return of(penstock_formats::tar::TarIndex::build(&store, &shards(tar), |_, _| {})
                    .await?
                    .samples());
            }
            spec::Source::Range(_) => self.source(),
            source => Box::new(self.numbered(source, traversal)),
        };
        let first = source.next().await?;
        // A source without samples ends before it reports a total.
        Ok(source.total().or(matches!(first, None | Some(Produced::EpochEnd)).then_some(0)))
    }
}

/// Shards that a document names without an index.
fn shards(tar: &TarSource) -> Shards {
    match &tar.shards {
        Some(pattern) => {
            Shards::Keys(expand(pattern.as_str()).expect("a prepared plan's pattern was checked"))
        }
        None => Shards::Listed(Wanted {
            prefix: tar.prefix.clone().unwrap_or_default(),
            suffix: ".tar".to_owned(),
            except: None,
        }),
    }
}

fn selection(tar: &TarSource) -> Selection {
    Selection::new(tar.fields.iter().map(|(name, files)| (name.as_str(), files.as_str())))
}
