//! Submission: a document becomes a waiting or active run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_engine::ports::StopFlag;
use penstock_types::plan::{ModuleFacts, Plan};
use penstock_types::resume::{Token, TokenFault};
use penstock_types::run::{RunDetail, RunId, RunState, RunSummary};
use penstock_types::spec::{Spec, Threads, parse};
use penstock_types::tags::Tags;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::admission::{self, Cost, check_bounds};
use crate::error::RunsError;
use crate::feed::Event;
use crate::history::{HistoryError, Layout, Registered, Repeat, freeing, modules, now, runs, transact};
use crate::letters::Waited;
use crate::live::{ENDED, LiveRun};
use crate::owner::{Message, Waiting};
use crate::runs::{Runs, apart, turn};
use crate::sharing::HeldAmount;
use crate::wire::{ModuleVersion, RunSettings, RunSpec, Submission, Submitted, ValidStage, Validation};
use crate::work::Job;
use crate::workshop::Workshop;
use penstock_pipeline::tune::SetFault;
use penstock_pipeline::{Context, NamedModules, Outlets, Prepared, StdModule, prepare, shape_of};

/// Maximum length of an `Idempotency-Key`, in bytes.
const MAX_KEY: usize = 255;
/// Maximum `for_s`, in seconds: a year.
const MAX_SECONDS: f64 = 366.0 * 86_400.0;
/// Maximum number of known modules that the message about an unknown module lists.
const MAX_SUGGESTED: u32 = 20;
/// Time limit for reading the sizes of assets.
const LOOK_AT_ASSETS: Duration = Duration::from_secs(10);
/// Disk space that a new run reserves in addition to its document, in bytes.
const RUN_BYTES: u64 = 16 << 10;
/// Maximum time that `stop` waits for the end of a run.
const STOP: Duration = Duration::from_secs(3);

/// Run from which a new run stems; none for a submitted document.
#[derive(Default)]
struct Origin {
    cloned_from: Option<RunId>,
    resumes: Option<RunId>,
    is_forced: bool,
}

/// Run that a new one continues from its last state.
struct Continued {
    id: RunId,
    has_completed: bool,
    /// Set if differences of modules and data are ignored.
    force: bool,
}

pub(crate) struct Checked {
    sent: RunSpec,
    /// Document with all defaults filled in, as JSON.
    spec: String,
    pub(crate) prepared: Prepared<()>,
    pub(crate) cost: Cost,
    layout: Layout,
    /// Modules as `name@version`, in the order of stages.
    names: Vec<String>,
    /// State from which the run begins, if it continues another one. A waiting run holds neither the text nor the parsed state, which
    /// takes several times as much memory: both are read again when the run starts.
    begins_at: Option<String>,
}

impl Runs {
    /// Checks a document as [`Self::submit`] does, and describes the run without registering it.
    pub async fn validate(&self, document: Bytes) -> Result<Validation, RunsError> {
        let checked = self.check(document).await?;
        let would_wait = self.view().why_it_waits(self.client(), checked.cost);
        let plan = &checked.prepared.plan;
        let stages = checked.layout.stages.iter().zip(&plan.stages).enumerate();
        let stages = stages.map(|(index, (stage, planned))| ValidStage {
            id: stage.id.clone(),
            label: stage.label.clone(),
            kind: stage.kind,
            concurrency: stage.concurrency,
            takes: plan.flow_into(index).unit.name().to_owned(),
            gives: planned.flow.unit.name().to_owned(),
        });
        Ok(Validation {
            stages: stages.collect(),
            queues: checked.layout.queues,
            threads: checked.cost.threads,
            memory_mib: checked.cost.memory_mib,
            modules: checked.sent.modules,
            would_wait,
        })
    }

    /// Registers a run of a document. The run starts at once if it fits into the budget, and waits otherwise.
    pub async fn submit(&self, submission: Submission) -> Result<Submitted, RunsError> {
        let Submission { document, for_s, idempotency_key, tags } = submission;
        RunsError::refuse_unless(for_s.is_none_or(|for_s| for_s > 0.0 && for_s <= MAX_SECONDS), || {
            "`for_s` must be a number of seconds above 0 and at most a year".to_owned()
        })?;
        let repeat =
            idempotency_key.map(|key| repeat((self.token(), key), &document, for_s, &tags)).transpose()?;
        if let Some(known) = self.repeated(repeat.as_ref()).await? {
            return Ok(known);
        }
        // The document is checked before the permit is taken: slow requests to stores must not delay other submissions.
        let checked = self.check(document).await?;
        let turn = match &repeat {
            Some(_) => Some(turn(&self.0.permits.keyed, self.client(), "submissions with a key").await?),
            None => None,
        };
        if let Some(known) = self.repeated(repeat.as_ref()).await? {
            return Ok(known);
        }
        self.register(checked, (for_s, tags), repeat.zip(turn), Origin::default()).await
    }

    /// Registers a new run of the document of a run; the names of modules are resolved again.
    pub async fn clone_run(&self, id: &RunId) -> Result<RunDetail, RunsError> {
        let (checked, for_s) = self.check_again(id, None).await?;
        let origin = Origin { cloned_from: Some(id.clone()), ..Origin::default() };
        Ok(self.register(checked, (for_s, Tags::default()), None, origin).await?.run)
    }

    /// Registers a new run that continues a run that has ended, from its last state. With `force`, a difference of modules or data is
    /// ignored.
    pub async fn resume(&self, id: &RunId, force: bool) -> Result<RunDetail, RunsError> {
        let RunSummary { state: ended_as, tags, .. } = self.detail(id).await?.summary;
        if !ended_as.is_over() || self.live(id).is_some() {
            return Err(RunsError::Conflict("the run has not ended; stop it first".to_owned()));
        }
        let has_completed = ended_as == RunState::Completed;
        let continued = Continued { id: id.clone(), has_completed, force };
        let (checked, for_s) = self.check_again(id, Some(continued)).await?;
        let origin = Origin { resumes: Some(id.clone()), is_forced: force, cloned_from: None };
        Ok(self.register(checked, (for_s, tags), None, origin).await?.run)
    }

    /// Stops an active or waiting run, and waits up to 3 s for its end.
    pub async fn stop(&self, id: &RunId) -> Result<RunDetail, RunsError> {
        if self.live(id).is_none() {
            let run = self.detail(id).await?;
            if run.summary.state.is_over() {
                return Ok(run);
            }
        }
        let (reply, answer) = oneshot::channel();
        let (own, messages) = (id.clone(), self.0.messages.clone());
        // The stop is sent by the writer thread, which also hands new runs to the owner, so that the owner gets the run before
        // the stop.
        let sent = self.history().work(move |_| Ok(messages.try_send(Message::Stop(own, reply))));
        sent.await??;
        if let Ok(Some(run)) = answer.await {
            let mut view = self.0.view.clone();
            // The owner publishes a new view when it removes the run, which wakes this wait.
            let over = view.wait_for(|_| run.is_over());
            // After the timeout, the run is returned in its current state.
            tokio::time::timeout(STOP, over).await.ok();
        }
        self.detail(id).await
    }

    /// Removes a run that has ended, with its history and dead letters.
    pub async fn delete(&self, id: &RunId) -> Result<(), RunsError> {
        let alive = || RunsError::Conflict("the run has not ended; stop it first".to_owned());
        if self.live(id).is_some() {
            return Err(alive());
        }
        let own = id.clone();
        // The row of the run decides whether it has ended: the row of a new run is written before the owner publishes the run.
        let remove = move |transaction: &rusqlite::Transaction<'_>| {
            freeing(transaction, || runs::remove(transaction, &own))
        };
        let (is_removed, freed) = self.history().write(remove).await?;
        if !is_removed {
            self.detail(id).await?;
            return Err(alive());
        }
        self.0.workshop.disk.give_back(freed);
        let (workshop, own) = (self.0.workshop.clone(), id.clone());
        apart(self, move || {
            workshop.remove_run_folder(&own);
            Ok(())
        })
        .await
    }

    /// Replaces the tags of a run in any state.
    pub async fn set_tags(&self, id: &RunId, tags: Tags) -> Result<Tags, RunsError> {
        let (own, new, live) = (id.clone(), tags.clone(), self.live(id));
        let stored = self.history().work(move |connection| {
            let is_known = transact(connection, |transaction| runs::set_tags(transaction, &own, &new))?;
            // The tags are set on the writer thread, so that concurrent changes are stored and shown in the same order.
            live.inspect(|live| live.set_tags(new));
            Ok(is_known)
        });
        if !stored.await? {
            return Err(RunsError::not_found("run", id));
        }
        self.0.feed.tell(id, Event::Runs(self.detail(id).await?.summary));
        Ok(tags)
    }

    /// Changes settings of a run that goes on. Memory that it needs beyond what it was admitted with is taken from the budget until its end.
    pub async fn set_settings(
        &self,
        id: &RunId,
        settings: BTreeMap<String, u32>,
    ) -> Result<RunSettings, RunsError> {
        let Some(live) = self.live(id).filter(|live| !live.has_ended()) else {
            self.detail(id).await?;
            return Err(RunsError::Conflict(ENDED.to_owned()));
        };
        let waits =
            || RunsError::Conflict("the run has not started yet; its settings can change then".to_owned());
        let plan = live.with_settings(&settings).ok_or_else(waits)??;
        let bounds = &self.0.workshop.settings.bounds;
        RunsError::refuse_faults(check_bounds(&plan, bounds))?;
        let more_mib = live.memory_beyond(&plan);
        let part = match more_mib {
            0 => None,
            memory_mib => Some(self.take(Cost { memory_mib, ..Cost::default() }, "the change").await?),
        };
        live.set_settings(&settings, part, bounds, self.token()).ok_or_else(waits)??;
        self.run_settings(id).await
    }

    /// Settings of a run that can change while it goes on, and their changes.
    pub async fn run_settings(&self, id: &RunId) -> Result<RunSettings, RunsError> {
        if let Some(settings) = self.live(id).and_then(|live| live.settings()) {
            return Ok(settings);
        }
        let snapshot = self.detail(id).await?.snapshot;
        let changes = snapshot.map_or_else(Vec::new, |snapshot| snapshot.changes);
        Ok(RunSettings { changes, ..RunSettings::default() })
    }

    /// Stores a new run and hands it to the owner, unless an earlier run was submitted with the same key. A submission with a key
    /// holds its turn until it is stored: from then on, a repeated submission finds the run.
    async fn register(
        &self,
        checked: Checked,
        (for_s, tags): (Option<f64>, Tags),
        repeat: Option<(Repeat, HeldAmount)>,
        origin: Origin,
    ) -> Result<Submitted, RunsError> {
        let (repeat, turn) = repeat.unzip();
        let (place, open) = self.places()?;
        let Origin { cloned_from, resumes, is_forced } = origin;
        let state_bytes = checked.begins_at.as_ref().map_or(0, String::len);
        self.0.workshop.take_room(RUN_BYTES + (checked.spec.len() + state_bytes) as u64)?;
        let registered = Registered {
            summary: RunSummary {
                id: uuid::Uuid::now_v7().to_string().into(),
                name: checked.prepared.plan.name.clone(),
                submitted_at: now(),
                threads: checked.cost.threads,
                memory_mib: checked.cost.memory_mib,
                modules: checked.names,
                tags,
                ..RunSummary::default()
            },
            layout: checked.layout,
            for_s,
            cloned_from,
            resumes,
        };
        let (feed, totals) = (self.0.feed.clone(), self.0.totals.clone());
        let live = Arc::new(LiveRun::new(registered, feed, self.history().clone(), totals));
        let job = Job { prepared: checked.prepared, spec: checked.spec, is_forced };
        let (client, cost, run) = (self.client().clone(), checked.cost, live.clone());
        let join = Message::Join(Box::new(Waiting { client, cost, run, job, place, open }));
        let (own, spec, messages) = (live.clone(), checked.sent, self.0.messages.clone());
        let begins_at = checked.begins_at;
        // The insertion and the message are one piece of work, because the future may be dropped between two awaits.
        let known = self.history().work(move |connection| {
            let known = transact(connection, |transaction| {
                runs::insert(transaction, &own.registered, &spec, begins_at.as_deref(), repeat.as_ref())
            })?;
            if matches!(known, Ok(None))
                && let Err(error) = messages.try_send(join)
            {
                transact(connection, |transaction| runs::unregister(transaction, own.id()))?;
                return Ok(Err(RunsError::from(error)));
            }
            Ok(known)
        });
        let known = known.await??;
        drop(turn);
        match self.known(known).await? {
            Some(known) => Ok(known),
            None => Ok(Submitted { run: self.detail_of(&live).await, is_new: true }),
        }
    }

    /// Takes the permits of a new run: one of the limit on waiting runs, and one of the limit on waiting and active runs.
    fn places(&self) -> Result<(HeldAmount, HeldAmount), RunsError> {
        let (client, bounds) = (self.client(), &self.settings().clients);
        let open = self.0.permits.open.try_take(client).map_err(|shares| {
            RunsError::Quota(format!(
                "`{client}` has {} waiting or active runs, which is the limit of one client (`limits.clients.runs`); stop one, or \
                 try again when one has ended",
                shares.held(client).parts
            ))
        })?;
        let place = self.0.permits.waiting.try_take(client).map_err(|shares| {
            let ([most], [free], has) = (shares.whole(), shares.free(), shares.held(client).parts);
            if free == 0 {
                return RunsError::QueueFull { most };
            }
            RunsError::Quota(format!(
                "`{client}` has {has} waiting runs, which is the limit of one client now: {} % of the places for waiting runs that other clients do not use, {} of {most} (`limits.clients.share_percent`, `limits.runs.queued`); stop one, or try again when one has started",
                bounds.share_percent.get(),
                has + free
            ))
        })?;
        Ok((place, open))
    }

    async fn repeated(&self, repeat: Option<&Repeat>) -> Result<Option<Submitted>, RunsError> {
        let Some(repeat) = repeat.cloned() else { return Ok(None) };
        let known = self.history().read(move |connection| runs::find_key(connection, &repeat)).await??;
        self.known(known).await
    }

    async fn known(&self, known: Option<RunId>) -> Result<Option<Submitted>, RunsError> {
        let Some(run) = known else { return Ok(None) };
        Ok(Some(Submitted { run: self.detail(&run).await?, is_new: false }))
    }

    /// Returns the detail of a new run once the owner has received the run, so that the detail includes the reason for waiting.
    async fn detail_of(&self, live: &Arc<LiveRun>) -> RunDetail {
        let mut view = self.0.view.clone();
        let seen = view.wait_for(|view| view.runs.contains_key(live.id()) || live.is_over());
        let waiting = match tokio::time::timeout(STOP, seen).await {
            Ok(Ok(view)) => view.waiting.get(live.id()).cloned(),
            // The server is shutting down.
            _ => None,
        };
        live.detail(waiting)
    }

    /// Checks a document on a separate thread rather than on a reader of the history, because it evaluates schemas of uploaded
    /// modules. The work is bounded in size, and stops early if the future is dropped.
    pub(crate) async fn check(&self, bytes: Bytes) -> Result<Checked, RunsError> {
        self.check_from(bytes, None).await
    }

    /// The same for the document of a run that continues another one, whose state is checked, too.
    async fn check_from(&self, bytes: Bytes, continued: Option<Continued>) -> Result<Checked, RunsError> {
        let turn = turn(&self.0.permits.checks, self.client(), "checks of documents").await?;
        let waited = Waited(StopFlag::default());
        let (workshop, budget, bounds) =
            (self.0.workshop.clone(), self.settings().budget, self.settings().bounds);
        let (stores, left) = (self.allowed_stores().clone(), waited.0.clone());
        let (document, spec, prepared, versions, begins_at, plan) = apart(self, move || {
            // The permit is held until the work has ended, even if the client has disconnected.
            let _turn = turn;
            let go_on = || if left.is_set() { Err(RunsError::Closed) } else { Ok(()) };
            let document = parse(&bytes).map_err(RunsError::invalid)?;
            drop(bytes);
            go_on()?;
            let mut spec = Spec::from_value(document.clone()).map_err(RunsError::invalid)?;
            if spec.threads.is_none() {
                spec.threads = Threads::new(penstock_pipeline::cores().min(budget.threads));
            }
            go_on()?;
            let (modules, versions) =
                workshop.history.read_blocking(|connection| resolve(connection, &spec))?;
            go_on()?;
            let admit = |plan: &Plan| {
                let mut faults = admission::check(plan, 0, &budget);
                faults.extend(admission::check_bounds(plan, &bounds));
                faults
            };
            let context = Context {
                runtime: &workshop.runtime,
                stores: &stores,
                modules: &modules,
                fields: None,
                outlets: Outlets { writes_anywhere: false, takes_ops: false, ..Outlets::ALL },
                bounds: &admit,
            };
            let prepared = prepare(&spec, &context).map_err(RunsError::invalid)?;
            go_on()?;
            let continued = continued.map(|continued| continued.state(&workshop, &prepared)).transpose()?;
            // A resumed run begins with the settings that the earlier one had at its end.
            let (begins_at, plan) = match continued {
                Some((state, plan)) => (Some(state), plan),
                None => (None, prepared.plan.clone()),
            };
            Ok((document, spec, prepared, versions, begins_at, plan))
        })
        .await?;
        // The sizes of assets are requested from stores only if the document has no other faults.
        let assets_mib = self.assets_mib(&spec).await?;
        let mut faults = check_bounds(&plan, &bounds);
        faults.extend(admission::check(&plan, assets_mib, &budget));
        faults.extend(admission::check_assets(&plan, assets_mib, &bounds));
        RunsError::refuse_faults(faults)?;
        let guests = || admission::wasm_stages(&prepared.plan);
        let modules = guests().map(|(stage, wasm)| (stage.id.to_string(), wasm.digest.clone())).collect();
        Ok(Checked {
            sent: RunSpec { document, modules },
            spec: serde_json::to_string(&spec).map_err(HistoryError::from)?,
            cost: Cost::of(&plan, assets_mib),
            layout: Layout::of(&plan, shape_of(&plan, self.allowed_stores())),
            names: guests().filter_map(|(_, wasm)| versions.get(&wasm.module).cloned()).collect(),
            prepared,
            begins_at,
        })
    }

    /// Checks the document of a run again; also returns the `for_s` of its submission.
    async fn check_again(
        &self,
        id: &RunId,
        continued: Option<Continued>,
    ) -> Result<(Checked, Option<f64>), RunsError> {
        let (stored, for_s) = self.find("run", id, runs::document).await?;
        // The document is held as text while this request waits for a permit, because a JSON tree takes more memory.
        let document = Bytes::from(stored.document.to_string());
        drop(stored);
        Ok((self.check_from(document, continued).await?, for_s))
    }

    /// Total size of the assets of a document, in MiB; an asset whose size a store does not report counts as empty.
    async fn assets_mib(&self, spec: &Spec) -> Result<u64, RunsError> {
        let mut bytes = 0_u64;
        let look = async {
            for wasm in spec.modules() {
                for asset in wasm.assets.values() {
                    let Some(store) = self.allowed_stores().get(asset.store.as_str()) else { continue };
                    // An asset that is missing counts as empty here; it fails the run later, before the start, with a message of
                    // its own.
                    let size =
                        store.version(asset.key.as_str().into()).await.map_or(0, |version| version.size);
                    bytes = bytes.saturating_add(size);
                }
            }
        };
        if tokio::time::timeout(LOOK_AT_ASSETS, look).await.is_err() {
            let message =
                "the stores did not report the sizes of all assets in time; try again, or use fewer assets";
            return Err(RunsError::Busy(message.to_owned()));
        }
        Ok(bytes.div_ceil(1 << 20))
    }
}

impl Continued {
    /// State with which a run of this pipeline begins, as text, and the plan with the settings of that state. Its size is chosen by the client, so it is read and made only on a
    /// thread that may block, and by few requests at a time.
    fn state(self, workshop: &Workshop, prepared: &Prepared<()>) -> Result<(String, Plan), RunsError> {
        let refused = |why: &str| RunsError::Conflict(format!("the run cannot be resumed: {why}"));
        let stored = workshop.history.read_blocking(|connection| runs::state(connection, &self.id))?;
        let state = match stored {
            Some(Some(state)) => Ok(state),
            Some(None) if self.has_completed => Err("it has completed, and nothing is left to do"),
            Some(None) => Err("its state was too large to be kept; clone it instead"),
            None => Err("it never started, or an earlier version of the server ran it; clone it instead"),
        };
        let state = state.map_err(refused)?;
        let mut resumed = prepared.clone();
        let done = Token::read(state.as_bytes()).and_then(|state| resumed.resume(state, self.force));
        done.map_err(|fault| match fault {
            TokenFault::Differs(parts) => RunsError::Differs(parts),
            fault => refused(&fault.to_string()),
        })?;
        drop(state);
        // Kept from the start: the run can be resumed although it may never begin.
        Ok((resumed.fresh_state().to_json(), resumed.plan))
    }
}

/// Modules that the names in a document refer to, and `name@version` of each module by its name in the document.
type Resolved = (NamedModules<()>, BTreeMap<String, String>);

fn resolve(connection: &rusqlite::Connection, spec: &Spec) -> Result<Resolved, HistoryError> {
    let (mut names, _) = modules::names(connection, None, "", MAX_SUGGESTED)?;
    names.retain(|name| StdModule::find(name).is_none());
    names.extend(StdModule::all().iter().map(|module| module.name().to_owned()));
    let mut modules = NamedModules { found: BTreeMap::new(), names };
    let mut versions = BTreeMap::new();
    for module in spec.named_modules() {
        let written = module.as_str();
        if modules.found.contains_key(written) {
            continue;
        }
        if let Some(ModuleVersion { name, version, report, .. }) = modules::resolve(connection, written)? {
            versions.insert(written.to_owned(), format!("{name}@{version}"));
            let facts = ModuleFacts { name, digest: report.digest, manifest: report.manifest };
            modules.found.insert(written.to_owned(), (facts, ()));
        } else if let Some((name, _)) = written.split_once('@')
            && modules::count_of(connection, name)? > 0
        {
            modules.names.push(name.to_owned());
        }
    }
    Ok((modules, versions))
}

fn repeat(
    (token, key): (&str, String),
    document: &Bytes,
    for_s: Option<f64>,
    tags: &[String],
) -> Result<Repeat, RunsError> {
    let is_printable = key.bytes().all(|byte| byte.is_ascii_graphic());
    RunsError::refuse_unless((1..=MAX_KEY).contains(&key.len()) && is_printable, || {
        format!("`Idempotency-Key` must have 1 to {MAX_KEY} printable ASCII characters and no blanks")
    })?;
    let mut request =
        Sha256::new().chain_update(document).chain_update(for_s.map_or([0; 8], f64::to_le_bytes));
    // Without tags, the digest is the same as in earlier versions, so that keys used before an update still match their requests.
    tags.iter().for_each(|tag| request.update([tag.as_bytes(), b","].concat()));
    Ok(Repeat { token: token.to_owned(), key, request: request.finalize().into() })
}

impl From<SetFault> for RunsError {
    fn from(fault: SetFault) -> Self {
        Self::Refused(fault.to_string())
    }
}
