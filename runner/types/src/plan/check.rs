//! From the document as written to the plan, with everything that stands in the way.

use std::collections::BTreeMap;
use std::time::Duration;

use super::recipe::{recipe, unordered};
use super::{
    AssetPlan, ConsumerPlan, Device, FilesPlan, Known, ModuleFacts, Plan, SinkPlan, SleepPlan, SourceKind,
    SourcePlan, StageId, StageKind, StagePlan, StoreFacts, WasmPlan,
};
use crate::fault::{Pointer, SpecFault, listed, suggestion};
use crate::manifest::Mode;
use crate::policy::Concurrency;
use crate::spec::{
    Consumer, DeviceName, Fetch, Millis, Name, Settings, Sleep, Source, Spec, Stage, Wasm, default_queue,
};

const MIB: u64 = 1 << 20;

impl Plan {
    /// Checks a document and resolves its names. Fails with everything that is wrong with it.
    pub fn check(spec: &Spec, known: Known<'_>) -> Result<Self, Vec<SpecFault>> {
        let mut check = Check { known, faults: Vec::new() };
        let source = check.source(spec);
        let mut flow = Some(Flow::Samples);
        let mut stages = Vec::with_capacity(spec.stages.len());
        for (index, stage) in spec.stages.iter().enumerate() {
            let place = Pointer::ROOT.key("stages").index(index).key(stage.kind());
            check.order_of_kinds(spec, index, &place, &mut flow);
            stages.extend(check.stage(stage, index + 1, spec, &place));
        }
        tell_namesakes_apart(&mut stages);
        match &spec.consumer {
            Consumer::Files(files) => {
                check.store(&files.store, Pointer::ROOT.key("consumer").key("files").key("store"));
                check.takes_collated(spec, "files", flow);
            }
            Consumer::Stream(_) => check.takes_collated(spec, "stream", flow),
            Consumer::Discard(_) | Consumer::Simulate(_) => {}
        }
        if !check.faults.is_empty() {
            return Err(check.faults);
        }
        Ok(Self {
            name: spec.name.to_string(),
            seed: spec.seed,
            threads: spec.threads.map(|threads| threads.get()),
            interval: Duration::from_secs_f64(spec.interval_s.get()),
            buffer_bytes: u64::from(spec.buffer_mib.get()) * MIB,
            source,
            sink: SinkPlan { id: StageId::new(stages.len() + 1, "sink"), queue: spec.sink.queue },
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
            stages,
            max_failures: spec.max_failures,
        })
    }
}

/// What comes out of a stage.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Samples,
    Batches,
    Collated,
}

struct Check<'a> {
    known: Known<'a>,
    faults: Vec<SpecFault>,
}

impl Flow {
    fn in_words(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Batches => "batches",
            Self::Collated => "collated batches",
        }
    }
}

impl Check<'_> {
    fn fault(&mut self, pointer: Pointer, message: impl Into<String>) {
        self.faults.push(SpecFault::new(pointer, message));
    }

    fn source(&mut self, spec: &Spec) -> SourcePlan {
        let place = Pointer::ROOT.key("source").key(spec.source.kind());
        let traversal = spec.source.traversal(spec.seed);
        if let Some(Err(fault)) = traversal.shard.map(|shard| shard.check()) {
            self.fault(place.key("shard").key("rank"), fault.to_string());
        }
        if let Some(store) = spec.source.store() {
            self.store(store, place.key("store"));
        }
        if let Source::Index(index) = &spec.source
            && index.index.is_none()
            && self.facts(&index.store).is_some_and(|store| !store.has_index)
        {
            let message = format!(
                "there is no index to read: the configuration of store `{}` names none, so `index` has to: the key of a \
                 JSON array of keys, as `penstock index create` makes it",
                index.store
            );
            self.fault(place.clone(), message);
        }
        let kind = match &spec.source {
            Source::List(list) => SourceKind::List {
                store: list.store.to_string(),
                prefix: list.prefix.clone(),
                suffix: list.suffix.clone(),
            },
            Source::Index(index) => SourceKind::Index {
                store: index.store.to_string(),
                index: index.index.as_ref().map(ToString::to_string),
            },
            Source::Range(range) => SourceKind::Range { count: range.count },
            Source::Records(records) => {
                SourceKind::Records { store: records.store.to_string(), key: records.key.to_string() }
            }
        };
        SourcePlan { id: StageId::new(0, "src"), kind, traversal, queue: default_queue() }
    }

    /// The stage's plan; `None` when it has faults that leave no plan.
    fn stage(&mut self, stage: &Stage, position: usize, spec: &Spec, place: &Pointer) -> Option<StagePlan> {
        let Settings { name, queue, concurrency, order, on_error, max_failures } = stage.settings();
        let mut default_name = stage.kind();
        let kind = match stage {
            Stage::Aggregate(aggregate) => Some(StageKind::Aggregate {
                size: aggregate.size.get() as usize,
                drop_last: aggregate.drop_last,
            }),
            Stage::Disaggregate(_) => Some(StageKind::Disaggregate),
            Stage::Fetch(fetch) => self.fetch(fetch, spec.source.store(), place),
            Stage::Wasm(wasm) => {
                let facts = self.module(wasm, place);
                default_name = facts.map_or(default_name, |facts| &facts.name);
                self.assets(wasm, place);
                facts.map(|facts| StageKind::Wasm(self.wasm(wasm, facts, concurrency, place)))
            }
            Stage::Collate(_) => Some(StageKind::Collate),
            Stage::Transfer(transfer) => self
                .device(&transfer.device, &spec.consumer, place)
                .map(|device| StageKind::Transfer { device }),
            Stage::Sleep(sleep) => Some(StageKind::Sleep(sleep_plan(sleep))),
        };
        let id = StageId::new(position, name.map_or(default_name, Name::as_str));
        let seeded_as = id.name().to_owned();
        kind.map(|kind| StagePlan { id, seeded_as, kind, queue, concurrency, order, on_error, max_failures })
    }

    fn fetch(&mut self, fetch: &Fetch, source_store: Option<&Name>, place: &Pointer) -> Option<StageKind> {
        if let Some(store) = &fetch.store {
            self.store(store, place.key("store"));
        }
        let store = fetch.store.as_ref().or(source_store);
        if store.is_none() {
            let message =
                "there is no store to read from: the source has none, so `fetch` needs a `store` of its own";
            self.fault(place.clone(), message);
        }
        store.map(|store| StageKind::Fetch { store: store.to_string() })
    }

    fn wasm(
        &mut self,
        wasm: &Wasm,
        facts: &ModuleFacts,
        concurrency: Concurrency,
        place: &Pointer,
    ) -> WasmPlan {
        let mode = facts.manifest.mode;
        if mode == Mode::Stateful && concurrency != Concurrency::ONE {
            let message = format!(
                "found {}, but `{}` is stateful: all samples pass one instance, so only 1 will do",
                concurrency.get(),
                wasm.module
            );
            self.fault(place.key("concurrency"), message);
        }
        let assets = wasm.assets.iter().map(|(name, asset)| {
            (name.to_string(), AssetPlan { store: asset.store.to_string(), key: asset.key.to_string() })
        });
        WasmPlan {
            module: wasm.module.to_string(),
            digest: facts.digest.clone(),
            mode,
            params: wasm.params.clone(),
            deadline: Duration::from_millis(u64::from(wasm.deadline_ms.get())),
            memory_bytes: u64::from(wasm.memory_mib.get()) * MIB,
            assets: assets.collect(),
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
            let message = format!(
                "there is no store `{store}`: {}known are {}; `--store {store}=DIR` would add it",
                suggestion(store.as_str(), names()),
                listed(names())
            );
            self.fault(place, message);
        }
    }

    /// What is known of a store; `None` when it is not known at all.
    fn facts(&self, store: &Name) -> Option<StoreFacts> {
        self.known.stores?.get(store.as_str()).copied()
    }

    /// Consumers that pass batches on take collated ones and nothing else.
    fn takes_collated(&mut self, spec: &Spec, consumer: &'static str, flow: Option<Flow>) {
        let place = Pointer::ROOT.key("consumer").key(consumer);
        let (found, remedy) = match flow {
            // Behind an unknown module nothing can be said.
            None | Some(Flow::Collated) => return,
            Some(found @ Flow::Samples) => (found, "add an `aggregate` and a `collate`"),
            Some(found @ Flow::Batches) => (found, "add a `collate`"),
        };
        let before = match spec.stages.last() {
            Some(stage) => format!("`{}` before it", stage.kind()),
            None => format!("the source `{}`", spec.source.kind()),
        };
        self.fault(
            place,
            format!("`{consumer}` takes collated batches, but {before} gives {}: {remedy}", found.in_words()),
        );
    }

    /// Where a transfer leads. Consumers that read batches want them where they can: on the host.
    fn device(&mut self, device: &DeviceName, consumer: &Consumer, place: &Pointer) -> Option<Device> {
        let reads = match consumer {
            Consumer::Files(_) => Some("files"),
            Consumer::Stream(_) => Some("stream"),
            Consumer::Discard(_) | Consumer::Simulate(_) => None,
        };
        let Some(number) = device.as_str().strip_prefix("cuda:") else {
            let is_auto = device.as_str() == "auto" && reads.is_none();
            return Some(if is_auto { Device::Auto } else { Device::Host });
        };
        if let Some(consumer) = reads {
            let message = format!(
                "found `{device}`, but the consumer `{consumer}` reads batches from the memory of the host: use `host`, or leave \
                 the stage out"
            );
            self.fault(place.key("device"), message);
            return None;
        }
        number.parse().ok().map(Device::Cuda)
    }
}

impl<'a> Check<'a> {
    fn module(&mut self, wasm: &Wasm, place: &Pointer) -> Option<&'a ModuleFacts> {
        let name = wasm.module.as_str();
        let facts = self.known.modules.get(name);
        if facts.is_none() {
            let names = || self.known.modules.keys().map(String::as_str);
            let mut message = format!(
                "there is no module `{name}`: {}known are {}",
                suggestion(name, names()),
                listed(names())
            );
            // A digest is not a name that can be given to a file.
            if !name.starts_with("sha256:") {
                message.push_str(&format!("; `--module {name}=PATH` would add it"));
            }
            self.fault(place.key("module"), message);
        }
        facts
    }

    /// Whether the stage takes what comes in; `flow` becomes what goes out. It is `None` behind an unknown module,
    /// where nothing can be said.
    fn order_of_kinds(&mut self, spec: &Spec, index: usize, place: &Pointer, flow: &mut Option<Flow>) {
        use Flow::{Batches, Collated, Samples};
        let stage = &spec.stages[index];
        let (takes, gives): (&[Flow], Option<Flow>) = match stage {
            Stage::Aggregate(_) => (&[Samples], Some(Batches)),
            Stage::Disaggregate(_) => (&[Batches], Some(Samples)),
            Stage::Collate(_) => (&[Batches], Some(Collated)),
            // With the wrong thing coming in, the right thing is taken to go out: one fault, not one per stage.
            Stage::Fetch(_) => (&[Samples, Batches], flow.filter(|flow| *flow != Collated)),
            Stage::Wasm(wasm) => {
                match self.known.modules.get(wasm.module.as_str()).map(|it| it.manifest.mode) {
                    Some(Mode::Sample | Mode::Stateful) => (&[Samples], Some(Samples)),
                    Some(Mode::Batch) => (&[Batches], Some(Batches)),
                    None => (&[Samples, Batches], flow.filter(|flow| *flow != Collated)),
                }
            }
            Stage::Transfer(transfer) if transfer.device.is_cuda() => (&[Collated], Some(Collated)),
            Stage::Transfer(_) | Stage::Sleep(_) => (&[Samples, Batches, Collated], *flow),
        };
        if let Some(found) = *flow
            && !takes.contains(&found)
        {
            let wanted: Vec<&str> = takes.iter().map(|flow| flow.in_words()).collect();
            let before = match index.checked_sub(1) {
                Some(before) => format!("`{}` before it", spec.stages[before].kind()),
                None => format!("the source `{}`", spec.source.kind()),
            };
            let subject = match stage {
                Stage::Wasm(wasm) => format!("module `{}`", wasm.module),
                other => format!("`{}`", other.kind()),
            };
            let message = format!(
                "{subject} takes {}, but {before} gives {}: {}",
                wanted.join(" or "),
                found.in_words(),
                remedy(found, takes)
            );
            self.fault(place.clone(), message);
        }
        *flow = gives;
    }
}

/// What to put between a stage that gives `found` and one that takes `takes`.
fn remedy(found: Flow, takes: &[Flow]) -> &'static str {
    match found {
        Flow::Samples if takes == [Flow::Collated] => "put an `aggregate` and a `collate` between them",
        Flow::Samples => "put an `aggregate` between them",
        Flow::Batches if takes == [Flow::Collated] => "put a `collate` between them",
        Flow::Batches if takes.contains(&Flow::Samples) => "put a `disaggregate` between them",
        Flow::Batches | Flow::Collated => "what is collated stays so, put this stage before the `collate`",
    }
}

/// Of stages with one name, all but the first get the number of those before them into their seeds.
fn tell_namesakes_apart(stages: &mut [StagePlan]) {
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
