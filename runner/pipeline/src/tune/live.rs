#[cfg(test)]
mod tests;

use std::cmp::Reverse;
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
use penstock_types::policy::Order;
use penstock_types::profile::Profile;
use penstock_types::resume::ChangedSetting;
use penstock_types::spec::Consumer;
use penstock_types::text::shown;
use penstock_types::tune::{SettingChange, SettingNow, Tune};
use penstock_types::verdict::{Diagnosis, PipelineShape};
use serde_json::{Value, json};

use super::tuner::{MAX_CHANGES, MEMORY_SHORT, Measurement};
use super::{Step, TuneLimits, Tuner, resizes};
use crate::machine::{MachineReading, waited_for_memory};
use crate::prepare::Prepared;

/// Maximum number of settings that a refusal names.
const NAMED: usize = 8;
/// Shortest time over which waits for memory are judged, in nanoseconds.
const MEMORY_SPAN: u64 = 750_000_000;

/// Settings of a run that can change, and the tuner, which changes them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LiveSettings {
    tuner: Arc<Mutex<Tuner>>,
    /// Verdicts of the run, which follow its settings.
    verdicts: Arc<Mutex<Diagnosis>>,
    /// Number of worker threads that were started.
    threads: u32,
    /// The plan at the start of the run.
    start: Arc<Plan>,
    /// Settings that `start` has from an earlier run, by their places in the document.
    earlier: Arc<BTreeMap<String, ChangedSetting>>,
    profile: Option<Arc<Profile>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetFault {
    #[error("no setting `{}` can change in a run; {}", shown(pointer), these(known))]
    Unknown { pointer: String, known: Vec<String> },
    #[error("`{pointer}` is {value}, but must be from 1 to {most}")]
    Bounds { pointer: String, value: u32, most: u32 },
    #[error(
        "the run was started with {threads} threads, so it cannot have {value}: submit it again with more"
    )]
    Threads { value: u32, threads: u32 },
    #[error(
        "`{pointer}` stays 1, because `files` writes the same batches in each run, and results of several tasks \
         come in any order: begin with `\"order\": \"input\"`"
    )]
    Order { pointer: String },
    #[error(
        "the run would have more than {MAX_CHANGES} changes of settings, each of which is recorded: submit it \
         again with the settings that it is to have"
    )]
    TooMany,
    #[error(transparent)]
    Engine(#[from] ResizeFault),
}

/// Names some of the settings that can change, the nearest ones to what was asked for first.
fn these(known: &[String]) -> String {
    let named: Vec<String> = known.iter().take(NAMED).map(|pointer| format!("`{pointer}`")).collect();
    match known.len().saturating_sub(NAMED) {
        0 => format!("these can: {}", named.join(", ")),
        more => format!("{} and {more} others can", named.join(", ")),
    }
}

impl LiveSettings {
    pub(crate) fn new(
        prepared: &Prepared,
        threads: u32,
        shape: PipelineShape,
        verdicts: Arc<Mutex<Diagnosis>>,
        profile: Option<Arc<Profile>>,
    ) -> Self {
        let (start, earlier) = (Arc::new(prepared.plan.clone()), Arc::new(prepared.changed.clone()));
        let mut plan = prepared.plan.clone();
        LiveSetting::Threads.set(&mut plan, threads);
        let tuner = Tuner::new(plan.tune, plan, shape).with_earlier(&earlier);
        Self { tuner: Arc::new(Mutex::new(tuner)), verdicts, threads, start, earlier, profile }
    }

    /// Slowdown of the stages by each other, if it was measured.
    pub(super) fn profile(&self) -> Option<&Profile> {
        self.profile.as_deref()
    }

    /// True once the run was measured for long enough to judge its settings.
    pub(super) fn has_judged(&self) -> bool {
        locked(&self.tuner).has_judged()
    }

    /// Changes so far, oldest first.
    pub fn changes(&self) -> Vec<SettingChange> {
        locked(&self.tuner).changes().to_vec()
    }

    /// Settings with the values that hold now.
    pub fn all(&self) -> Vec<SettingNow> {
        let plan = self.plan();
        let settings = LiveSetting::all(&plan).filter_map(|setting| {
            let most = match setting {
                LiveSetting::Threads => self.threads,
                setting if is_ordered_by_one(&plan, setting) => 1,
                setting => setting.most(),
            };
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

    /// Measures what changes by users bring in a run that is not tuned; a tuner measures them itself.
    pub(crate) fn measure(&self, sums: &Sums) {
        let mut tuner = locked(&self.tuner);
        if tuner.mode() == Tune::Off && tuner.add(sums) {
            tuner.decide(None);
        }
    }

    /// Measurement of the last window with settings that were kept; `None` before the first one ends.
    pub(super) fn latest(&self) -> Option<Measurement> {
        locked(&self.tuner).latest().cloned()
    }

    /// The plan with the settings that hold now.
    pub fn plan(&self) -> Plan {
        locked(&self.tuner).plan().clone()
    }

    /// Settings that differ from those of the document, by their places in it.
    pub fn changed(&self) -> BTreeMap<String, ChangedSetting> {
        let (start, now) = (&*self.start, locked(&self.tuner).plan_without_trial());
        let settings = LiveSetting::all(start).filter_map(|setting| {
            let (pointer, to) = (setting.pointer(start).to_string(), setting.value(&now)?);
            let earlier = self.earlier.get(&pointer).map(|earlier| earlier.from);
            // A document that does not state the number of threads leaves it to the machine.
            let from = earlier.or_else(|| setting.value(start)).unwrap_or(self.threads);
            (from != to).then_some((pointer, ChangedSetting { from, to }))
        });
        settings.collect()
    }

    /// The plan with new values of settings, by their places in the document.
    pub fn with(&self, values: &BTreeMap<String, u32>) -> Result<Plan, SetFault> {
        Ok(self.checked(self.plan(), values)?.0)
    }

    /// Changes the settings at these places in the document, all or none; values that hold already change nothing. A change that is being
    /// tried is undone before. `admit` refuses the plan with the new values; no other change is made meanwhile. `by` says in words who
    /// changes them.
    pub fn set<E: From<SetFault>>(
        &self,
        run: &RunHandle,
        clock: &MonotonicClock,
        values: &BTreeMap<String, u32>,
        by: &str,
        admit: impl FnOnce(&Plan) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut tuner = locked(&self.tuner);
        let settled = tuner.plan_without_trial();
        let (plan, mut changes) = self.checked(settled.clone(), values)?;
        let holds = |(setting, value): &(LiveSetting, u32)| {
            [&settled, tuner.plan()].iter().all(|plan| setting.value(plan) == Some(*value))
        };
        if changes.iter().all(holds) {
            return Ok(());
        }
        if tuner.changes().len() + changes.len() > MAX_CHANGES {
            return Err(SetFault::TooMany.into());
        }
        admit(&plan)?;
        let at = clock.now().nanos();
        let back = tuner.end_trial(at);
        self.apply(run, tuner.plan(), &back).map_err(SetFault::from)?;
        changes.retain(|(setting, value)| setting.value(tuner.plan()) != Some(*value));
        self.apply(run, &plan, &changes).map_err(SetFault::from)?;
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
                let mut known: Vec<String> = known.collect();
                known.sort_by_key(|known| Reverse(alike(known, pointer)));
                return Err(SetFault::Unknown { pointer: pointer.clone(), known });
            };
            if !setting.set(&mut plan, value) {
                return Err(SetFault::Bounds { pointer: pointer.clone(), value, most: setting.most() });
            }
            if setting == LiveSetting::Threads && value > self.threads {
                return Err(SetFault::Threads { value, threads: self.threads });
            }
            if is_ordered_by_one(&plan, setting) && value > 1 {
                return Err(SetFault::Order { pointer: pointer.clone() });
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

/// True for the concurrency of a stage whose order, which the files of batches rely on, follows from a concurrency of 1.
pub(super) fn is_ordered_by_one(plan: &Plan, setting: LiveSetting) -> bool {
    let LiveSetting::Concurrency(place) = setting else { return false };
    let stage = &plan.stages[place];
    matches!(plan.consumer, Consumer::Files(_))
        && stage.order == Order::Completion
        && !plan.unordered.contains(&stage.place.key("order"))
}

/// Number of bytes at the beginning that two texts have in common.
fn alike(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count()
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

/// State with which the thread of a tuner starts.
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
        let mut memory = MemoryWatch::default();
        while let Some(sums) = waiting.pop_front().or_else(|| self.sums.recv().ok()) {
            // Sums that came in during a search are of the same window.
            waiting.extend(self.sums.try_iter());
            let mut tuner = locked(&self.settings.tuner);
            if sums.state.is_over() {
                tuner.end_trial(sums.t1.nanos());
                return;
            }
            let is_short = memory.is_short(sums.t1.nanos(), waited_for_memory()) && tuner.is_trying();
            if !is_short && !tuner.add(&sums) {
                if tuner.window_is_empty() {
                    machine = MachineReading::now();
                }
                continue;
            }
            let now = MachineReading::now();
            let step = match is_short {
                true => Step::Change(tuner.on_short_memory(sums.t1.nanos())),
                false => tuner.decide(now.since(&machine)),
            };
            machine = now;
            let changes = match step {
                Step::Change(changes) => changes,
                Step::Search(question) => {
                    drop(tuner);
                    let times = question.times(&self.document, &self.limits, self.settings.profile());
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

/// Readings of the time in which tasks waited for memory, in the last second.
#[derive(Debug, Default)]
struct MemoryWatch(VecDeque<(u64, u64)>);

impl MemoryWatch {
    /// Adds a reading in microseconds at a time in nanoseconds. Returns true if tasks have waited for a considerable share of the last second.
    fn is_short(&mut self, at: u64, waited: Option<u64>) -> bool {
        let Some(waited) = waited else { return false };
        self.0.push_back((at, waited));
        while self.0.get(1).is_some_and(|(second, _)| at - second >= MEMORY_SPAN) {
            self.0.pop_front();
        }
        let Some((from, before)) = self.0.front().filter(|(from, _)| at - from >= MEMORY_SPAN) else {
            return false;
        };
        (waited - before) as f64 * 1e3 >= MEMORY_SHORT * (at - from) as f64
    }
}

/// Document of a run, as far as predictions read it.
pub(super) fn document_of(plan: &Plan) -> Value {
    let mut document = plan.recipe.clone();
    document["consumer"] = json!(plan.consumer);
    document
}
