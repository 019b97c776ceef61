use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_engine::ports::Sums;
use penstock_engine::predict::OpPlace;
use penstock_engine::route::{Choice, PathShares};
use penstock_types::ledger::{Ledger, StageBook};
use penstock_types::machine::MachineFigures;
use penstock_types::plan::{LiveSetting, Plan, RoutePlan, StageId, StagePlan};
use penstock_types::policy::StageKindName;
use penstock_types::profile::{Contention, Profile, StageProfile};
use penstock_types::run::{QueueRecord, RunSnapshot, StageRecord};
use penstock_types::series::TaskTimes;
use penstock_types::stats::{BookRow, Histogram, QueueSums, TaskSums};
use penstock_types::tune::last_change;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::PredictError;
use crate::output::{SNAPSHOT, SPEC, TIMES};

/// Quantile of exponential times at which their delay is measured.
const SHORT: f64 = 0.05;

#[derive(Clone, Debug)]
pub struct Recording {
    pub snapshot: RunSnapshot,
    pub document: Value,
    times: BTreeMap<String, Histogram>,
    /// Contention of stages that were profiled, by id.
    contended: BTreeMap<String, Contended>,
    /// Reasons why the profile says less about the predicted run than its measurements do, in words.
    pub(super) doubts: Vec<String>,
}

/// Slowdown of a stage while other cores are in use.
#[derive(Clone, Debug)]
pub(super) struct Contended {
    pub(super) by_cores: Contention,
    /// Mean factor by which the recorded ops were slower than alone.
    recorded: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("`{}` contains no finished run (no `{name}`); pass a folder written by `penstock run --out`", .folder.display())]
    None { folder: PathBuf, name: &'static str },
    #[error("cannot read `{}`", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
}

/// Sums of an interval of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct IntervalSums {
    /// Start and end, in nanoseconds since the start of the run.
    pub(crate) t0: u64,
    pub(crate) t1: u64,
    pub(crate) stages: Vec<TaskSums>,
    pub(crate) queues: Vec<QueueSums>,
    pub(crate) books: Vec<BookRow>,
}

impl IntervalSums {
    /// Sums of nothing.
    #[cfg(test)]
    pub(crate) fn filled(plan: &Plan) -> Self {
        let nodes = plan.nodes().count();
        Self {
            stages: vec![TaskSums::default(); plan.stages.len()],
            queues: vec![QueueSums::default(); nodes],
            books: vec![BookRow::default(); nodes],
            ..Self::default()
        }
    }

    /// Adds the sums of the time after this interval.
    pub(crate) fn add(&mut self, next: &Sums) {
        if self.stages.is_empty() && self.queues.is_empty() {
            self.t0 = next.t0.nanos();
            self.stages = vec![TaskSums::default(); next.stages.len()];
            self.queues = vec![QueueSums::default(); next.queues.len()];
            self.books = vec![BookRow::default(); next.books.len()];
        }
        self.t1 = next.t1.nanos();
        self.stages.iter_mut().zip(&next.stages).for_each(|(sums, next)| sums.merge(next));
        self.queues.iter_mut().zip(&next.queues).for_each(|(sums, next)| sums.merge(next));
        self.books.iter_mut().zip(&next.books).for_each(|(sums, next)| sums.merge(next));
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedStage<'a> {
    pub(super) times: &'a Histogram,
    record: &'a StageRecord,
    /// Samples that the stage has taken, of any outcome.
    taken: u64,
    out: u64,
    /// Settings in the document.
    written: Option<&'a Value>,
    pub(super) contended: Option<&'a Contended>,
}

impl Recording {
    pub fn read(folder: &Path) -> Result<Self, RecordingError> {
        let times: BTreeMap<String, TaskTimes> = read(folder, TIMES)?;
        Ok(Self::new(read(folder, SNAPSHOT)?, read(folder, SPEC)?, &times))
    }

    /// Creates a recording from the run's last snapshot, its document, and the times of ops by stage id.
    pub fn new(snapshot: RunSnapshot, document: Value, times: &BTreeMap<String, TaskTimes>) -> Self {
        let times = times.iter().map(|(stage, times)| (stage.clone(), Histogram::from(times)));
        Self { snapshot, document, times: times.collect(), contended: BTreeMap::new(), doubts: Vec::new() }
    }

    /// The plan of the recording's document with the settings that held; the reason why no settings did if they changed between these
    /// times, in seconds since the start of the run.
    pub fn settled(&self, mut plan: Plan, from_s: f64, to_s: f64) -> Result<Plan, PredictError> {
        if let Some(at_s) = last_change(&self.snapshot.changes, from_s, to_s) {
            return Err(PredictError::Changed(at_s));
        }
        let held: Vec<_> = self.held(&plan).collect();
        held.into_iter().for_each(|(setting, value)| _ = setting.set(&mut plan, value));
        Ok(plan)
    }

    /// Settings that held at the end of the recording and differ from those of `plan`, which is that of its document: a run begins with
    /// those of an earlier one if it continues it, and changes them while it goes on.
    pub fn held<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = (LiveSetting, u32)> + 'a {
        let RunSnapshot { stages, queues, changes, .. } = &self.snapshot;
        LiveSetting::all(plan).filter_map(move |setting| {
            let held = match setting {
                LiveSetting::Concurrency(place) => stages.get(place)?.concurrency,
                LiveSetting::Queue(node) => u32::try_from(queues.get(node)?.figures.capacity).ok()?,
                LiveSetting::Threads => {
                    let threads = changes.iter().filter(|change| change.pointer == setting.pointer(plan));
                    threads.filter_map(|change| change.value_at(f64::INFINITY)).next_back()?
                }
            };
            (setting.value(plan) != Some(held)).then_some((setting, held))
        })
    }

    /// Creates a recording of an interval of a run of `plan`, whose document is `document`.
    pub(crate) fn of_interval(
        plan: &Plan,
        document: &Value,
        threads: u32,
        sums: &IntervalSums,
        machine: Option<MachineFigures>,
    ) -> Self {
        let stages = plan.stages.iter().zip(&sums.stages).map(|(stage, sums)| StageRecord {
            id: stage.id.to_string(),
            name: stage.id.name().to_owned(),
            kind: stage.kind.name(),
            label: stage.label(),
            concurrency: stage.concurrency.get(),
            task: sums.figures(),
        });
        let nodes = plan.nodes().zip(&sums.queues).map(|((id, capacity), sums)| QueueRecord {
            id: id.queue_id(),
            label: id.queue_id(),
            figures: sums.figures(capacity.get() as usize),
        });
        let books = plan.nodes().zip(&sums.books).map(|((id, _), row)| {
            let BookRow { taken, made, out, dropped, skipped, dead_lettered, discarded } = *row;
            let id = id.to_string();
            StageBook { id, taken, made, out, dropped, skipped, dead_lettered, discarded, left: 0 }
        });
        let times = plan.stages.iter().zip(&sums.stages);
        let times = times.map(|(stage, sums)| (stage.id.to_string(), sums.op_times.clone())).collect();
        let snapshot = RunSnapshot {
            threads,
            stages: stages.collect(),
            queues: nodes.collect(),
            machine,
            ledger: Ledger { stages: books.collect(), ..Ledger::default() },
            ..RunSnapshot::default()
        };
        Self { snapshot, document: document.clone(), times, contended: BTreeMap::new(), doubts: Vec::new() }
    }

    /// Adds what a profile of the pipeline has measured, for predictions of `plan` on a machine with `cores`. Times are those of the
    /// recording, as before.
    #[must_use]
    pub fn with_profile(mut self, profile: &Profile, plan: &Plan, cores: u32) -> Self {
        self.doubts = profile.doubts(plan, cores);
        let contended = |stage: &StageProfile| Contended { by_cores: stage.contention(), recorded: 1.0 };
        let computing = profile.stages.iter().filter(|stage| stage.computes);
        self.contended = computing.map(|stage| (stage.id.clone(), contended(stage))).collect();
        self
    }

    pub(super) fn has_contention(&self) -> bool {
        !self.contended.is_empty()
    }

    /// Sets the mean factors by which the ops of the stages of `plan`, in its order, were slowed down in the recorded run.
    pub(super) fn set_slowdowns(&mut self, plan: &Plan, slowdowns: &[f64]) {
        for (stage, slowdown) in plan.stages.iter().zip(slowdowns) {
            if let Some(contended) = self.contended.get_mut(&stage.id.to_string()) {
                contended.recorded = *slowdown;
            }
        }
    }

    /// Divides the times of the ops of the stage at `place` by `factor`.
    pub(super) fn speed_up(&mut self, place: usize, factor: f64) {
        if let Some(record) = self.snapshot.stages.get_mut(place) {
            record.task.busy_s /= factor;
        }
    }

    /// Items that the consumer took per second.
    pub(super) fn rate(&self) -> Option<f64> {
        self.snapshot.queues.last()?.figures.qps
    }

    /// Cores that other processes used.
    pub(super) fn others_cores(&self) -> f64 {
        self.snapshot.machine.and_then(|machine| machine.others_cores()).unwrap_or(0.0)
    }

    /// Share of the cores of the machine in use; `None` where the system did not report it.
    pub(super) fn busy_share(&self) -> Option<f64> {
        let machine = self.snapshot.machine?;
        machine.busy_cores.map(|busy| busy / f64::from(machine.cores))
    }

    /// Stage of this name and kind; `name#1` is the second stage of that name. `None` if it completed no op.
    pub(super) fn stage(&self, name: &str, kind: StageKindName) -> Option<RecordedStage<'_>> {
        let (base, before) = match name.rsplit_once('#') {
            Some((base, number)) => (base, number.parse().unwrap_or(0)),
            None => (name, 0),
        };
        let stages = self.snapshot.stages.iter().enumerate();
        let (place, record) = stages.filter(|(_, stage)| stage.name == base).nth(before)?;
        let times = self.times.get(&record.id).filter(|times| times.count() > 0)?;
        // The first entry in the ledger is that of the source, so the entry of a stage is at its position plus one.
        let book = self.snapshot.ledger.stages.get(place + 1)?;
        let id = StageId::parse(&record.id)?;
        let written = self.document.pointer(id.place().key(kind.as_str()).as_str());
        (record.kind == kind).then_some(RecordedStage {
            times,
            record,
            taken: book.taken.saturating_sub(book.left),
            out: book.out,
            written,
            contended: self.contended.get(&record.id),
        })
    }

    /// Choice of the paths of a route by their shares of the samples. `None` if the run routed no sample, or had other paths.
    pub(super) fn choice(&self, route: &RoutePlan, stage: &StagePlan, seed: u64) -> Option<Choice> {
        let book = |id: &str| self.snapshot.ledger.stages.iter().find(|book| book.id == id);
        let id = stage.id.to_string();
        let join = book(&id)?;
        let mut counts = Vec::with_capacity(route.paths.len() + 1);
        for path in &route.paths {
            counts.push(book(&format!("{id}/{path}"))?.taken);
        }
        counts.push(join.skipped + join.dead_lettered);
        PathShares::new(&counts, seed, &stage.seeded_as).map(Choice::Shares)
    }

    /// Time that the source takes for a sample, excluding waits for space in its queue.
    pub(super) fn source_time(&self) -> Duration {
        let Some(QueueRecord { figures, .. }) = self.snapshot.queues.first() else { return Duration::ZERO };
        if figures.num_items == 0 {
            return Duration::ZERO;
        }
        let each = figures.elapsed_s / figures.num_items as f64;
        seconds(each - figures.ave_put_time_s.unwrap_or(0.0))
    }

    /// Time that the consumer takes for an item, excluding waits for items.
    pub(super) fn step_time(&self) -> Duration {
        let Some(QueueRecord { figures, .. }) = self.snapshot.queues.last() else { return Duration::ZERO };
        if figures.num_items == 0 {
            return Duration::ZERO;
        }
        seconds(figures.elapsed_s * (1.0 - figures.starved.unwrap_or(0.0)) / figures.num_items as f64)
    }

    /// Time by which a step of the consumer `simulate` exceeds the setting `step_ms`.
    pub(super) fn late_steps(&self) -> Duration {
        let told = self.document.pointer("/consumer/simulate/step_ms").and_then(Value::as_f64);
        told.map_or(Duration::ZERO, |ms| seconds(self.step_time().as_secs_f64() - ms / 1e3))
    }
}

impl RecordedStage<'_> {
    /// Mean time of an op for a prediction: that for which it holds its slot, which is longer than it runs. On worker threads, this
    /// is the time on a core, since the prediction distributes the cores itself, and the work around an op needs one, too; while no other core
    /// is in use, if the stage was profiled.
    pub(super) fn mean_s(&self, place: OpPlace) -> f64 {
        match (place, core_share([self.record])) {
            (OpPlace::Thread { .. }, Some(share)) => {
                self.slot_s() * share / self.contended.map_or(1.0, |contended| contended.recorded)
            }
            _ => self.slot_s(),
        }
    }

    /// Mean time for which an op holds its slot; that for which it runs if the recording lacks the times of slots.
    fn slot_s(&self) -> f64 {
        let task = &self.record.task;
        if task.busy_s > 0.0 {
            task.busy_s / task.num_tasks.max(1) as f64
        } else {
            task.ave_time_s.unwrap_or(0.0)
        }
    }

    /// Mean number of samples of an input item.
    pub(super) fn samples_per_task(&self) -> f64 {
        self.taken as f64 / self.record.task.num_tasks.max(1) as f64
    }

    /// Number of output samples per input sample.
    pub(super) fn yields(&self) -> f64 {
        if self.taken == 0 { 1.0 } else { self.out as f64 / self.taken as f64 }
    }

    /// Time by which a stage exceeds the times that the document states.
    pub(super) fn late(&self) -> Duration {
        let setting = |name| self.written.and_then(|written| written.get(name));
        let Some(mean_s) = setting("mean_ms").and_then(Value::as_f64).map(|ms| ms / 1e3) else {
            return Duration::ZERO;
        };
        if setting("shape").is_none_or(|shape| shape == "uniform") {
            return seconds(self.slot_s() - mean_s);
        }
        // By chance, the mean of exponential times deviates from the setting by more than the delays of the machine. The short ones
        // are near each other: those below the quantile q of an exponential distribution are shorter than -ln(1 - q) x mean.
        let task = &self.record.task;
        let late = self.times.quantile_s(SHORT).unwrap_or(0.0) + (1.0 - SHORT).ln() * mean_s;
        seconds(late.max(0.0) + self.slot_s() - task.ave_time_s.unwrap_or(0.0))
    }
}

/// Share of the time of ops in which they had a core, 0.0 to 1.0; `None` if none ran on a worker thread.
pub(super) fn core_share<'a>(stages: impl IntoIterator<Item = &'a StageRecord>) -> Option<f64> {
    let tasks = stages.into_iter().map(|stage| &stage.task);
    let (cpu_s, ops_s) = tasks.fold((0.0, 0.0), |(cpu_s, ops_s), task| match task.cpu_s {
        Some(cpu) => (cpu_s + cpu, ops_s + task.ave_time_s.unwrap_or(0.0) * task.num_tasks as f64),
        None => (cpu_s, ops_s),
    });
    (ops_s > 0.0).then(|| (cpu_s / ops_s).min(1.0))
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}

fn read<T: DeserializeOwned>(folder: &Path, name: &'static str) -> Result<T, RecordingError> {
    let path = folder.join(name);
    let unreadable = |source| RecordingError::Unreadable { path: path.clone(), source };
    let text = fs::read(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => RecordingError::None { folder: folder.to_owned(), name },
        _ => unreadable(error),
    })?;
    serde_json::from_slice(&text).map_err(|error| unreadable(error.into()))
}
