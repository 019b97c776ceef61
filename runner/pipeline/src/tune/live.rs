use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::lock::locked;
use penstock_engine::ports::{Observer, Sums};
use penstock_engine::running::{ResizeFault, RunHandle};
use penstock_types::plan::{LiveSetting, Plan};
use penstock_types::resume::ChangedSetting;
use penstock_types::tune::{SettingChange, SettingNow, Tune};
use penstock_types::verdict::{Diagnosis, PipelineShape};
use serde_json::{Value, json};

use super::tuner::Measurement;
use super::{Step, TuneLimits, Tuner, resizes};
use crate::machine::MachineReading;

/// Settings of a run that can change, and the tuner, which changes them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LiveSettings {
    tuner: Arc<Mutex<Tuner>>,
    /// Verdicts of the run, which follow its settings.
    verdicts: Arc<Mutex<Diagnosis>>,
    /// Number of worker threads that were started.
    threads: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetFault {
    #[error("no setting `{pointer}` can change in a run; these can: {}", .known.join(", "))]
    Unknown { pointer: String, known: Vec<String> },
    #[error("`{pointer}` is {value}, but must be from 1 to {most}")]
    Bounds { pointer: String, value: u32, most: u32 },
    #[error(
        "the run was started with {threads} threads, so it cannot have {value}: submit it again with more"
    )]
    Threads { value: u32, threads: u32 },
    #[error(transparent)]
    Engine(#[from] ResizeFault),
}

impl LiveSettings {
    pub(crate) fn new(
        plan: &Plan,
        threads: u32,
        shape: PipelineShape,
        verdicts: Arc<Mutex<Diagnosis>>,
    ) -> Self {
        let mut plan = plan.clone();
        LiveSetting::Threads.set(&mut plan, threads);
        let tuner = Tuner::new(plan.tune, plan, shape);
        Self { tuner: Arc::new(Mutex::new(tuner)), verdicts, threads }
    }

    /// Changes so far, oldest first.
    pub fn changes(&self) -> Vec<SettingChange> {
        locked(&self.tuner).changes().to_vec()
    }

    /// Settings with the values that hold now.
    pub fn all(&self) -> Vec<SettingNow> {
        let plan = self.plan();
        let settings = LiveSetting::all(&plan).filter_map(|setting| {
            let most = if setting == LiveSetting::Threads { self.threads } else { setting.most() };
            let (pointer, value) = (setting.pointer(&plan), setting.value(&plan)?);
            Some(SettingNow { pointer, id: setting.id(&plan), value, most })
        });
        settings.collect()
    }

    /// Values of the settings without the number of threads, by their places in the document. Those of a trial that is not over have their
    /// earlier values.
    pub fn values(&self) -> BTreeMap<String, u32> {
        let plan = locked(&self.tuner).plan_without_trial();
        let settings = LiveSetting::all(&plan).filter(|setting| *setting != LiveSetting::Threads);
        settings
            .filter_map(|setting| Some((setting.pointer(&plan).to_string(), setting.value(&plan)?)))
            .collect()
    }

    /// What the last window has measured; `None` before the first one ends.
    pub(super) fn latest(&self) -> Option<Measurement> {
        locked(&self.tuner).latest().cloned()
    }

    /// The plan with the settings that hold now.
    pub fn plan(&self) -> Plan {
        locked(&self.tuner).plan().clone()
    }

    /// Settings that differ from those of the document, by their places in it: `plan` is the plan at the start of the run, which had taken
    /// over `before` from an earlier run.
    pub(crate) fn changed(
        &self,
        plan: &Plan,
        before: &BTreeMap<String, ChangedSetting>,
    ) -> BTreeMap<String, ChangedSetting> {
        let now = locked(&self.tuner).plan_without_trial();
        let settings = LiveSetting::all(plan).filter_map(|setting| {
            let (pointer, to) = (setting.pointer(plan).to_string(), setting.value(&now)?);
            let from =
                before.get(&pointer).map_or_else(|| setting.value(plan), |earlier| Some(earlier.from))?;
            (from != to).then_some((pointer, ChangedSetting { from, to }))
        });
        settings.collect()
    }

    /// The plan with new values of settings, by their places in the document.
    pub fn with(&self, values: &BTreeMap<String, u32>) -> Result<Plan, SetFault> {
        Ok(self.checked(self.plan(), values)?.0)
    }

    /// Changes the settings at these places in the document, all or none. `by` says in words who changes them.
    pub fn set(
        &self,
        run: &RunHandle,
        clock: &MonotonicClock,
        values: &BTreeMap<String, u32>,
        by: &str,
    ) -> Result<(), SetFault> {
        let mut tuner = locked(&self.tuner);
        let (plan, changes) = self.checked(tuner.plan().clone(), values)?;
        self.apply(run, &plan, &changes)?;
        let at = clock.now().nanos();
        changes.iter().for_each(|(setting, value)| tuner.on_set(*setting, *value, by, at));
        Ok(())
    }

    fn checked(
        &self,
        mut plan: Plan,
        values: &BTreeMap<String, u32>,
    ) -> Result<(Plan, Vec<(LiveSetting, u32)>), SetFault> {
        let mut changes = Vec::with_capacity(values.len());
        for (pointer, &value) in values {
            let Some(setting) = LiveSetting::at(&plan, pointer) else {
                let known = LiveSetting::all(&plan).map(|setting| setting.pointer(&plan).to_string());
                return Err(SetFault::Unknown { pointer: pointer.clone(), known: known.collect() });
            };
            if !setting.set(&mut plan, value) {
                return Err(SetFault::Bounds { pointer: pointer.clone(), value, most: setting.most() });
            }
            if setting == LiveSetting::Threads && value > self.threads {
                return Err(SetFault::Threads { value, threads: self.threads });
            }
            changes.push((setting, value));
        }
        Ok((plan, changes))
    }

    /// Applies changes that `plan` has already.
    fn apply(&self, run: &RunHandle, plan: &Plan, changes: &[(LiveSetting, u32)]) -> Result<(), ResizeFault> {
        for (setting, value) in changes {
            resizes(plan, *setting, *value, |change| run.resize(change))?;
        }
        locked(&self.verdicts).resize(plan);
        Ok(())
    }
}

/// Passes the sums of a run on to its tuner.
pub(crate) struct TunerFeed(Mutex<Option<Sender<Sums>>>);

impl Observer for TunerFeed {
    fn on_sums(&self, sums: &Sums) {
        let mut sender = locked(&self.0);
        if let Some(to) = sender.as_ref() {
            // The send fails if the tuner has ended, and then no more are needed.
            to.send(sums.clone()).ok();
        }
        if sums.state.is_over() {
            *sender = None;
        }
    }
}

/// What the thread of a tuner needs.
pub(crate) struct TunerWork {
    sums: Receiver<Sums>,
    settings: LiveSettings,
    limits: TuneLimits,
    document: Value,
}

impl TunerWork {
    /// Tuner of a run, and the observer that feeds it; `None` for a run that is not tuned.
    pub(crate) fn of(
        settings: &LiveSettings,
        plan: &Plan,
        cores: u32,
        max_tasks: u64,
    ) -> Option<(Self, Arc<TunerFeed>)> {
        if plan.tune == Tune::Off {
            return None;
        }
        let (to, sums) = mpsc::channel();
        let limits = TuneLimits::of(plan, settings.threads, f64::from(cores), max_tasks);
        let work = Self { sums, settings: settings.clone(), limits, document: document_of(plan) };
        Some((work, Arc::new(TunerFeed(Mutex::new(Some(to))))))
    }

    pub(crate) fn start(self, run: RunHandle, clock: Arc<MonotonicClock>) -> io::Result<JoinHandle<()>> {
        Builder::new().name("tuner".to_owned()).spawn(move || self.work(&run, &clock))
    }

    /// Tunes until the run is over.
    fn work(self, run: &RunHandle, clock: &MonotonicClock) {
        let mut waiting = VecDeque::new();
        let mut machine = MachineReading::now();
        while let Some(sums) = waiting.pop_front().or_else(|| self.sums.recv().ok()) {
            // Sums that came in during a search are of the same window.
            waiting.extend(self.sums.try_iter());
            let mut tuner = locked(&self.settings.tuner);
            if sums.state.is_over() {
                return;
            }
            if !tuner.add(&sums) {
                if tuner.window_is_empty() {
                    machine = MachineReading::now();
                }
                continue;
            }
            let now = MachineReading::now();
            let step = tuner.decide(now.since(&machine));
            machine = now;
            let changes = match step {
                Step::Change(changes) => changes,
                Step::Search(question) => {
                    drop(tuner);
                    let times = question.times(&self.document, &self.limits);
                    let found = question.search(&self.limits, &mut |plan| {
                        // A long search does not delay the end of the run.
                        if run.wait_for(Duration::ZERO) { None } else { times.rate(plan, question.node) }
                    });
                    tuner = locked(&self.settings.tuner);
                    tuner.answer(*question, found, clock.now().nanos())
                }
            };
            if !changes.is_empty()
                && let Err(fault) = self.settings.apply(run, tuner.plan(), &changes)
            {
                tracing::error!("the tuner cannot change a setting: {fault}; this is a defect of Penstock");
                return;
            }
        }
    }
}

/// Document of a run, as far as predictions read it.
pub(super) fn document_of(plan: &Plan) -> Value {
    let mut document = plan.recipe.clone();
    document["consumer"] = json!(plan.consumer);
    document
}
