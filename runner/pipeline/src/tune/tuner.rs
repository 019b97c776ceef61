//! Decides which settings of a run change, from the sums of windows: a change is tried, measured, and kept or undone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use penstock_engine::ports::Sums;
use penstock_types::kinds::Work;
use penstock_types::machine::MachineFigures;
use penstock_types::plan::{LiveSetting, Plan};
use penstock_types::resume::ChangedSetting;
use penstock_types::tune::{ChangeOutcome, SettingChange, Tune};
use penstock_types::verdict::{Measured, PipelineShape, Verdict, VerdictKind};

use super::propose::{MOST_CHANGES, Proposed};
use crate::predict::IntervalSums;

/// Minimum length of a window, in nanoseconds.
const WINDOW: u64 = 2_000_000_000;
/// Number of items after which a window ends before [`LONGEST_WINDOW`].
const WINDOW_ITEMS: u64 = 100;
/// Number of items at the sink for which there is a verdict before [`LONGEST_WINDOW`].
const SINK_ITEMS: u64 = 8;
/// Time after which a window ends with any number of items, in nanoseconds.
const LONGEST_WINDOW: u64 = 10_000_000_000;
/// Time after a change, and after the first item, that belongs to no window, in nanoseconds: queues fill or drain.
const SETTLING: u64 = 500_000_000;
/// Smallest gain for which a change is tried and kept.
const GAIN: f64 = 0.03;
/// Number of earlier windows whose rates tell how much the rate varies by itself.
const HISTORY: usize = 8;
/// Windows for which a setting rests after it was undone for the first time; each further time twice as many.
const REST: u64 = 2;
/// Change of the rate from which the tuner looks again for a state in which it found nothing to do.
const MOVED: f64 = 0.1;
/// Share of time in which tasks waited for memory from which memory is short.
pub(super) const MEMORY_SHORT: f64 = 0.05;
/// Share of the cores in use from which work waits for a core.
const BUSY: f64 = 0.9;
/// Share of the cores that others have from which they count as a neighbour that needs them.
const OTHERS: f64 = 0.1;
/// Reason of the changes with which a resumed run begins.
const EARLIER: &str = "the run before this one";
/// Maximum number of changes of a run. Each is recorded, because figures of earlier times are read with the settings of those times.
pub(super) const MAX_CHANGES: usize = 1_000;

/// Next step after a window.
pub(crate) enum Step {
    /// Settings to change now, with their new values; none if nothing is to be done.
    Change(Vec<(LiveSetting, u32)>),
    /// Settings to search for by predictions, which takes a while: [`Tuner::answer`] takes the result.
    Search(Box<Question>),
}

/// Measurement of a window, and the settings that may change.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The plan with the settings that held.
    pub(crate) plan: Plan,
    pub(crate) sums: IntervalSums,
    pub(crate) machine: Option<MachineFigures>,
    /// Node behind which items are counted.
    pub(crate) node: usize,
    pub(crate) verdict: Verdict,
    /// Settings that stay, because a change of them was undone.
    pub(crate) resting: BTreeSet<LiveSetting>,
    /// Number of changes by users before the question.
    set: u64,
    rates: (f64, f64),
}

/// Measurement of a window, with the settings that held.
#[derive(Clone, Debug)]
pub(crate) struct Measurement {
    pub(crate) sums: IntervalSums,
    pub(crate) machine: Option<MachineFigures>,
    pub(crate) verdict: Verdict,
    /// Items per second that the consumer took.
    pub(crate) rate: f64,
}

/// Tunes one run.
#[derive(Debug)]
pub(crate) struct Tuner {
    mode: Tune,
    /// The plan with the settings that hold now.
    plan: Plan,
    shape: PipelineShape,
    window: IntervalSums,
    /// Number of windows so far.
    windows: u64,
    /// Time before which sums belong to no window.
    settles_until: Option<u64>,
    /// Node behind which the items of a window are counted: the one with the most items among those that all samples pass.
    node: Option<usize>,
    /// Rates of the last windows with the same settings.
    recent: VecDeque<f64>,
    /// Limit of the last window.
    last: Option<Limit>,
    /// The last state in which there was nothing to do.
    idle: Option<Idle>,
    /// The last window whose settings still hold.
    latest: Option<Measurement>,
    /// Items per second that the consumer took in the last window.
    at_sink: Option<f64>,
    trial: Option<Trial>,
    rests: BTreeMap<LiveSetting, Rest>,
    changes: Vec<SettingChange>,
    /// Number of changes by users.
    set: u64,
    /// True once two windows in a row had the same settings and the same limit.
    has_judged: bool,
}

type Limit = (VerdictKind, Option<String>);

/// A state of the run for which a search found nothing.
#[derive(Debug)]
struct Idle {
    limit: Limit,
    rate: f64,
    others_need_cores: bool,
    /// Number of windows at that time.
    windows: u64,
}

/// Changes that are tried together, one after another.
#[derive(Debug)]
struct Trial {
    proposed: Proposed,
    /// Number of changes made so far.
    made: usize,
    /// Values before the trial, for each change made.
    before: Vec<u32>,
    /// Rate before the trial, behind the node where items are counted, and at the sink.
    base: (f64, f64),
    evidence: String,
}

impl Trial {
    /// Settings that were changed, with their values before, the last change first.
    fn back(&self) -> Vec<(LiveSetting, u32)> {
        let made = self.proposed.changes.iter().zip(&self.before);
        made.map(|((setting, _), before)| (*setting, *before)).rev().collect()
    }
}

#[derive(Debug, Default)]
struct Rest {
    /// Number of the window from which on the setting may be tried again.
    until: u64,
    times: u32,
}

impl Tuner {
    pub(crate) fn new(mode: Tune, plan: Plan, shape: PipelineShape) -> Self {
        Self {
            mode,
            plan,
            shape,
            window: IntervalSums::default(),
            windows: 0,
            settles_until: None,
            node: None,
            recent: VecDeque::new(),
            last: None,
            idle: None,
            latest: None,
            at_sink: None,
            trial: None,
            rests: BTreeMap::new(),
            changes: Vec::new(),
            set: 0,
            has_judged: false,
        }
    }

    /// Records the settings that an earlier run has changed, and with which this one begins.
    pub(crate) fn with_earlier(mut self, earlier: &BTreeMap<String, ChangedSetting>) -> Self {
        let settings = LiveSetting::all(&self.plan).filter_map(|setting| {
            let pointer = setting.pointer(&self.plan);
            earlier.get(pointer.as_str()).map(|changed| (pointer, *changed))
        });
        let changes = settings.map(|(pointer, ChangedSetting { from, to })| SettingChange {
            at_s: 0.0,
            until_s: Some(0.0),
            pointer,
            from,
            to,
            evidence: EARLIER.to_owned(),
            before: None,
            predicted: None,
            measured: None,
            outcome: ChangeOutcome::Set,
        });
        self.changes = changes.collect();
        self
    }

    /// True once the run was measured for long enough to change a setting, or to leave all as they are.
    pub(crate) fn has_judged(&self) -> bool {
        self.has_judged
    }

    pub(crate) fn mode(&self) -> Tune {
        self.mode
    }

    /// True at the start of a window.
    pub(crate) fn window_is_empty(&self) -> bool {
        self.window.t1 == 0
    }

    /// Changes so far, oldest first.
    pub(crate) fn changes(&self) -> &[SettingChange] {
        &self.changes
    }

    /// The last window with settings that were kept; `None` before the first one ends.
    pub(crate) fn latest(&self) -> Option<&Measurement> {
        self.latest.as_ref()
    }

    /// The plan with the settings that hold now.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan as it was before the trial that goes on, if there is one.
    pub(crate) fn plan_without_trial(&self) -> Plan {
        let mut plan = self.plan.clone();
        for (setting, before) in self.trial.iter().flat_map(Trial::back) {
            setting.set(&mut plan, before);
        }
        plan
    }

    /// Records that a user has changed a setting, while nothing is tried.
    pub(crate) fn on_set(&mut self, setting: LiveSetting, value: u32, by: &str, at: u64) {
        self.set += 1;
        let before = self.rate_before();
        self.changes.push(SettingChange {
            at_s: seconds(at),
            until_s: None,
            pointer: setting.pointer(&self.plan),
            from: setting.value(&self.plan).unwrap_or(value),
            to: value,
            evidence: by.to_owned(),
            before,
            predicted: None,
            measured: None,
            outcome: ChangeOutcome::Set,
        });
        setting.set(&mut self.plan, value);
        self.start_window(at);
        self.forget();
    }

    /// Items per second that the consumer took before a change that is made now, or before the changes that are not measured yet.
    fn rate_before(&self) -> Option<f64> {
        let open = self.changes.last().filter(|change| is_open(change));
        open.map_or(self.at_sink, |change| change.before)
    }

    /// Ends the measurement of the changes that users have made since the window before: they are measured together.
    fn measure_set(&mut self, sink: f64, at: u64) {
        for change in self.changes.iter_mut().rev().take_while(|change| is_open(change)) {
            (change.measured, change.until_s) = (Some(sink), Some(seconds(at)));
        }
    }

    /// Undoes a trial at once, because memory is short.
    pub(crate) fn on_short_memory(&mut self, at: u64) -> Vec<(LiveSetting, u32)> {
        let trial = self.trial.take();
        trial.map_or_else(Vec::new, |trial| self.undo(&trial, None, at))
    }

    /// True while a change is tried.
    pub(crate) fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Ends a trial before it was measured, and returns the settings to change back: too little is known of it to keep it.
    pub(crate) fn end_trial(&mut self, at: u64) -> Vec<(LiveSetting, u32)> {
        let Some(trial) = self.trial.take() else { return Vec::new() };
        self.close(&trial, ChangeOutcome::Undone, None, at);
        let back = trial.back();
        for (setting, before) in &back {
            setting.set(&mut self.plan, *before);
        }
        self.forget();
        self.start_window(at);
        back
    }

    /// Adds the next sums of the run. Returns true if a window is complete, for which [`Self::decide`] is to be called.
    pub(crate) fn add(&mut self, sums: &Sums) -> bool {
        let Some(until) = self.settles_until else {
            if sums.queues.last().is_some_and(|sink| sink.row.gets > 0) {
                self.settles_until = Some(sums.t1.nanos() + SETTLING);
            }
            return false;
        };
        if sums.t0.nanos() < until {
            return false;
        }
        self.window.add(sums);
        let length = self.window.t1 - self.window.t0;
        let items =
            self.node.or_else(|| self.busiest_node()).map_or(0, |node| self.window.queues[node].row.gets);
        let at_sink = self.window.queues.last().map_or(0, |sink| sink.row.gets);
        (length >= WINDOW && items >= WINDOW_ITEMS && at_sink >= SINK_ITEMS) || length >= LONGEST_WINDOW
    }

    /// Judges the window that is complete.
    pub(crate) fn decide(&mut self, machine: Option<MachineFigures>) -> Step {
        let sums = std::mem::take(&mut self.window);
        self.windows += 1;
        let nothing = Step::Change(Vec::new());
        let Some(node) = self.node.or_else(|| busiest(&self.plan, &sums)) else { return nothing };
        self.node = Some(node);
        let rates = (rate_of(&sums, node), rate_of(&sums, sums.queues.len() - 1));
        let pressure = machine.as_ref().and_then(|machine| machine.pressure);
        let memory_is_short = pressure.is_some_and(|pressure| pressure.memory >= MEMORY_SHORT);
        self.measure_set(rates.1, sums.t1);
        self.at_sink = Some(rates.1);
        if self.mode == Tune::Off {
            return nothing;
        }
        let verdict = self.verdict(&sums, machine.as_ref());
        let measured = Measurement { sums: sums.clone(), machine, verdict: verdict.clone(), rate: rates.1 };
        if let Some(trial) = self.trial.take() {
            let changes = self.go_on(trial, rates, memory_is_short, sums.t1);
            if changes.is_empty() {
                self.latest = Some(measured);
            }
            return Step::Change(changes);
        }
        self.latest = Some(measured);
        let limit = (verdict.kind, verdict.stage.clone());
        let is_same = self.last.replace(limit.clone()).is_none_or(|last| last == limit);
        self.recent.push_back(rates.0);
        if self.recent.len() > HISTORY {
            self.recent.pop_front();
        }
        self.has_judged |= is_same && self.recent.len() >= 2;
        let has_room = self.changes.len() + MOST_CHANGES <= MAX_CHANGES;
        let is_sure =
            is_same && self.recent.len() >= 2 && !memory_is_short && has_room && may_help(verdict.kind);
        let others_need_cores = machine.as_ref().is_some_and(others_need_cores);
        if !is_sure || self.is_idle(&limit, rates.0, others_need_cores) {
            return nothing;
        }
        let resting = self.rests.iter().filter(|(_, rest)| rest.until > self.windows);
        let resting = resting.map(|(setting, _)| *setting);
        // More ops would take cores from the neighbour, which needs them, too.
        let computing = self.computing().filter(|_| others_need_cores);
        let resting = resting.chain(computing).collect();
        let (plan, set) = (self.plan.clone(), self.set);
        Step::Search(Box::new(Question { plan, sums, machine, node, verdict, resting, set, rates }))
    }

    /// Takes what a search has found, and returns the settings to change now, with their new values.
    pub(crate) fn answer(
        &mut self,
        question: Question,
        proposed: Option<Proposed>,
        at: u64,
    ) -> Vec<(LiveSetting, u32)> {
        let Question { verdict, rates, set, machine, .. } = question;
        if set != self.set {
            return Vec::new();
        }
        let least = self.least_gain();
        let idle = Idle {
            limit: (verdict.kind, verdict.stage),
            rate: rates.0,
            others_need_cores: machine.as_ref().is_some_and(others_need_cores),
            windows: self.windows,
        };
        let worth = |proposed: &Proposed| proposed.gains.last().is_some_and(|gain| *gain > 1.0 + least);
        let Some(proposed) = proposed.filter(worth) else {
            self.idle = Some(idle);
            return Vec::new();
        };
        let (before, base) = (Vec::new(), (self.base(), rates.1));
        let trial = Trial { proposed, made: 0, before, base, evidence: verdict.sentence };
        if self.mode == Tune::Suggest {
            self.suggest(&trial, at);
            self.idle = Some(idle);
            return Vec::new();
        }
        self.make_next(trial, at)
    }

    /// Judges the change that was made last.
    fn go_on(
        &mut self,
        trial: Trial,
        (rate, sink): (f64, f64),
        memory_is_short: bool,
        at: u64,
    ) -> Vec<(LiveSetting, u32)> {
        let (base, least) = (trial.base.0, self.least_gain());
        let is_last = trial.made == trial.proposed.changes.len();
        if memory_is_short || rate < base * (1.0 - least) || (is_last && rate <= base * (1.0 + least)) {
            return self.undo(&trial, Some(sink), at);
        }
        if is_last {
            self.close(&trial, ChangeOutcome::Kept, Some(sink), at);
            self.forget();
            self.start_window(at);
            return Vec::new();
        }
        if let Some(change) = self.changes.last_mut() {
            (change.measured, change.until_s) = (Some(sink), Some(seconds(at)));
        }
        self.make_next(trial, at)
    }

    /// Makes the next change of a trial.
    fn make_next(&mut self, mut trial: Trial, at: u64) -> Vec<(LiveSetting, u32)> {
        let (setting, value) = trial.proposed.changes[trial.made];
        let from = setting.value(&self.plan).unwrap_or(value);
        let predicted = trial.base.1 * trial.proposed.gains[trial.made];
        self.record(&trial, (setting, from, value), predicted, ChangeOutcome::Trying, at);
        trial.before.push(from);
        trial.made += 1;
        self.trial = Some(trial);
        setting.set(&mut self.plan, value);
        self.start_window(at);
        vec![(setting, value)]
    }

    fn undo(&mut self, trial: &Trial, measured: Option<f64>, at: u64) -> Vec<(LiveSetting, u32)> {
        self.close(trial, ChangeOutcome::Undone, measured, at);
        let back = trial.back();
        for (setting, before) in &back {
            setting.set(&mut self.plan, *before);
            let rest = self.rests.entry(*setting).or_default();
            rest.until = self.windows + (REST << rest.times.min(16));
            rest.times += 1;
        }
        self.forget();
        self.start_window(at);
        back
    }

    /// Notes the outcome of the changes of a trial.
    fn close(&mut self, trial: &Trial, outcome: ChangeOutcome, measured: Option<f64>, at: u64) {
        let first = self.changes.len().saturating_sub(trial.made);
        for change in &mut self.changes[first..] {
            change.outcome = outcome;
            if outcome == ChangeOutcome::Undone {
                change.until_s = Some(seconds(at));
            }
        }
        if let (Some(change), Some(_)) = (self.changes.last_mut(), measured) {
            (change.measured, change.until_s) = (measured, Some(seconds(at)));
        }
    }

    fn suggest(&mut self, trial: &Trial, at: u64) {
        for (&(setting, value), gain) in trial.proposed.changes.iter().zip(&trial.proposed.gains) {
            let from = setting.value(&self.plan).unwrap_or(value);
            self.record(trial, (setting, from, value), trial.base.1 * gain, ChangeOutcome::Suggested, at);
        }
    }

    fn record(
        &mut self,
        trial: &Trial,
        (setting, from, to): (LiveSetting, u32, u32),
        predicted: f64,
        outcome: ChangeOutcome,
        at: u64,
    ) {
        self.changes.push(SettingChange {
            at_s: seconds(at),
            until_s: None,
            pointer: setting.pointer(&self.plan),
            from,
            to,
            evidence: trial.evidence.clone(),
            before: Some(trial.base.1),
            predicted: Some(predicted),
            measured: None,
            outcome,
        });
    }

    fn start_window(&mut self, at: u64) {
        self.window = IntervalSums::default();
        self.settles_until = self.settles_until.map(|_| at + SETTLING);
    }

    /// Forgets what was measured with other settings.
    fn forget(&mut self) {
        self.recent.clear();
        (self.last, self.idle) = (None, None);
    }

    /// True if there was nothing to do in this state before, and no setting has rested since.
    fn is_idle(&self, limit: &Limit, rate: f64, others_need_cores: bool) -> bool {
        self.idle.as_ref().is_some_and(|idle| {
            let has_rested = |rest: &Rest| idle.windows < rest.until && rest.until <= self.windows;
            idle.limit == *limit
                && idle.others_need_cores == others_need_cores
                && (rate / idle.rate - 1.0).abs() < MOVED
                && !self.rests.values().any(has_rested)
        })
    }

    /// Smallest gain that the rate does not show by itself: 3 %, or twice the median deviation of the last windows.
    fn least_gain(&self) -> f64 {
        let middle = median(self.recent.iter().copied());
        let deviation = median(self.recent.iter().map(|rate| (rate / middle - 1.0).abs()));
        GAIN.max(2.0 * deviation)
    }

    /// Rate with the settings that hold, from the last windows.
    fn base(&self) -> f64 {
        median(self.recent.iter().copied())
    }

    /// Concurrency of the stages that compute.
    fn computing(&self) -> impl Iterator<Item = LiveSetting> {
        let stages = self.plan.stages.iter().enumerate();
        let computing = stages.filter(|(_, stage)| stage.kind.rules().work() == Work::Computing);
        computing.map(|(place, _)| LiveSetting::Concurrency(place)).collect::<Vec<_>>().into_iter()
    }

    fn busiest_node(&self) -> Option<usize> {
        busiest(&self.plan, &self.window)
    }

    fn verdict(&self, sums: &IntervalSums, machine: Option<&MachineFigures>) -> Verdict {
        let mut shape = self.shape.clone();
        shape.resize(&self.plan);
        let capacities = self.plan.nodes().map(|(_, capacity)| capacity.get() as usize);
        let measured = Measured {
            from_s: seconds(sums.t0),
            to_s: seconds(sums.t1),
            stages: sums.stages.iter().map(|stage| stage.figures()).collect(),
            queues: sums
                .queues
                .iter()
                .zip(capacities)
                .map(|(queue, capacity)| queue.figures(capacity))
                .collect(),
            samples: None,
            is_warm: true,
            is_over: false,
            failures: &[],
            machine,
        };
        Verdict::of(&shape, measured)
    }
}

/// True for a change by a user that is not measured yet.
fn is_open(change: &SettingChange) -> bool {
    change.outcome == ChangeOutcome::Set && change.until_s.is_none()
}

/// True if all cores are in use, and others have a part of them.
fn others_need_cores(machine: &MachineFigures) -> bool {
    let cores = f64::from(machine.cores);
    let is_busy = machine.busy_cores.is_some_and(|busy| busy >= BUSY * cores);
    is_busy && machine.others_cores().is_some_and(|others| others >= OTHERS * cores)
}

/// True if more concurrency, or deeper queues, may remove a limit of this kind.
fn may_help(kind: VerdictKind) -> bool {
    match kind {
        VerdictKind::Stage | VerdictKind::Storage | VerdictKind::Threads | VerdictKind::Variance => true,
        VerdictKind::Consumer
        | VerdictKind::Source
        | VerdictKind::Permits
        | VerdictKind::Failures
        | VerdictKind::NothingWaits
        | VerdictKind::TooLittle => false,
    }
}

/// The last node with about the most items, of those that all samples pass.
fn busiest(plan: &Plan, sums: &IntervalSums) -> Option<usize> {
    let routes = plan.routes();
    let is_passed = |node: &usize| routes.iter().all(|span| !span.contains(*node));
    let gets = |node: usize| sums.queues[node].row.gets;
    let most = (0..sums.queues.len()).filter(is_passed).map(gets).max()?;
    (0..sums.queues.len()).rev().filter(is_passed).find(|node| gets(*node) * 2 >= most)
}

/// Items per second that were taken behind a node.
fn rate_of(sums: &IntervalSums, node: usize) -> f64 {
    let row = &sums.queues[node].row;
    if row.elapsed == 0 { 0.0 } else { row.gets as f64 / seconds(row.elapsed) }
}

/// Middle of the values, or the mean of the two in the middle; 0 without values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)])
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
