//! From a document to a run that waits or works.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::manifest::Mode;
use penstock_types::plan::{ModuleFacts, Plan, StageKind};
use penstock_types::run::RunDetail;
use penstock_types::spec::{Spec, Stage, Threads, parse};
use penstock_types::text::{MAX_SHOWN_KEY, printable};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::admission::{self, Cost};
use crate::error::RunsError;
use crate::history::runs::{Removed, StoredDocument};
use crate::history::{
    HistoryError, Known, Layout, LayoutStage, Registered, Repeat, modules, now, runs, transact,
};
use crate::live::LiveRun;
use crate::owner::Message;
use crate::runs::{Runs, apart};
use crate::wire::{Submission, Submitted, ValidQueue, ValidStage, Validation};
use crate::work::Job;
use penstock_pipeline::check_against_known;

/// Longest key that makes a request safe to repeat, in bytes.
const MAX_KEY: usize = 255;
/// Longest time that may be asked for, in seconds: a year.
const MAX_SECONDS: f64 = 366.0 * 86_400.0;
/// Modules that are named to somebody who names one that is not there.
const MAX_SUGGESTED: u32 = 20;
/// How long the sizes of assets are looked up.
const LOOK_AT_ASSETS: Duration = Duration::from_secs(10);
/// How long `stop` waits for a run's end.
const STOP: Duration = Duration::from_secs(3);

/// A document that can run.
pub(crate) struct Checked {
    /// As it was sent.
    document: Value,
    spec: Value,
    pub(crate) plan: Plan,
    pub(crate) cost: Cost,
    layout: Layout,
    /// Digests by what the document calls the modules.
    written: BTreeMap<String, String>,
    /// `name@version`, in the order of stages.
    names: Vec<String>,
    /// Digests by stage id.
    digests: BTreeMap<String, String>,
}

impl Runs {
    /// Checks a document as [`Self::submit`] does, and tells what would run.
    pub async fn validate(&self, document: Bytes) -> Result<Validation, RunsError> {
        let checked = self.check(document).await?;
        let view = self.view();
        let waiting = view.waiting.len();
        let would_wait = admission::would_wait(checked.cost, view.used, &self.0.budget, waiting);
        let flows = flows(&checked.plan, &self.modes(&checked).await?);
        let stages = checked.layout.stages.iter().zip(flows);
        Ok(Validation {
            stages: stages.map(|(stage, (takes, gives))| valid_stage(stage, takes, gives)).collect(),
            queues: checked
                .layout
                .queues
                .iter()
                .map(|queue| ValidQueue {
                    id: queue.id.clone(),
                    label: queue.label.clone(),
                    capacity: queue.capacity,
                })
                .collect(),
            threads: checked.cost.threads,
            memory_mib: checked.cost.memory_mib,
            modules: checked.digests,
            would_wait,
        })
    }

    /// Registers a run of a document. It starts at once if it fits, and waits otherwise.
    pub async fn submit(&self, submission: Submission) -> Result<Submitted, RunsError> {
        let Submission { document, for_s, idempotency_key } = submission;
        if for_s.is_some_and(|for_s| !(for_s > 0.0 && for_s <= MAX_SECONDS)) {
            return Err(RunsError::Refused(
                "`for_s` is a number of seconds above 0, a year at most".to_owned(),
            ));
        }
        let repeat = idempotency_key.map(|key| repeat(key, &document, for_s)).transpose()?;
        if let Some(known) = self.repeated(repeat.as_ref()).await? {
            return Ok(known);
        }
        // Before its turn: stores may be asked, and others do not wait for them.
        let checked = self.check(document).await?;
        let turn = match &repeat {
            Some(_) => Some(self.0.keyed.acquire().await.map_err(|_| RunsError::Closed)?),
            None => None,
        };
        if let Some(known) = self.repeated(repeat.as_ref()).await? {
            return Ok(known);
        }
        let (known, live) = self.register(checked, for_s, repeat, None).await?;
        // Whoever sends the same again finds it from now on.
        drop(turn);
        self.submitted(known, &live).await
    }

    /// Registers a run of the same document again, whose modules are looked up anew.
    pub async fn clone_run(&self, id: &str) -> Result<RunDetail, RunsError> {
        let StoredDocument { document, for_s, .. } = self.stored_document(id).await?;
        let checked = self.check(document.to_string().into()).await?;
        let (known, live) = self.register(checked, for_s, None, Some(id.to_owned())).await?;
        Ok(self.submitted(known, &live).await?.run)
    }

    /// Ends a run where it is, or before it starts, and waits until it is over, but not longer than 3 s.
    pub async fn stop(&self, id: &str) -> Result<RunDetail, RunsError> {
        if self.live(id).is_none() {
            let run = self.detail(id).await?;
            if run.summary.state.is_over() {
                return Ok(run);
            }
        }
        let (reply, answer) = oneshot::channel();
        let (own, messages) = (id.to_owned(), self.0.messages.clone());
        // By way of the writer, which hands runs over to the owner: this one comes there before it is to stop.
        let told = self.history().work(move |_| Ok(messages.try_send(Message::Stop { id: own, reply })));
        told.await??;
        if let Ok(Some(run)) = answer.await {
            let mut view = self.0.view.clone();
            // The view changes with every run that comes or goes.
            let over = view.wait_for(|_| run.is_over());
            // What it is then is told, whether it is over or not.
            tokio::time::timeout(STOP, over).await.ok();
        }
        self.detail(id).await
    }

    /// Removes a run that is over, and all that is kept of it.
    pub async fn delete(&self, id: &str) -> Result<(), RunsError> {
        let alive = || RunsError::Conflict("the run is not over; stop it first".to_owned());
        if self.live(id).is_some() {
            return Err(alive());
        }
        let own = id.to_owned();
        // The row is there before the owner shows the run, so that it alone says whether the run is over.
        match self.history().write(move |transaction| runs::remove(transaction, &own)).await? {
            Removed::Yes => {}
            Removed::NotThere => return Err(RunsError::not_found("run", id)),
            Removed::Alive => return Err(alive()),
        }
        let (workshop, own) = (self.0.workshop.clone(), id.to_owned());
        apart(self, move || {
            workshop.remove_run_folder(&own);
            Ok(())
        })
        .await
    }

    /// Writes a run down and hands it to the owner, unless the key stands for one already.
    async fn register(
        &self,
        checked: Checked,
        for_s: Option<f64>,
        repeat: Option<Repeat>,
        cloned_from: Option<String>,
    ) -> Result<(Known, Arc<LiveRun>), RunsError> {
        let most = self.0.bounds.queued.get() as usize;
        let place = self.0.places.clone().try_acquire_owned().map_err(|_| RunsError::QueueFull { most })?;
        let registered = Registered {
            id: uuid::Uuid::now_v7().to_string(),
            name: checked.plan.name.clone(),
            submitted_at: now(),
            threads: checked.cost.threads,
            memory_mib: checked.cost.memory_mib,
            modules: checked.names,
            digests: checked.digests,
            document: checked.document,
            layout: checked.layout,
            for_s,
            cloned_from,
        };
        let parts = &self.0;
        let live = LiveRun::new(registered, parts.feed.clone(), self.history().clone(), parts.totals.clone());
        let live = Arc::new(live);
        let job = Box::new(Job {
            plan: checked.plan,
            modules: checked.written,
            spec: checked.spec,
            time: for_s.map(Duration::from_secs_f64),
        });
        let join = Message::Join { run: live.clone(), job, cost: checked.cost, place };
        let (own, messages) = (live.clone(), parts.messages.clone());
        // Both in one piece of work: whoever waits for it may go away in between.
        let known = self.history().work(move |connection| {
            let known = transact(connection, |transaction| {
                runs::insert(transaction, &own.registered, repeat.as_ref())
            })?;
            if known == Known::No
                && let Err(error) = messages.try_send(join)
            {
                transact(connection, |transaction| runs::unregister(transaction, own.id()))?;
                return Ok(Err(RunsError::from(error)));
            }
            Ok(Ok(known))
        });
        Ok((known.await??, live))
    }

    /// What became of a registration.
    async fn submitted(&self, known: Known, live: &Arc<LiveRun>) -> Result<Submitted, RunsError> {
        match self.known(known).await? {
            Some(known) => Ok(known),
            None => Ok(Submitted { run: self.detail_of(live).await, is_new: true }),
        }
    }

    /// The run that a repeated submission asks for once more.
    async fn repeated(&self, repeat: Option<&Repeat>) -> Result<Option<Submitted>, RunsError> {
        let Some(repeat) = repeat.cloned() else { return Ok(None) };
        let known = self.history().read(move |connection| runs::find_key(connection, &repeat)).await?;
        self.known(known).await
    }

    /// The run that a key stands for.
    async fn known(&self, known: Known) -> Result<Option<Submitted>, RunsError> {
        match known {
            Known::No => Ok(None),
            Known::Other => Err(RunsError::KeyReused),
            Known::Same(id) => Ok(Some(Submitted { run: self.detail(&id).await?, is_new: false })),
        }
    }

    /// A run that was registered just now: once the owner has seen it, so that it is told what it waits for.
    async fn detail_of(&self, live: &Arc<LiveRun>) -> RunDetail {
        let mut view = self.0.view.clone();
        let seen = view.wait_for(|view| view.runs.contains_key(live.id()) || live.is_over());
        let waiting = match tokio::time::timeout(STOP, seen).await {
            Ok(Ok(view)) => view.waiting.get(live.id()).cloned(),
            // The server ends.
            _ => None,
        };
        live.detail(waiting)
    }

    pub(crate) async fn check(&self, bytes: Bytes) -> Result<Checked, RunsError> {
        let (workshop, budget) = (self.0.workshop.clone(), self.0.budget);
        let checked = self
            .history()
            .read(move |connection| {
                let document = match parse(&bytes) {
                    Ok(document) => document,
                    Err(faults) => return Ok(Err(faults)),
                };
                let mut spec = match Spec::from_value(document.clone()) {
                    Ok(spec) => spec,
                    Err(faults) => return Ok(Err(faults)),
                };
                if spec.threads.is_none() {
                    spec.threads = Threads::new(penstock_pipeline::cores().min(budget.threads));
                }
                let resolved = resolve(connection, &spec)?;
                let mut faults = resolved.faults;
                let plan = match check_against_known(&spec, &resolved.facts, &workshop.stores) {
                    Ok(plan) => plan,
                    Err(more) => {
                        // What is said of modules that are not there is ours to say.
                        let ours: Vec<Pointer> = faults.iter().map(|fault| fault.pointer.clone()).collect();
                        faults.extend(more.into_iter().filter(|fault| !ours.contains(&fault.pointer)));
                        let threads = spec.threads.map_or(1, Threads::get);
                        faults.extend(admission::check_threads(threads, &budget));
                        return Ok(Err(faults));
                    }
                };
                let digests = plan.stages.iter().filter_map(|stage| match &stage.kind {
                    StageKind::Wasm(wasm) => Some((stage.id.to_string(), wasm.digest.clone())),
                    _ => None,
                });
                let names = plan.stages.iter().filter_map(|stage| match &stage.kind {
                    StageKind::Wasm(wasm) => resolved.names.get(&wasm.module).cloned(),
                    _ => None,
                });
                let written = resolved
                    .names
                    .keys()
                    .map(|written| (written.clone(), resolved.facts[written].digest.clone()));
                Ok(Ok(Checked {
                    document,
                    spec: serde_json::to_value(&spec)?,
                    cost: Cost::default(),
                    layout: Layout::of(&plan),
                    written: written.collect(),
                    names: names.collect(),
                    digests: digests.collect(),
                    plan,
                }))
            })
            .await?;
        let mut checked = checked.map_err(in_order)?;
        let assets = self.assets_mib(&checked.plan).await?;
        let mut faults = admission::check(&checked.plan, assets, &self.0.budget);
        faults.extend(admission::check_bounds(&checked.plan, &self.0.bounds));
        faults.extend(admission::check_assets(&checked.plan, assets, &self.0.bounds));
        if !faults.is_empty() {
            return Err(in_order(faults));
        }
        checked.cost = Cost::of(&checked.plan, assets);
        Ok(checked)
    }

    /// Size of all objects that a plan's modules may ask for, in MiB, as far as their stores tell it.
    async fn assets_mib(&self, plan: &Plan) -> Result<u64, RunsError> {
        let mut bytes = 0_u64;
        let look = async {
            for stage in &plan.stages {
                let StageKind::Wasm(wasm) = &stage.kind else { continue };
                for asset in wasm.assets.values() {
                    let Some(store) = self.0.workshop.stores.get(&asset.store) else { continue };
                    // One that is not there ends the run before it starts, with a reason.
                    let size = store.size(asset.key.as_str().into()).await.unwrap_or(0);
                    bytes = bytes.saturating_add(size);
                }
            }
        };
        if tokio::time::timeout(LOOK_AT_ASSETS, look).await.is_err() {
            let told = "the stores do not tell the sizes of all assets in time; try again, or use fewer";
            return Err(RunsError::Busy(told.to_owned()));
        }
        Ok(bytes.div_ceil(1 << 20))
    }

    /// Modes of the modules, by what the document calls them.
    async fn modes(&self, checked: &Checked) -> Result<BTreeMap<String, Mode>, RunsError> {
        let written: Vec<String> = checked.written.keys().cloned().collect();
        let read = move |connection: &rusqlite::Connection| {
            let mut modes = BTreeMap::new();
            for written in written {
                if let Some(version) = modules::resolve(connection, &written)? {
                    modes.insert(written, version.report.manifest.mode);
                }
            }
            Ok(modes)
        };
        Ok(self.history().read(read).await?)
    }

    pub(crate) async fn stored_document(&self, id: &str) -> Result<StoredDocument, RunsError> {
        let own = id.to_owned();
        let found = self.history().read(move |connection| runs::document(connection, &own)).await?;
        found.ok_or_else(|| RunsError::not_found("run", id))
    }
}

/// Faults as somebody reads them who sent the document: in its order, and without what only the operator can do.
fn in_order(mut faults: Vec<SpecFault>) -> RunsError {
    let key = |fault: &SpecFault| {
        let place = fault.pointer.to_string();
        place.split('/').map(|part| (part.parse::<u64>().ok(), part.to_owned())).collect::<Vec<_>>()
    };
    faults.sort_by_cached_key(key);
    for fault in &mut faults {
        if let Some(place) = fault.message.find("; `--store ") {
            fault.message.truncate(place);
        }
    }
    RunsError::Invalid(faults)
}

/// What a document's modules are.
pub(crate) struct Resolved {
    /// What is known of them, by what the document calls them.
    pub(crate) facts: BTreeMap<String, ModuleFacts>,
    /// `name@version`, by what the document calls them.
    pub(crate) names: BTreeMap<String, String>,
    /// Those that are not there.
    faults: Vec<SpecFault>,
}

/// Looks up the modules that a document names.
pub(crate) fn resolve(connection: &rusqlite::Connection, spec: &Spec) -> Result<Resolved, HistoryError> {
    let mut facts = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut faults = Vec::new();
    for (place, stage) in spec.stages.iter().enumerate() {
        let Stage::Wasm(wasm) = stage else { continue };
        let written = wasm.module.as_str();
        if names.contains_key(written) {
            continue;
        }
        match modules::resolve(connection, written)? {
            Some(version) => {
                let report = version.report;
                names.insert(written.to_owned(), format!("{}@{}", version.name, version.version));
                let own =
                    ModuleFacts { name: version.name, digest: report.digest, manifest: report.manifest };
                facts.insert(written.to_owned(), own);
            }
            None => {
                let place = Pointer::ROOT.key("stages").index(place).key("wasm").key("module");
                faults.push(SpecFault::new(place, unknown(connection, written)?));
            }
        }
    }
    Ok(Resolved { facts, names, faults })
}

/// What is said of a module that is not there.
fn unknown(connection: &rusqlite::Connection, written: &str) -> Result<String, HistoryError> {
    if let Some((name, version)) = written.split_once('@')
        && modules::count_of(connection, name)? > 0
    {
        let version = printable(version, MAX_SHOWN_KEY);
        return Ok(format!("the module `{name}` has no version or alias `{version}`"));
    }
    let (names, _) = modules::names(connection, None, "", MAX_SUGGESTED)?;
    let known: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
    let written = printable(written, MAX_SHOWN_KEY);
    Ok(format!("there is no module `{written}`: known are {known}; upload it first"))
}

/// What each stage takes and gives.
fn flows(plan: &Plan, modes: &BTreeMap<String, Mode>) -> Vec<(&'static str, &'static str)> {
    const SAMPLES: &str = "samples";
    const BATCHES: &str = "batches";
    let mut flow = SAMPLES;
    let stage = |stage: &penstock_types::plan::StagePlan| {
        let takes = flow;
        flow = match &stage.kind {
            StageKind::Aggregate { .. } => BATCHES,
            StageKind::Disaggregate => SAMPLES,
            StageKind::Collate => "collated batches",
            StageKind::Wasm(wasm) => match modes.get(&wasm.module) {
                Some(Mode::Batch) => BATCHES,
                Some(Mode::Sample | Mode::Stateful) => SAMPLES,
                None => flow,
            },
            StageKind::Fetch { .. } | StageKind::Transfer { .. } | StageKind::Sleep(_) => flow,
        };
        (takes, flow)
    };
    plan.stages.iter().map(stage).collect()
}

fn repeat(key: String, document: &Bytes, for_s: Option<f64>) -> Result<Repeat, RunsError> {
    if key.is_empty() || key.len() > MAX_KEY || !key.bytes().all(|byte| (b'!'..=b'~').contains(&byte)) {
        return Err(RunsError::Refused(format!(
            "an Idempotency-Key has 1 to {MAX_KEY} printable ASCII characters and no blanks"
        )));
    }
    let request =
        Sha256::new().chain_update(document).chain_update(for_s.map_or([0; 8], f64::to_le_bytes)).finalize();
    Ok(Repeat { key, request: request.into() })
}

fn valid_stage(stage: &LayoutStage, takes: &str, gives: &str) -> ValidStage {
    ValidStage {
        id: stage.id.clone(),
        label: stage.label.clone(),
        kind: stage.kind,
        concurrency: stage.concurrency,
        takes: takes.to_owned(),
        gives: gives.to_owned(),
    }
}
