//! Sources of prepared pipelines: maps each kind of source to its implementation, those in files of a format by `penstock_formats::sources`.

use std::num::NonZeroUsize;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, try_join, try_join_all};
use penstock_engine::gathered::Gathered;
use penstock_engine::mixed::{Mixed, MixedPart, fields_of};
use penstock_engine::notes::Notes;
use penstock_engine::numbered::{NumberedSource, Open, selected_otherwise};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_engine::range::{RangeSamples, RangeSource};
use penstock_engine::typed::{Cures, Typing};
use penstock_formats::sources::{self as files, OtherSource};
use penstock_formats::{
    Access, Classes, Damage, LabelTable, Labelling, RECORD_CURES, RecordFormat, RecordSource, SAMPLE_KEY,
    Shards, SharedClasses, field_type, labelled_samples, record_samples,
};
use penstock_storage::{
    AHEAD_BYTES, BoundedStore, ListSource as StreamedList, Wanted, index_samples, list_samples,
};
use penstock_types::data_set::DataFields;
use penstock_types::spec::{self, By, LabelOrigin, ListSource, MixSource, OnDamage, Records};
use penstock_types::traversal::Traversal;

use crate::prepare::Prepared;

/// Divisor of a run's memory budget for the share that its source may keep.
const SOURCE_SHARE: u64 = 2;

impl Prepared {
    /// Builds the source that the document describes. A run reads it; the storage benchmark and [`Self::count`] read it without a run.
    pub fn source(&self) -> Box<dyn Source> {
        let (source, most_bytes) = (&self.plan.source, self.source_bytes());
        let (traversal, name) = (source.traversal, source.id.to_string());
        let notes = self.found.notes(&name);
        let is_resumed = self.start.is_some();
        match &source.spec {
            // In order, a list finds a position only by its number.
            spec::Source::List(list) if !traversal.shuffle && !is_labelled(list) && !is_resumed => {
                let store = self.store(list.store.as_str());
                Box::new(StreamedList::new(store, wanted(list, notes), traversal).within(most_bytes))
            }
            // Of several ranks, each needs to know how many damaged objects are left out before the first sample.
            spec::Source::Records(_) | spec::Source::Csv(_) | spec::Source::Tsv(_)
                if !traversal.shuffle && !self.is_dealt_without_damage() && !self.is_scattered() =>
            {
                Box::new(self.records().within(most_bytes).from(self.start.clone()))
            }
            spec::Source::Range(range) => {
                let traversal = self.traversal(range.count).expect("a plan's shard was checked");
                Box::new(RangeSource::new(traversal))
            }
            spec => {
                let (access, typing) = (|| self.access(spec, &name, most_bytes), || self.typing(spec, &name));
                match files::stream(spec, access, typing, traversal) {
                    Some(stream) => Box::new(stream.from(self.start.clone())),
                    None => Box::new(self.numbered()),
                }
            }
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

    fn numbered(&self) -> NumberedSource {
        let (source, most_bytes) = (&self.plan.source, self.source_bytes());
        let open = self.open(&source.spec, &source.id.to_string(), most_bytes);
        NumberedSource::new(open, source.traversal, AHEAD_BYTES.min(most_bytes / 4)).from(self.start.clone())
    }

    /// Opens the samples of the source with this `name`, to be read by their numbers, with the types of their data set. They may keep
    /// `most_bytes`.
    fn open(&self, source: &spec::Source, name: &str, most_bytes: u64) -> Open {
        self.typed(source, name, self.open_untyped(source, name, most_bytes), None)
    }

    /// The samples of the source with this `name`, with the types of their data set. They are refused to a state of an earlier version, which
    /// took other keys or classes of the same data set. The fields of a source in a mixture are added to those of the mixture.
    fn typed(
        &self,
        source: &spec::Source,
        name: &str,
        open: Open,
        mixture: Option<&Gathered<(Arc<str>, DataFields)>>,
    ) -> Open {
        let mixture = mixture.map(|mixture| (Arc::from(name), mixture.clone()));
        let open = Typing { mixture, ..self.typing(source, name) }.samples(open);
        if !self.start.as_ref().is_some_and(|start| start.token.is_selected_by_older_rules()) {
            return open;
        }
        let notes = self.found.notes(name);
        async move {
            let samples = open.await?;
            match notes.rules().first() {
                Some(rule) => Err(selected_otherwise(rule)),
                None => Ok(samples),
            }
        }
        .boxed()
    }

    fn open_untyped(&self, source: &spec::Source, name: &str, most_bytes: u64) -> Open {
        let other = match files::open(source, || self.access(source, name, most_bytes)) {
            Ok(open) => return open,
            Err(other) => other,
        };
        match other {
            OtherSource::List(list) => self.list(list, name, &Classes::Found, most_bytes),
            OtherSource::Index(index) => {
                let (store, index) = match &index.index {
                    Some(key) => (self.store(index.store.as_str()), Arc::from(key.as_str())),
                    None => {
                        self.stores().index(index.store.as_str()).expect("an index was found for the source")
                    }
                };
                index_samples(store, index, most_bytes)
            }
            OtherSource::Records => {
                let (objects, format) = self.recorded(source, name);
                record_samples(self.store_of(source), objects, format, most_bytes)
            }
            OtherSource::Range(range) => {
                std::future::ready(Ok(Arc::new(RangeSamples(range.count)) as _)).boxed()
            }
            OtherSource::Mix(mix) => self.mix(mix, most_bytes),
        }
    }

    fn list(&self, list: &ListSource, name: &str, found: &Classes, most_bytes: u64) -> Open {
        let store = self.store(list.store.as_str());
        let mut wanted = wanted(list, self.found.notes(name));
        if !is_labelled(list) {
            return list_samples(store, wanted, most_bytes);
        }
        let table = list.labels.as_ref().map(|labels| {
            let form = labels.form().expect("a plan's labels were checked");
            let damage = Damage { notes: self.found.notes(name), ..Damage::default() };
            let format = RecordFormat::of(form, labels.types.clone()).with_damage(damage);
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
        let classes = is_by_folder(list).then(|| match &list.classes {
            Some(given) => Classes::Given(given.clone()),
            None => found.clone(),
        });
        let labelling = Labelling { classes, table };
        let (found, name) = (self.found.clone(), name.to_owned());
        labelled_samples(store, wanted, labelling, move |labels| found.add_labels(name, labels), most_bytes)
    }

    fn mix(&self, mix: &MixSource, most_bytes: u64) -> Open {
        let (seed, pick, stop) = (self.plan.source.traversal.seed, mix.pick, mix.stop);
        let drawn = mix.sources.iter().filter(|(_, part)| part.weight > 0);
        let (classes, undrawn) = self.classes_of(mix);
        let share = most_bytes / drawn.clone().count().max(1) as u64;
        let gathered = Gathered::of(drawn.clone().count());
        let opens = drawn.zip(1_u64..).map(|((name, part), number)| {
            // Sources of one length have orders of their own.
            let order = part.source.traversal(seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let open = match &part.source {
                spec::Source::List(list) => self.list(list, name.as_str(), &classes, share),
                source => self.open_untyped(source, name.as_str(), share),
            };
            let open = self.typed(&part.source, name.as_str(), open, Some(&gathered));
            let (name, weight) = (Arc::from(name.as_str()), part.weight);
            async move { Ok::<_, SourceFault>(MixedPart { name, samples: open.await?, weight, order }) }
        });
        let opens: Vec<_> = opens.collect();
        async move {
            // Together: each part that is labelled by folder waits for the classes of all others.
            let (parts, _) = try_join(try_join_all(opens), try_join_all(undrawn)).await?;
            let names: Vec<Arc<str>> = parts.iter().map(|part| part.name.clone()).collect();
            let fields: Vec<_> =
                parts.iter().filter_map(|part| Some((part.name.clone(), part.samples.fields()?))).collect();
            let mixed = Mixed::new(parts, pick, stop, seed).map_err(|fault| {
                let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                SourceFault::new(format!("the sources {names} cannot be mixed: {fault}"), None)
            })?;
            Ok(Arc::new(mixed.with_fields(fields_of(fields)?)) as _)
        }
        .boxed()
    }

    /// Classes of the parts that are labelled by folder, and reads of those that are not drawn from: their classes keep their numbers.
    fn classes_of(&self, mix: &MixSource) -> (Classes, Vec<BoxFuture<'static, Result<(), SourceFault>>>) {
        let lists = || {
            mix.sources.values().filter_map(|part| match &part.source {
                spec::Source::List(list) if is_by_folder(list) => Some((list, part.weight > 0)),
                _ => None,
            })
        };
        if let Some(given) = lists().find_map(|(list, _)| list.classes.clone()) {
            return (Classes::Given(given), Vec::new());
        }
        let shared = SharedClasses::of(lists().count());
        let undrawn = lists().filter(|(_, is_drawn)| !is_drawn).map(|(list, _)| {
            let (shared, store) = (shared.clone(), self.store(list.store.as_str()));
            let wanted = wanted(list, Notes::default());
            async move { shared.add(store, wanted).await }.boxed()
        });
        let undrawn = undrawn.collect();
        (Classes::Shared(shared), undrawn)
    }

    fn store_of(&self, source: &spec::Source) -> BoundedStore {
        let store = source.store().expect("the source reads objects of one store");
        self.store(store.as_str())
    }

    /// Part of the memory budget that the source may keep, in bytes.
    fn source_bytes(&self) -> u64 {
        self.plan.buffer_bytes / SOURCE_SHARE
    }

    /// Records of the source in their order.
    fn records(&self) -> RecordSource {
        let (source, name) = (&self.plan.source.spec, self.plan.source.id.to_string());
        let (objects, format) = self.recorded(source, &name);
        let (traversal, typing) = (self.plan.source.traversal, self.typing(source, &name));
        RecordSource::new(self.store_of(source), objects, format, traversal, typing)
    }

    /// Counts the samples of all epochs, which requires a listing of all keys or a pass over all records. `None` if the epochs
    /// never end.
    pub async fn count(&self) -> Result<Option<u64>, SourceFault> {
        let (traversal, name) = (self.plan.source.traversal, self.plan.source.id.to_string());
        let of = |count| match Traversal::new(count, traversal) {
            Ok(traversal) => Ok(traversal.total()),
            Err(fault) => Err(SourceFault::new(fault.to_string(), None)),
        };
        let mut source: Box<dyn Source> = match &self.plan.source.spec {
            spec::Source::Records(_) | spec::Source::Csv(_) | spec::Source::Tsv(_) => {
                return of(self.records().within(self.source_bytes()).count().await?);
            }
            spec::Source::Range(_) => self.source(),
            source => match files::count(source, || self.access(source, &name, self.source_bytes())) {
                Some(count) => return of(count.await?),
                None => Box::new(self.numbered()),
            },
        };
        let first = source.next().await?;
        // A source without samples ends before it reports a total.
        Ok(source.total().or(matches!(first, None | Some(Produced::EpochEnd)).then_some(0)))
    }

    /// True if damage is left out of a source that several ranks share.
    fn is_dealt_without_damage(&self) -> bool {
        let source = &self.plan.source;
        let is_dealt = source.traversal.shard.is_some_and(|shard| shard.world.get() > 1);
        is_dealt && source.spec.rules().settings().on_damage == OnDamage::Skip
    }

    /// True if an earlier run has left positions to this rank that are not in the order of the source.
    fn is_scattered(&self) -> bool {
        self.start.is_some() && self.traversal(0).is_ok_and(|traversal| traversal.is_scattered())
    }

    /// Order in which this rank visits a source of `count` samples, from the place where the run begins.
    pub(crate) fn traversal(&self, count: u64) -> Result<Traversal, SourceFault> {
        let traversal = Traversal::new(count, self.plan.source.traversal)
            .map_err(|fault| SourceFault::new(fault.to_string(), None))?;
        Ok(match &self.start {
            Some(start) => traversal.from(start),
            None => traversal,
        })
    }

    /// Handling of damage in the source with this name.
    fn damage(&self, source: &spec::Source, name: &str) -> Damage {
        Damage { policy: source.rules().settings().on_damage, notes: self.found.notes(name), is_chosen: true }
    }

    /// Access to the data of the source with this name, which may keep `most_bytes`.
    fn access(&self, source: &spec::Source, name: &str, most_bytes: u64) -> Access {
        Access { store: self.store_of(source), damage: self.damage(source, name), most_bytes }
    }

    /// Settings of the types of the source with this name.
    fn typing(&self, source: &spec::Source, name: &str) -> Typing {
        let by = |cures| Typing { cures, ..Typing::default() };
        let unnamed = Cures { unknown: "", ..RECORD_CURES };
        let own = match source {
            spec::Source::Records(records) => {
                let types = records.types.iter();
                let declared = types.map(|(name, kind)| (name.clone(), field_type(*kind))).collect();
                Typing { declared, ..by(RECORD_CURES) }
            }
            spec::Source::Csv(_) | spec::Source::Tsv(_) => by(unnamed),
            spec::Source::List(list) if list.labels.is_some() => by(unnamed),
            spec::Source::Mix(_) => by(Cures::of("give the field one type in all sources")),
            other => files::typing(other),
        };
        Typing {
            missing: source.rules().settings().missing.cloned().unwrap_or_default(),
            earlier: self.start.as_ref().and_then(|start| start.token.fields.get(name).cloned()),
            notes: self.found.notes(name),
            ..own
        }
    }

    /// Objects of a source that reads records, and their format.
    fn recorded(&self, source: &spec::Source, name: &str) -> (Shards, RecordFormat) {
        let Records { form, sample_key, types } = source.rules().records().expect("the source reads records");
        let format =
            RecordFormat::of(form, types.clone()).with_key(sample_key).with_damage(self.damage(source, name));
        let is_one = source.rules().place().is_some_and(|place| matches!(place.by[..], [By::Key(_)]));
        let objects = Shards::of(source.rules(), &self.found.notes(name));
        (objects, if is_one { format } else { format.of_several() })
    }
}

/// Keys that a list takes.
fn wanted(list: &ListSource, notes: Notes) -> Wanted {
    Wanted {
        prefix: list.prefix.clone(),
        suffix: list.suffix.clone(),
        except: None,
        hidden: list.hidden,
        links: list.links,
        notes,
    }
}

fn is_by_folder(list: &ListSource) -> bool {
    list.label == Some(LabelOrigin::Folder)
}

fn is_labelled(list: &ListSource) -> bool {
    list.label.is_some() || list.labels.is_some()
}
