//! Translates the document into a plan, with all faults that prevent a run.

use std::collections::BTreeMap;
use std::time::Duration;

use super::faults::Faults;
use super::recipe::{recipe, unordered};
use super::{
    AggregatePlan, Fields, Flow, Known, Moving, Plan, SinkPlan, SourcePlan, StageId, StageKind, StagePlan,
    Unit,
};
use crate::fault::{Pointer, SpecFault};
use crate::kinds::{Fails, Settings};
use crate::policy::{Capacity, FailureLimit, Order};
use crate::spec::{Consumer, Name, Spec, Stage};

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
        let fields = known.fields.clone().unwrap_or_else(|| spec.source.rules().fields());
        let host_reader = match &spec.consumer {
            Consumer::Files(_) => Some("files"),
            Consumer::Stream(_) => Some("stream"),
            Consumer::Discard(_) | Consumer::Simulate(_) => None,
        };
        let faults = Faults { known, found: Vec::new(), source_store: spec.source.store(), host_reader };
        let mut check = Check { faults, planned: Vec::new(), routes: 0 };
        let source = check.source(spec);
        let giver = format!("the source `{}`", spec.source.kind());
        let way = Way { flow: (source.flow, true), fields, giver };
        let Way { flow, fields, .. } = check.stages(&spec.stages, &Stretch::whole(), way);
        let mut stages = std::mem::take(&mut check.planned);
        number_namesakes(&mut stages);
        let (flow, is_known) = flow;
        let flow = is_known.then_some(flow.unit);
        if let Consumer::Files(files) = &spec.consumer {
            let place = Pointer::ROOT.key("consumer").key("files").key("store");
            check.faults.store(&files.store, place);
        }
        if let Some(consumer) = host_reader {
            check.takes_collated(spec, consumer, flow);
        }
        let plan = Self {
            name: spec.name.to_string(),
            seed: spec.seed,
            deterministic: spec.deterministic,
            threads: spec.threads.map(|threads| threads.get()),
            tune: spec.tune,
            interval: Duration::from_secs_f64(spec.interval_s.get()),
            buffer_bytes: u64::from(spec.buffer_mib.get()) * MIB,
            source,
            sink: SinkPlan { id: StageId::new(spec.stages.len() + 1, "sink"), queue: spec.sink.queue },
            consumer: spec.consumer.clone(),
            max_failures: spec.max_failures.filter(|limit| {
                // A limit on any stage replaces the default of the run.
                *limit != FailureLimit::Usual || stages.iter().all(|stage| stage.max_failures.is_none())
            }),
            recipe: recipe(spec, &stages),
            unordered: unordered(&stages, spec.tune),
            stages,
            fields,
        };
        check.batches_fit(&plan);
        Draft { plan, faults: check.faults.found }
    }
}

pub(super) struct Check<'a> {
    pub(super) faults: Faults<'a>,
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

/// Items that flow into a stage.
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
        let written = stage.written();
        let settings = written.settings();
        let usual_name = written.usual_name(&self.faults.known).unwrap_or(stage.kind());
        let id = id(settings.name.map_or(usual_name, Name::as_str));
        let kind = stage.plan(&mut self.faults, place);
        let mut planned = StagePlan::new(id, place, kind, &settings, written.fails());
        if in_route == Some(true) {
            planned.order = Order::Input;
        }
        let misfit = in_route.and_then(|keeps_order| planned.kind.rules().misfit_in_route(keeps_order));
        let flow = match misfit {
            Some((found, remedy)) => {
                self.faults.fault(place.clone(), found, remedy);
                (flow.0, false)
            }
            None => self.flow(stage, &giver, place, &planned.kind, flow),
        };
        planned.flow = flow.0;
        let fields = written.fields(&mut self.faults, place, fields);
        self.planned.push(planned);
        Way { flow, fields, giver: format!("`{}` before it", stage.kind()) }
    }

    fn source(&mut self, spec: &Spec) -> SourcePlan {
        let place = Pointer::ROOT.key("source").key(spec.source.kind());
        let traversal = spec.source.traversal(spec.seed);
        if let Some(Err(fault)) = traversal.shard.map(|shard| shard.check()) {
            self.faults.push(SpecFault::new(place.key("shard").key("rank"), fault.to_string()));
        }
        spec.source.check(&mut self.faults, &place);
        let flow = Flow::of_source(spec.source.rules().samples(traversal));
        let mut source = spec.source.clone();
        source.resolve_endings(&mut self.faults, &place);
        let (id, spec, queue) = (StageId::new(0, "src"), source, Capacity::default());
        SourcePlan { id, spec, traversal, queue, flow }
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
        self.faults.fault(place, found, remedy);
    }

    /// Checks that batches whose number of samples is certain would fit into the memory budget if their samples were empty.
    fn batches_fit(&mut self, plan: &Plan) {
        let is_lossless = |stage: &&StagePlan| matches!(stage.fails, Fails::Nothing | Fails::OfABatch);
        for (index, stage) in plan.stages.iter().take_while(is_lossless).enumerate() {
            let Some(Moving::Aggregate(AggregatePlan { size, .. })) = stage.kind.rules().moving() else {
                continue;
            };
            let Some(epoch) = plan.flow_into(index).epoch else { continue };
            let samples = epoch.samples.min(size as u64);
            let mib = samples.saturating_mul(LEAST_SAMPLE_BYTES).div_ceil(MIB);
            if mib * MIB > plan.buffer_bytes {
                let found = format!(
                    "a batch of {samples} samples takes at least {mib} MiB, and `buffer_mib` is {}",
                    plan.buffer_bytes / MIB
                );
                let hint = "use a smaller `size`, or a larger `buffer_mib`";
                self.faults.fault(stage.place.key("size"), found, hint);
            }
        }
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
        let takes = kind.rules().takes();
        let (after, is_certain) = kind.rules().gives(before);
        let is_taken = !is_known || takes.contains(&before.unit);
        if !is_taken {
            let wanted: Vec<&str> = takes.iter().map(|unit| unit.name()).collect();
            let subject = stage.written().subject().unwrap_or_else(|| format!("`{}`", stage.kind()));
            let (wanted, given) = (wanted.join(" or "), before.unit.name());
            let found = format!("{subject} takes {wanted}, but {giver} gives {given}");
            self.faults.fault(place.clone(), found, remedy(before.unit, takes));
        }
        // Later stages are checked against a certain output only, so that a wrong input is reported once instead of once per
        // stage.
        (after, is_certain || (is_known && is_taken))
    }
}

impl StagePlan {
    /// Stage whose results are not known yet.
    pub(super) fn new(
        id: StageId,
        place: &Pointer,
        kind: StageKind,
        settings: &Settings<'_>,
        fails: Fails,
    ) -> Self {
        let Settings { queue, concurrency, order, on_error, max_failures, .. } = *settings;
        let (seeded_as, place, flow) = (id.name().to_owned(), place.clone(), Flow::of_source(None));
        Self { id, place, seeded_as, kind, queue, concurrency, order, on_error, max_failures, fails, flow }
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
