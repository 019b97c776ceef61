//! Translates the document into a plan, with all faults that prevent a run.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use super::fields::Missing;
use super::recipe::{recipe, unordered};
use super::{
    CollatePlan, ConsumerPlan, Device, Fields, FilesPlan, Flow, Known, ModuleFacts, Plan, SinkPlan,
    SleepPlan, SourcePlan, StageId, StageKind, StagePlan, StoreFacts, Unit, WasmPlan,
};
use crate::fault::{FaultKind, Pointer, SpecFault, listed, suggestion};
use crate::manifest::Mode;
use crate::policy::{Capacity, Concurrency, FailureLimit, Order, Ragged};
use crate::spec::{
    Consumer, DeviceName, Fetch, LabelOrigin, LabelTable, ListSource, MAX_FAULTS, Millis, MixPart, MixSource,
    ModuleRef, Name, RecordDecoding, RecordForm, RecordsSource, STD_PREFIX, Settings, Sleep, Source, Spec,
    Stage, Suffix, SuffixOf, TableForm, TableSource, TextEncoding, Wasm, WhenMissing, is_double_quote,
};
use crate::text::{MAX_SHOWN_KEY, printable};
use crate::traversal::check_weights;

const MIB: u64 = 1 << 20;

/// Minimum memory of a sample, in bytes: a sample without fields and with an empty key.
pub const LEAST_SAMPLE_BYTES: u64 = 80;

/// Plan of a document that may have faults, with all of these faults.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Plan of the pipeline. A placeholder stands in for each faulty part.
    pub plan: Plan,
    /// All faults; if there are none, the plan can be built.
    pub faults: Vec<SpecFault>,
}

impl Plan {
    /// Checks a document and resolves its names. On failure, returns all faults.
    pub fn check(spec: &Spec, known: Known<'_>) -> Result<Self, Vec<SpecFault>> {
        let Draft { plan, faults } = Self::draft(spec, known);
        if faults.is_empty() { Ok(plan) } else { Err(faults) }
    }

    /// Same as [`Plan::check`], but returns the plan even if there are faults, for callers with further checks.
    pub fn draft(spec: &Spec, known: Known<'_>) -> Draft {
        let fields = known.fields.clone().unwrap_or_else(|| Fields::of_source(&spec.source));
        let mut check = Check { spec, known, faults: Vec::new(), planned: Vec::new(), routes: 0 };
        let source = check.source(spec);
        let giver = format!("the source `{}`", spec.source.kind());
        let way = Way { flow: (source.flow, true), fields, giver };
        let Way { flow, fields, .. } = check.stages(&spec.stages, &Stretch::whole(), way);
        let mut stages = std::mem::take(&mut check.planned);
        number_namesakes(&mut stages);
        let (flow, is_known) = flow;
        let flow = is_known.then_some(flow.unit);
        match &spec.consumer {
            Consumer::Files(files) => {
                check.store(&files.store, Pointer::ROOT.key("consumer").key("files").key("store"));
                check.takes_collated(spec, "files", flow);
            }
            Consumer::Stream(_) => check.takes_collated(spec, "stream", flow),
            Consumer::Discard(_) | Consumer::Simulate(_) => {}
        }
        let plan = Self {
            name: spec.name.to_string(),
            seed: spec.seed,
            deterministic: spec.deterministic,
            threads: spec.threads.map(|threads| threads.get()),
            interval: Duration::from_secs_f64(spec.interval_s.get()),
            buffer_bytes: u64::from(spec.buffer_mib.get()) * MIB,
            source,
            sink: SinkPlan { id: StageId::new(spec.stages.len() + 1, "sink"), queue: spec.sink.queue },
            consumer: match &spec.consumer {
                Consumer::Discard(_) => ConsumerPlan::Discard,
                Consumer::Simulate(simulate) => {
                    ConsumerPlan::Simulate { step: duration(simulate.step_ms), jitter: simulate.jitter.get() }
                }
                Consumer::Files(files) => ConsumerPlan::Files(FilesPlan {
                    store: files.store.to_string(),
                    prefix: files.prefix.strip_suffix('/').unwrap_or(&files.prefix).to_owned(),
                    recipe: recipe(spec, &stages),
                    unordered: unordered(&stages),
                }),
                Consumer::Stream(stream) => ConsumerPlan::Stream {
                    ahead: stream.ahead.get() as usize,
                    wait: Duration::from_secs_f64(stream.wait_s.get()),
                },
            },
            max_failures: spec.max_failures.filter(|limit| {
                // A limit on any stage replaces the default of the run.
                *limit != FailureLimit::Usual || stages.iter().all(|stage| stage.max_failures.is_none())
            }),
            recipe: recipe(spec, &stages),
            stages,
            fields,
        };
        check.batches_fit(&plan);
        Draft { plan, faults: check.faults }
    }
}

pub(super) struct Check<'a> {
    spec: &'a Spec,
    known: Known<'a>,
    faults: Vec<SpecFault>,
    /// Stages planned so far, in the order of the plan.
    pub(super) planned: Vec<StagePlan>,
    /// Number of routes planned so far.
    pub(super) routes: usize,
}

/// A list of stages: that of the document, or that of a path.
#[derive(Clone)]
pub(super) struct Stretch {
    /// Id of the gate before the stages; `None` for the stages of the document.
    pub(super) gate: Option<StageId>,
    /// Place of the list in the document.
    pub(super) place: Pointer,
    /// Set if all stages keep the order of the input, whatever their settings are.
    pub(super) keeps_order: bool,
}

/// What flows into a stage.
#[derive(Clone)]
pub(super) struct Way {
    /// Items, and true if they are certain.
    pub(super) flow: (Flow, bool),
    pub(super) fields: Fields,
    /// Part that gives the items, for messages.
    pub(super) giver: String,
}

impl Stretch {
    fn whole() -> Self {
        Self { gate: None, place: Pointer::ROOT.key("stages"), keeps_order: false }
    }

    /// Id of the stage at `index` of the list, from 0.
    pub(super) fn id(&self, index: usize, name: &str) -> StageId {
        match &self.gate {
            None => StageId::new(index + 1, name),
            Some(gate) => gate.stage(index + 1, name),
        }
    }
}

impl Check<'_> {
    pub(super) fn fault(&mut self, pointer: Pointer, found: impl Into<String>, hint: impl Into<String>) {
        self.push(SpecFault::new(pointer, found).hint(hint));
    }

    pub(super) fn push(&mut self, fault: SpecFault) {
        self.faults.push(fault);
    }

    /// Plans a list of stages. Returns what flows out of the last one.
    pub(super) fn stages(&mut self, list: &[Stage], stretch: &Stretch, mut way: Way) -> Way {
        for (index, stage) in list.iter().enumerate() {
            let place = stretch.place.index(index).key(stage.kind());
            way = match stage {
                Stage::Route(route) => self.route(route, &place, stretch, index, way),
                plain => {
                    let in_route = stretch.gate.as_ref().map(|_| stretch.keeps_order);
                    self.plain(plain, &|name| stretch.id(index, name), &place, in_route, way)
                }
            };
        }
        way
    }

    /// Plans a stage that is no route. `in_route` is true if it belongs to a route that keeps the order of its input, and `None` outside of
    /// routes.
    pub(super) fn plain(
        &mut self,
        stage: &Stage,
        id: &dyn Fn(&str) -> StageId,
        place: &Pointer,
        in_route: Option<bool>,
        Way { flow, fields, giver }: Way,
    ) -> Way {
        let mut planned = self.stage(stage, id, place);
        if in_route == Some(true) {
            planned.order = Order::Input;
        }
        let is_misplaced =
            in_route.is_some_and(|keeps_order| !self.fits_route(stage, &planned.kind, place, keeps_order));
        let flow = match is_misplaced {
            true => (flow.0, false),
            false => self.flow(stage, &giver, place, &planned.kind, flow),
        };
        planned.flow = flow.0;
        let fields = self.fields(stage, &planned, fields);
        self.planned.push(planned);
        Way { flow, fields, giver: format!("`{}` before it", stage.kind()) }
    }

    fn source(&mut self, spec: &Spec) -> SourcePlan {
        let place = Pointer::ROOT.key("source").key(spec.source.kind());
        let traversal = spec.source.traversal(spec.seed);
        if let Some(Err(fault)) = traversal.shard.map(|shard| shard.check()) {
            self.faults.push(SpecFault::new(place.key("shard").key("rank"), fault.to_string()));
        }
        self.reads(&spec.source, &place);
        let flow = Flow::of_source(spec.source.samples(traversal));
        let mut source = spec.source.clone();
        self.endings(&mut source, &place);
        let (id, spec, queue) = (StageId::new(0, "src"), source, Capacity::default());
        SourcePlan { id, spec, traversal, queue, flow }
    }

    /// Replaces the suffix `{"of": MODULE}` by the endings in the manifest of the module.
    fn endings(&mut self, source: &mut Source, place: &Pointer) {
        match source {
            Source::Mix(mix) => {
                for (name, part) in &mut mix.sources {
                    let place = place.key("sources").key(name.as_str()).key("source").key(part.source.kind());
                    self.endings(&mut part.source, &place);
                }
            }
            Source::List(list) => {
                let Suffix::Of(SuffixOf { of }) = &list.suffix else { return };
                let place = place.key("suffix").key("of");
                let Some(facts) = self.module(of, place.clone()) else { return };
                match facts.manifest.reads.clone().filter(|reads| !reads.is_empty()) {
                    Some(reads) => list.suffix = Suffix::Several(reads),
                    None => {
                        let found = format!("the module `{of}` does not say which files it reads");
                        self.fault(place, found, "list the endings, such as `[\".jpg\", \".png\"]`");
                    }
                }
            }
            _ => {}
        }
    }

    /// Checks the names of classes.
    fn classes(&mut self, list: &ListSource, place: &Pointer) {
        let Some(classes) = &list.classes else { return };
        if list.label != Some(LabelOrigin::Folder) {
            let hint = "set `label` to `folder`, or remove `classes`";
            self.fault(place.clone(), "only samples that are labelled by folder have classes", hint);
        }
        if classes.is_empty() {
            self.fault(place.clone(), "found no class", "name the class folders, or remove `classes`");
        }
        let mut seen = BTreeSet::new();
        for (index, class) in classes.iter().enumerate() {
            let place = place.index(index);
            let shown = printable(class, MAX_SHOWN_KEY);
            if class.is_empty() || class.contains('/') {
                let found = format!("`{shown}` is not the name of a folder");
                self.fault(place, found, "a class is one folder directly below that of `prefix`");
            } else if !seen.insert(class) {
                self.fault(place, format!("found the class `{shown}` twice"), "remove one of them");
            }
        }
    }

    /// Checks the settings of a source that concern its data.
    fn reads(&mut self, source: &Source, place: &Pointer) {
        self.values_of_missing(source, place);
        match source {
            Source::List(list) => {
                self.store(&list.store, place.key("store"));
                if let Some(labels) = &list.labels {
                    self.labels(labels, &place.key("labels"));
                }
                self.classes(list, &place.key("classes"));
                if matches!(&list.suffix, Suffix::Several(several) if several.is_empty()) {
                    self.fault(
                        place.key("suffix"),
                        "found no ending",
                        "name at least one, or remove `suffix`",
                    );
                }
            }
            Source::Records(RecordsSource { store, .. })
            | Source::Csv(TableSource { store, .. })
            | Source::Tsv(TableSource { store, .. }) => {
                self.store(store, place.key("store"));
                self.objects(source, place);
            }
            Source::Range(_) => {}
            Source::Index(index) => {
                self.store(&index.store, place.key("store"));
                if index.index.is_none() && self.facts(&index.store).is_some_and(|store| !store.has_index) {
                    let found = format!(
                        "there is no index to read: the configuration of store `{}` names none",
                        index.store
                    );
                    let hint = "set `index` to the key of a JSON array of keys";
                    self.faults
                        .push(SpecFault::new(place.clone(), found).of_kind(FaultKind::NoIndex).hint(hint));
                }
            }
            Source::Tar(tar) => {
                self.store(&tar.store, place.key("store"));
                let ways = [tar.shards.is_some(), tar.prefix.is_some(), tar.index.is_some()];
                self.one_way(ways, ["shards", "prefix", "index"], "shards", place);
                if tar.shuffle && tar.index.is_none() {
                    let hint =
                        "make one with `penstock index create --tar`, and set `index` instead of the shards";
                    self.fault(
                        place.key("shuffle"),
                        "tar shards without an index are read in their order",
                        hint,
                    );
                }
                self.window(tar.window, tar.shuffle, place);
            }
            Source::Tfrecord(source) => {
                self.store(&source.store, place.key("store"));
                let ways = [source.shards.is_some(), source.prefix.is_some(), source.index.is_some()];
                self.one_way(ways, ["shards", "prefix", "index"], "files", place);
                if source.shuffle && source.index.is_none() {
                    let hint = "make one with `penstock index create --tfrecord`, and set `index` instead of the files";
                    self.fault(
                        place.key("shuffle"),
                        "TFRecord files without an index are read in their order",
                        hint,
                    );
                }
                self.window(source.window, source.shuffle, place);
                let of_examples = [
                    ("fields", !source.fields.is_empty()),
                    ("texts", !source.texts.is_empty()),
                    ("scalars", !source.scalars.is_empty()),
                    ("lists", !source.lists.is_empty()),
                    ("sample_key", source.sample_key.is_some()),
                ];
                for (name, _) in
                    of_examples.iter().filter(|(_, is_set)| *is_set && source.decode == RecordDecoding::Bytes)
                {
                    let hint = format!("remove `{name}`, or set `decode` to `example`");
                    self.fault(place.key(name), "records that are read as bytes have no features", hint);
                }
                let ways = [("texts", &source.texts), ("scalars", &source.scalars), ("lists", &source.lists)];
                for (number, (way, names)) in ways.iter().enumerate() {
                    for (at, name) in names.iter().enumerate() {
                        // A feature may be in both of these: its values are then lists of texts.
                        let is_other = |other: &str| (other, *way) != ("texts", "lists");
                        let mut others = ways[..number].iter().filter(|(other, _)| is_other(other));
                        if let Some((other, _)) = others.find(|(_, names)| names.contains(name)) {
                            let name = printable(name, MAX_SHOWN_KEY);
                            let found = format!("`{other}` names the feature `{name}`, too");
                            self.fault(place.key(way).index(at), found, "remove one of them");
                        }
                    }
                }
            }
            Source::Parquet(parquet) => {
                self.store(&parquet.store, place.key("store"));
                let ways = [parquet.shards.is_some(), parquet.prefix.is_some()];
                self.one_way(ways, ["shards", "prefix"], "files", place);
                self.window(parquet.window, parquet.shuffle, place);
                for (at, name) in parquet.columns.iter().enumerate() {
                    let is_field = parquet.fields.keys().any(|field| field.as_str() == name);
                    if is_field || parquet.columns[..at].contains(name) {
                        let found = format!("there is another field `{}`", printable(name, MAX_SHOWN_KEY));
                        self.fault(place.key("columns").index(at), found, "remove one of them");
                    }
                }
            }
            Source::Mds(source) => {
                self.store(&source.store, place.key("store"));
                self.window(source.window, source.shuffle, place);
            }
            Source::Mix(mix) => self.mix(mix, place),
        }
    }

    /// Checks that the types in the document permit the values of `missing`.
    fn values_of_missing(&mut self, source: &Source, place: &Pointer) {
        let types = match source {
            Source::List(list) => list.labels.as_ref().map(|labels| &labels.types),
            Source::Records(records) => Some(&records.types),
            Source::Csv(table) | Source::Tsv(table) => Some(&table.types),
            _ => None,
        };
        for (name, when) in source.missing().into_iter().flatten() {
            if let Some(kind) = types.and_then(|types| types.get(name))
                && !when.fits(*kind)
            {
                let found = match when {
                    WhenMissing::Value(value) => format!("`value` is {value}"),
                    _ => "only float numbers can be NaN".to_owned(),
                };
                let found = format!("{found}, and `types` makes the field `{}`", kind.name());
                let hint = "give it a value of that type, or change `types`";
                self.fault(place.key("missing").key(name), found, hint);
            }
        }
    }

    /// Reports that not exactly one of the fields with these `names` is set, which name the `objects`.
    fn one_way<const N: usize>(
        &mut self,
        set: [bool; N],
        names: [&str; N],
        objects: &str,
        place: &Pointer,
    ) -> bool {
        let is_one = set.iter().filter(|set| **set).count() == 1;
        if !is_one {
            let found = format!("one of {} names the {objects}", listed(names));
            self.fault(place.clone(), found, "set exactly one of them");
        }
        is_one
    }

    fn window(&mut self, window: Option<NonZeroU32>, is_shuffled: bool, place: &Pointer) {
        if window.is_some() && !is_shuffled {
            self.fault(
                place.key("window"),
                "only a shuffle has a window",
                "set `shuffle`, or remove `window`",
            );
        }
    }

    fn objects(&mut self, source: &Source, place: &Pointer) {
        let Some(objects) = source.records() else { return };
        if matches!(objects.suffix, Some(Suffix::Of(_))) {
            let found = "the files that a module reads are no tables or records";
            self.fault(place.key("suffix"), found, "name the endings");
        }
        let ways = [objects.key.is_some(), objects.shards.is_some(), objects.prefix.is_some()];
        let is_one = self.one_way(ways, ["key", "shards", "prefix"], "objects", place);
        if is_one && objects.suffix.is_some() && objects.prefix.is_none() {
            self.fault(
                place.key("suffix"),
                "only keys with a `prefix` are listed",
                "set `prefix`, or remove `suffix`",
            );
        }
        self.table_form(objects.form, place);
    }

    /// Checks that the delimiter of a table is not its quote.
    fn table_form(&mut self, form: RecordForm, place: &Pointer) {
        let RecordForm::Rows(TableForm { delimiter, is_named, quote, .. }) = form else { return };
        if quote == Some(delimiter) {
            let name = if is_named { "delimiter" } else { "quote" };
            let character = char::from(delimiter).escape_debug();
            let found = format!("`{character}` is both the delimiter and the quote");
            self.fault(
                place.key(name),
                found,
                "name another character; `\"quote\": null` reads quotes as text",
            );
        }
    }

    fn labels(&mut self, labels: &LabelTable, place: &Pointer) {
        if let Some(store) = &labels.store {
            self.store(store, place.key("store"));
        }
        match labels.form() {
            None => {
                let found = format!("the key `{}` names no form of the table", labels.key);
                let hint = match labels.key.as_str() {
                    key if key.ends_with(".gz") || key.ends_with(".zst") => {
                        "decompress it: tables of labels are read by the places of their rows"
                    }
                    _ => "its end is `.csv`, `.tsv`, `.ndjson` or `.jsonl`",
                };
                self.fault(place.key("key"), found, hint);
            }
            Some(RecordForm::Lines) => {
                if !labels.types.is_empty() {
                    self.fault(place.key("types"), "values of NDJSON have their types", "remove `types`");
                }
                let of_tables = [
                    ("delimiter", labels.delimiter.is_some()),
                    ("quote", !is_double_quote(&labels.quote)),
                    ("encoding", labels.encoding != TextEncoding::default()),
                ];
                for (name, _) in of_tables.iter().filter(|(_, is_stated)| *is_stated) {
                    self.fault(place.key(name), "NDJSON is no table", format!("remove `{name}`"));
                }
            }
            Some(form) => self.table_form(form, place),
        }
    }

    fn mix(&mut self, mix: &MixSource, place: &Pointer) {
        let weights: Vec<u32> = mix.sources.values().map(|part| part.weight).collect();
        if let Err(fault) = check_weights(&weights) {
            self.fault(place.key("sources"), fault.to_string(), "weights are whole numbers such as 3 and 1");
        }
        self.mixed_classes(mix, place);
        for (name, MixPart { source, .. }) in &mix.sources {
            let place = place.key("sources").key(name.as_str()).key("source").key(source.kind());
            let traversal = source.traversal(0);
            if matches!(source, Source::Mix(_)) {
                self.fault(
                    place.clone(),
                    "a mixture is no source of a mixture",
                    "multiply its weights, and move its sources here",
                );
                continue;
            }
            if matches!(source, Source::Tar(tar) if tar.index.is_none()) {
                let hint = "make an index with `penstock index create --tar`, and set `index`";
                self.fault(
                    place.clone(),
                    "samples of a mixture are read by their numbers, which tar shards have only in an index",
                    hint,
                );
            }
            if matches!(source, Source::Tfrecord(source) if source.index.is_none()) {
                let hint = "make an index with `penstock index create --tfrecord`, and set `index`";
                let found = "samples of a mixture are read by their numbers, which TFRecord files have only in an index";
                self.fault(place.clone(), found, hint);
            }
            if traversal.shard.is_some() {
                self.fault(
                    place.key("shard"),
                    "ranks share the mixture, not its sources",
                    "move `shard` to the `mix`",
                );
            }
            if traversal.epochs != Some(NonZeroU32::MIN) {
                self.fault(place.key("epochs"), "the mixture has the epochs", "move `epochs` to the `mix`");
            }
            self.reads(source, &place);
        }
    }

    /// Checks that the parts of a mixture name the same classes, since they share one table of them.
    fn mixed_classes(&mut self, mix: &MixSource, place: &Pointer) {
        let mut first: Option<(&Name, &Vec<String>)> = None;
        for (name, part) in &mix.sources {
            let Source::List(ListSource { classes: Some(classes), .. }) = &part.source else { continue };
            match first {
                Some((other, of_other)) if of_other != classes => {
                    let place =
                        place.key("sources").key(name.as_str()).key("source").key("list").key("classes");
                    let found = format!("the sources `{other}` and `{name}` name different classes");
                    self.fault(
                        place,
                        found,
                        "all sources of a mixture share one table of classes: name all of them in each",
                    );
                }
                Some(_) => {}
                None => first = Some((name, classes)),
            }
        }
    }

    fn stage(&mut self, stage: &Stage, id: &dyn Fn(&str) -> StageId, place: &Pointer) -> StagePlan {
        let spec = self.spec;
        let Settings { name, queue, concurrency, order, on_error, max_failures } = stage.settings();
        let mut default_name = stage.kind();
        let kind = match stage {
            Stage::Aggregate(aggregate) => {
                StageKind::Aggregate { size: aggregate.size.get() as usize, drop_last: aggregate.drop_last }
            }
            Stage::Disaggregate(_) => StageKind::Disaggregate,
            Stage::Fetch(fetch) => self.fetch(fetch, spec.source.store(), place),
            Stage::Wasm(wasm) => {
                let facts = self.module(&wasm.module, place.key("module"));
                default_name = facts.map_or(default_name, ModuleFacts::short_name);
                self.assets(wasm, place);
                StageKind::Wasm(self.wasm(wasm, facts, concurrency, place))
            }
            Stage::Collate(collate) => {
                if !collate.shape.is_empty() && collate.ragged != Ragged::Skip {
                    let hint = "set `ragged` to `skip`, or remove `shape`";
                    self.fault(place.key("shape"), "only `\"ragged\": \"skip\"` has shapes", hint);
                }
                StageKind::Collate(CollatePlan {
                    ragged: collate.ragged,
                    shapes: collate.shape.clone(),
                    mismatch: collate.mismatch,
                })
            }
            Stage::Transfer(transfer) => {
                StageKind::Transfer { device: self.device(&transfer.device, &spec.consumer, place) }
            }
            Stage::Sleep(sleep) => StageKind::Sleep(sleep_plan(sleep)),
            Stage::Route(_) => unreachable!("routes are planned with the stages in their paths"),
        };
        let id = id(name.map_or(default_name, Name::as_str));
        let (seeded_as, place) = (id.name().to_owned(), place.clone());
        let flow = Flow::of_source(None);
        StagePlan { id, place, seeded_as, kind, queue, concurrency, order, on_error, max_failures, flow }
    }

    fn fetch(&mut self, fetch: &Fetch, source_store: Option<&Name>, place: &Pointer) -> StageKind {
        if let Some(store) = &fetch.store {
            self.store(store, place.key("store"));
        }
        let store = fetch.store.as_ref().or(source_store);
        if store.is_none() {
            self.fault(
                place.clone(),
                "there is no store to read from: the source has none",
                "set `store` of the `fetch`",
            );
        }
        StageKind::Fetch {
            store: store.map(ToString::to_string).unwrap_or_default(),
            object: fetch.object.clone(),
        }
    }

    fn wasm(
        &mut self,
        wasm: &Wasm,
        facts: Option<&ModuleFacts>,
        concurrency: Concurrency,
        place: &Pointer,
    ) -> WasmPlan {
        let mode = facts.map(|facts| facts.manifest.mode).unwrap_or_default();
        if mode == Mode::Stateful && concurrency.get() > 1 {
            let found = format!("found {}, but `{}` is stateful", concurrency.get(), wasm.module);
            self.fault(place.key("concurrency"), found, "use 1, since all samples pass one instance");
        }
        WasmPlan {
            module: wasm.module.to_string(),
            digest: facts.map(|facts| facts.digest.clone()).unwrap_or_default(),
            mode,
            fan_out: facts.and_then(|facts| facts.manifest.fan_out),
            params: wasm.params.clone(),
            deadline: Duration::from_millis(u64::from(wasm.deadline_ms.get())),
            memory_bytes: u64::from(wasm.memory_mib.get()) * MIB,
            output_bytes: u64::from(wasm.output_mib.get()) * MIB,
            assets: wasm.assets.clone(),
        }
    }

    fn assets(&mut self, wasm: &Wasm, place: &Pointer) {
        for (name, asset) in &wasm.assets {
            self.store(&asset.store, place.key("assets").key(name.as_str()).key("store"));
        }
    }

    fn store(&mut self, store: &Name, place: Pointer) {
        let Some(stores) = self.known.stores else { return };
        if !stores.contains_key(store.as_str()) {
            let names = || stores.keys().map(String::as_str);
            let found = format!(
                "there is no store `{store}`: {}known: {}",
                suggestion(store.as_str(), names()),
                listed(names())
            );
            let kind = FaultKind::UnknownStore(store.to_string());
            self.faults.push(SpecFault::new(place, found).of_kind(kind));
        }
    }

    /// Properties of a store; `None` if it is not known.
    fn facts(&self, store: &Name) -> Option<StoreFacts> {
        self.known.stores?.get(store.as_str()).copied()
    }

    /// Checks the input of consumers that require collated batches.
    fn takes_collated(&mut self, spec: &Spec, consumer: &'static str, flow: Option<Unit>) {
        let place = Pointer::ROOT.key("consumer").key(consumer);
        let (found, remedy) = match flow {
            None | Some(Unit::Collated) => return,
            Some(found @ Unit::Samples) => (found, "add an `aggregate` and a `collate`"),
            Some(found @ Unit::Batches) => (found, "add a `collate`"),
        };
        let before = match spec.stages.last() {
            Some(stage) => format!("`{}` before it", stage.kind()),
            None => format!("the source `{}`", spec.source.kind()),
        };
        let found = format!("`{consumer}` takes collated batches, but {before} gives {}", found.name());
        self.fault(place, found, remedy);
    }

    /// Checks that batches whose number of samples is certain would fit into the memory budget if their samples were empty.
    fn batches_fit(&mut self, plan: &Plan) {
        let is_lossless = |stage: &&StagePlan| match &stage.kind {
            StageKind::Fetch { .. } | StageKind::Wasm(_) => false,
            StageKind::Sleep(sleep) => sleep.fail_rate <= 0.0,
            StageKind::Route(route) => route.has_else,
            StageKind::Aggregate { .. }
            | StageKind::Disaggregate
            | StageKind::Collate(_)
            | StageKind::Transfer { .. }
            | StageKind::Path(_) => true,
        };
        for (index, stage) in plan.stages.iter().take_while(is_lossless).enumerate() {
            let StageKind::Aggregate { size, .. } = stage.kind else { continue };
            let Some(epoch) = plan.flow_into(index).epoch else { continue };
            let samples = epoch.samples.min(size as u64);
            let mib = samples.saturating_mul(LEAST_SAMPLE_BYTES).div_ceil(MIB);
            if mib * MIB > plan.buffer_bytes {
                let found = format!(
                    "a batch of {samples} samples takes at least {mib} MiB, and `buffer_mib` is {}",
                    plan.buffer_bytes / MIB
                );
                self.fault(stage.place.key("size"), found, "use a smaller `size`, or a larger `buffer_mib`");
            }
        }
    }

    /// Resolves the target of a transfer. Consumers that read batches need them in host memory.
    fn device(&mut self, device: &DeviceName, consumer: &Consumer, place: &Pointer) -> Device {
        let reads = match consumer {
            Consumer::Files(_) => Some("files"),
            Consumer::Stream(_) => Some("stream"),
            Consumer::Discard(_) | Consumer::Simulate(_) => None,
        };
        let Some(number) = device.as_str().strip_prefix("cuda:") else {
            let is_auto = device.as_str() == "auto" && reads.is_none();
            return if is_auto { Device::Auto } else { Device::Host };
        };
        match (reads, number.parse()) {
            (None, Ok(number)) => Device::Cuda(number),
            // A number that is out of range was reported when the document was read.
            (None, Err(_)) => Device::Host,
            (Some(consumer), _) => {
                let found =
                    format!("found `{device}`, but the consumer `{consumer}` reads batches from host memory");
                self.fault(place.key("device"), found, "use `host`, or omit the stage");
                Device::Host
            }
        }
    }
}

impl<'a> Check<'a> {
    fn module(&mut self, module: &ModuleRef, place: Pointer) -> Option<&'a ModuleFacts> {
        let name = module.as_str();
        let facts = self.known.modules.get(name);
        if facts.is_none() {
            let is_std = name.starts_with(STD_PREFIX);
            let all = || self.known.names.iter().map(String::as_str);
            let names = || all().filter(|known| known.starts_with(STD_PREFIX) == is_std);
            let (module, version) = name.split_once('@').unzip();
            let module = module.unwrap_or(name);
            let found = match version {
                Some(version) if names().any(|known| known == module) => {
                    format!("the module `{module}` has no version or alias `{version}`")
                }
                _ if is_std && names().next().is_none() => {
                    format!(
                        "there is no module `{name}`: this program was built without std modules; run `make build`"
                    )
                }
                _ => {
                    let own = all().find(|known| known.strip_prefix(STD_PREFIX) == Some(module));
                    let near = own.map(|own| format!("did you mean `{own}`? "));
                    let near = near.unwrap_or_else(|| suggestion(name, names()));
                    format!("there is no module `{name}`: {near}known: {}", listed(names()))
                }
            };
            let kind = FaultKind::UnknownModule(name.to_owned());
            self.faults.push(SpecFault::new(place, found).of_kind(kind));
        }
        facts
    }

    /// Checks that the stage accepts its input. Returns the flow behind the stage, and true if that flow is certain, which it is
    /// not if the stage passes on an input that it does not accept.
    fn flow(
        &mut self,
        stage: &Stage,
        giver: &str,
        place: &Pointer,
        kind: &StageKind,
        (before, is_known): (Flow, bool),
    ) -> (Flow, bool) {
        use Unit::{Batches, Collated, Samples};
        let is_unknown = matches!(kind, StageKind::Wasm(wasm) if wasm.digest.is_empty());
        let is_cuda = matches!(stage, Stage::Transfer(transfer) if transfer.device.is_cuda());
        let takes: &[Unit] = match kind {
            StageKind::Aggregate { .. } => &[Samples],
            StageKind::Disaggregate | StageKind::Collate(_) => &[Batches],
            StageKind::Wasm(_) if is_unknown => &[Samples, Batches],
            StageKind::Wasm(wasm) if wasm.mode == Mode::Batch => &[Batches],
            StageKind::Wasm(_) | StageKind::Path(_) | StageKind::Route(_) => &[Samples],
            StageKind::Fetch { .. } => &[Samples, Batches],
            StageKind::Transfer { .. } if is_cuda => &[Collated],
            StageKind::Transfer { .. } | StageKind::Sleep(_) => &[Samples, Batches, Collated],
        };
        let (after, is_certain) = match kind {
            StageKind::Transfer { .. } if is_cuda => (Flow { unit: Collated, ..before }, true),
            StageKind::Wasm(_) if is_unknown => (before, false),
            StageKind::Fetch { .. } | StageKind::Transfer { .. } | StageKind::Sleep(_) => (before, false),
            _ => (before.after(kind), true),
        };
        let is_taken = !is_known || takes.contains(&before.unit);
        if !is_taken {
            let wanted: Vec<&str> = takes.iter().map(|unit| unit.name()).collect();
            let subject = match stage {
                Stage::Wasm(wasm) => format!("module `{}`", wasm.module),
                other => format!("`{}`", other.kind()),
            };
            let (wanted, given) = (wanted.join(" or "), before.unit.name());
            let found = format!("{subject} takes {wanted}, but {giver} gives {given}");
            self.fault(place.clone(), found, remedy(before.unit, takes));
        }
        // Later stages are checked against a certain output only, so that a wrong input is reported once instead of once per
        // stage.
        (after, is_certain || (is_known && is_taken))
    }
}

impl Check<'_> {
    /// Checks that the samples have the fields that a stage needs. Returns the fields behind it.
    fn fields(&mut self, stage: &Stage, planned: &StagePlan, fields: Fields) -> Fields {
        if let Stage::Fetch(Fetch { object: Some(field), .. }) = stage
            && fields.lacks(field)
        {
            let found = format!(
                "`fetch` reads the objects that the field `{field}` names, but {}",
                fields.in_words()
            );
            let kind = FaultKind::MissingField(field.clone());
            let hint =
                "put a stage before it that makes the field, or read it with the source `records` or `csv`";
            self.faults.push(SpecFault::new(planned.place.key("object"), found).of_kind(kind).hint(hint));
        }
        let Stage::Wasm(wasm) = stage else { return fields.after(&planned.kind) };
        let Some(facts) = self.known.modules.get(wasm.module.as_str()) else { return Fields::UNKNOWN };
        let room = MAX_FAULTS.saturating_sub(self.faults.len());
        for Missing { field, param, hint } in fields.missing(&facts.manifest, &wasm.params, room) {
            let place = &planned.place;
            let named = param.filter(|param| wasm.params.contains_key(param));
            let place = named.map_or_else(|| place.clone(), |param| place.key("params").key(&param));
            let found =
                format!("module `{}` needs the field `{field}`, but {}", wasm.module, fields.in_words());
            let kind = FaultKind::MissingField(field);
            self.faults.push(SpecFault::new(place, found).of_kind(kind).hint(hint));
        }
        fields.after_module(&facts.manifest, &wasm.params)
    }
}

/// Stages to insert between a stage that produces `found` and a stage that accepts `takes`.
pub(super) fn remedy(found: Unit, takes: &[Unit]) -> &'static str {
    match found {
        Unit::Samples if takes == [Unit::Collated] => "put an `aggregate` and a `collate` between them",
        Unit::Samples => "put an `aggregate` between them",
        Unit::Batches if takes == [Unit::Collated] => "put a `collate` between them",
        Unit::Batches if takes.contains(&Unit::Samples) => "put a `disaggregate` between them",
        Unit::Batches | Unit::Collated => {
            "collated batches cannot be split; put this stage before the `collate`"
        }
    }
}

/// Makes the seeds of stages with the same name differ: to the name in the seeds of all but the first, appends the number of
/// earlier stages with this name.
fn number_namesakes(stages: &mut [StagePlan]) {
    let mut namesakes = BTreeMap::<String, u32>::new();
    for stage in stages {
        let before = namesakes.entry(stage.id.name().to_owned()).or_default();
        if *before > 0 {
            stage.seeded_as = format!("{}#{before}", stage.id.name());
        }
        *before += 1;
    }
}

fn sleep_plan(sleep: &Sleep) -> SleepPlan {
    SleepPlan {
        mean: duration(sleep.mean_ms),
        jitter: sleep.jitter.get(),
        shape: sleep.shape,
        on: sleep.on,
        fail_rate: sleep.fail_rate.get(),
    }
}

fn duration(millis: Millis) -> Duration {
    Duration::from_secs_f64(millis.get() / 1e3)
}
