use super::shape::{PipelineShape, StageTraits};
use super::slots::{SlotUse, ThreadUse};
use super::{Answer, Measured, Verdict, VerdictKind, advice, words};
use crate::kinds::Work;
use crate::routes::RouteSpan;

/// Share of time that a reader may wait and still count as supplied.
const STARVES: f64 = 0.05;
/// Shortest wait that counts, in seconds: shorter ones do not matter for any training step.
const FELT_S: f64 = 0.001;
/// Minimum number of items at the sink for a verdict, unless [`MIN_S`] seconds were measured: fewer items reveal nothing about a
/// pipeline that may contain as many items.
const MIN_ITEMS: u64 = 8;
const MIN_S: f64 = 10.0;
/// Factor by which another stage must be busier than the suspect to replace it: shares of equal stages differ by chance.
const BUSIER: f64 = 1.05;
/// Share of time in use below which no part counts as the limit.
const AT_WORK: f64 = 0.6;
/// Minimum share of worker-thread time spent in ops for threads to be the limit; waits for threads must also reach [`WANTED`].
const THREADS_FULL: f64 = 0.8;
/// Share of waits for threads or permits, in the time that tasks hold slots, from which threads or permits may be the limit.
const WANTED: f64 = 0.2;
/// Minimum share of failed samples at which failures can be the limit; the share must also reach that of the consumer's wait.
const FAILS: f64 = 0.05;
/// Minimum share of failed samples at which most of a stage's work counts as lost.
const FAILS_MOSTLY: f64 = 0.5;

/// Figures of one interval, ready for a verdict.
pub(super) struct Look<'a> {
    pub(super) shape: &'a PipelineShape,
    pub(super) measured: Measured<'a>,
    /// Use of slots by stage; `None` for stages that only move samples, and where nothing was measured.
    pub(super) slots: Vec<Option<SlotUse>>,
    pub(super) threads: Option<ThreadUse>,
}

/// Part that limits the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Consumer,
    Source,
    Stage(usize),
}

impl<'a> Look<'a> {
    pub(super) fn at(shape: &'a PipelineShape, measured: Measured<'a>) -> Self {
        let slots: Vec<_> =
            shape.stages.iter().zip(&measured.stages).map(|(stage, task)| SlotUse::of(stage, task)).collect();
        let threads = ThreadUse::of(shape, &slots);
        Self { shape, measured, slots, threads }
    }

    pub(super) fn verdict(&self) -> Verdict {
        let (kind, limit) = self.judge();
        Verdict {
            kind,
            answer: self.answer(kind),
            stage: match limit {
                Some(Limit::Stage(stage)) => Some(self.shape.stages[stage].id.clone()),
                Some(Limit::Source) => Some(self.shape.source.id.clone()),
                Some(Limit::Consumer) | None => None,
            },
            sentence: words::sentence(self, kind, limit),
            evidence: words::evidence(self, kind, limit),
            advice: advice::advice(self, kind, limit),
            from_s: self.measured.from_s,
            to_s: self.measured.to_s,
            rate: self.rate(),
            demand: self.demand(),
            consumer_wait: self.consumer_wait(),
            slots: self.slots.iter().flatten().cloned().collect(),
            threads: self.threads,
        }
    }

    /// Kind of the limit, and the part that the sentence names.
    pub(super) fn judge(&self) -> (VerdictKind, Option<Limit>) {
        let Some(sink) = self.measured.queues.last() else { return (VerdictKind::TooLittle, None) };
        let (failing, share) = self.failing();
        let is_cold = sink.num_items == 0 && !self.measured.is_warm;
        if is_cold || sink.num_items < MIN_ITEMS && self.length_s() < MIN_S {
            return match failing.filter(|_| share >= FAILS_MOSTLY) {
                Some(stage) => (VerdictKind::Failures, Some(Limit::Stage(stage))),
                None => (VerdictKind::TooLittle, None),
            };
        }
        let wait = self.consumer_wait().unwrap_or(0.0);
        let is_fed = wait < STARVES;
        if is_fed && !self.shape.discards {
            return (VerdictKind::Consumer, Some(Limit::Consumer));
        }
        let walked = self.walk();
        let limit = match self.busiest(|part| self.reader_waits(part)) {
            Some((stage, in_use)) if in_use > BUSIER * self.in_use(walked) => Limit::Stage(stage),
            _ => walked,
        };
        let in_use = self.in_use(limit);
        let is_felt = sink.ave_get_time_s.is_none_or(|wait| wait >= FELT_S);
        if !is_felt && self.busiest(|_| true).is_none_or(|(_, in_use)| in_use < AT_WORK) {
            return (VerdictKind::NothingWaits, None);
        }
        let would_be_fed = !self.shape.discards && share >= FAILS && share >= wait;
        if let Some(stage) = failing.filter(|_| share >= FAILS_MOSTLY || would_be_fed) {
            return (VerdictKind::Failures, Some(Limit::Stage(stage)));
        }
        let may_burst = self.both_sides_wait(limit);
        if may_burst && !self.shape.discards && 1.0 - wait > in_use {
            return (VerdictKind::Variance, Some(limit));
        }
        match limit {
            Limit::Consumer => (VerdictKind::Consumer, Some(limit)),
            Limit::Source => (VerdictKind::Source, Some(limit)),
            Limit::Stage(_) if may_burst && self.shape.discards && in_use < AT_WORK => {
                (VerdictKind::Variance, Some(limit))
            }
            Limit::Stage(stage) if self.waits_for_threads(stage) => (VerdictKind::Threads, Some(limit)),
            Limit::Stage(stage) if self.waits_for_permits(stage) => (VerdictKind::Permits, Some(limit)),
            Limit::Stage(stage) if self.shape.stages[stage].work == Work::Storage => {
                (VerdictKind::Storage, Some(limit))
            }
            Limit::Stage(_) => (VerdictKind::Stage, Some(limit)),
        }
    }

    /// Share of time, 0.0 to 1.0, in which a part worked at its maximum.
    pub(super) fn in_use(&self, limit: Limit) -> f64 {
        match limit {
            Limit::Consumer => 1.0 - self.consumer_wait().unwrap_or(0.0),
            Limit::Source => self.measured.queues.first().map_or(0.0, |queue| {
                let blocked = queue.ave_put_time_s.unwrap_or(0.0) * queue.num_items as f64;
                if queue.elapsed_s > 0.0 { (1.0 - blocked / queue.elapsed_s).max(0.0) } else { 0.0 }
            }),
            Limit::Stage(stage) => {
                self.slots[stage].as_ref().map_or(0.0, |slots| slots.in_use(&self.shape.stages[stage]))
            }
        }
    }

    /// Stages that do work, with their share of time in use; stages that only move samples are left out.
    pub(super) fn uses(&self) -> impl Iterator<Item = (usize, f64)> {
        let places = self.slots.iter().enumerate().filter(|(_, slots)| slots.is_some());
        places.map(|(stage, _)| (stage, self.in_use(Limit::Stage(stage))))
    }

    /// The stage with the highest share of the whole interval in use, of those that count; the first one if several are equal. A
    /// stage that ended early did not limit the rest.
    fn busiest(&self, counts: impl Fn(Limit) -> bool) -> Option<(usize, f64)> {
        let of_all = |stage: usize| (self.measured.stages[stage].elapsed_s / self.length_s()).min(1.0);
        let uses = self.uses().filter(|(stage, _)| counts(Limit::Stage(*stage)));
        let uses = uses.map(|(stage, in_use)| (stage, in_use * of_all(stage)));
        uses.reduce(|most, next| if next.1 > most.1 { next } else { most })
    }

    /// Searches from the sink queue upstream as long as readers starve; returns the part that feeds the most upstream queue
    /// whose reader starves. A part that only moves samples is replaced by the one that feeds it. If there are several such parts,
    /// in the paths of a route, returns the one with the highest share of time in use.
    fn walk(&self) -> Limit {
        let mut seen = vec![false; self.measured.queues.len()];
        let mut found = Vec::new();
        let sink_queue = self.measured.queues.len().saturating_sub(1);
        self.climb(sink_queue, &mut seen, &mut found);
        let busier =
            |most: Limit, next: Limit| if self.in_use(next) > self.in_use(most) { next } else { most };
        found.into_iter().reduce(busier).unwrap_or(Limit::Source)
    }

    /// Adds the parts at which the search upstream from `queue` ends. The reader of this queue starves, or feeds one that starves.
    fn climb(&self, queue: usize, seen: &mut [bool], found: &mut Vec<Limit>) {
        if seen.get_mut(queue).is_none_or(|seen| std::mem::replace(seen, true)) {
            return;
        }
        let starves = |queue: &usize| self.starved(*queue) >= STARVES;
        let before = RouteSpan::before(&self.shape.routes, queue);
        if before.iter().any(starves) {
            before.into_iter().filter(starves).for_each(|queue| self.climb(queue, seen, found));
        } else if let Some(stage) = self.working(queue) {
            found.push(Limit::Stage(stage));
        } else if queue == 0 {
            found.push(Limit::Source);
        } else {
            before.into_iter().for_each(|queue| self.feeds(queue, seen, found));
        }
    }

    /// Share of the whole interval in which the reader of a queue waited. A queue that ended early starves nothing afterwards.
    fn starved(&self, queue: usize) -> f64 {
        let queue = self.measured.queues.get(queue);
        queue.map_or(0.0, |queue| queue.starved.unwrap_or(0.0) * queue.elapsed_s / self.length_s())
    }

    /// Queue behind a part, and those that get its items from stages that only move them.
    fn behind(&self, part: Limit) -> impl Iterator<Item = usize> {
        let first = match part {
            Limit::Consumer => None,
            Limit::Source => Some(0),
            Limit::Stage(stage) => Some(stage + 1),
        };
        let readers = RouteSpan::readers(&self.shape.routes, self.measured.queues.len());
        std::iter::successors(first, move |queue| {
            let reader = *readers.get(*queue)?;
            (self.working(reader).is_none() && reader < readers.len()).then_some(reader)
        })
    }

    fn reader_waits(&self, part: Limit) -> bool {
        self.behind(part).any(|queue| self.starved(queue) >= STARVES)
    }

    /// True if a part waits for room at times, and its reader for items at other times.
    fn both_sides_wait(&self, part: Limit) -> bool {
        let full = |queue: usize| {
            let queue = &self.measured.queues[queue];
            queue.ave_put_time_s.unwrap_or(0.0) * queue.num_items as f64 / self.length_s()
        };
        self.behind(part).any(|queue| full(queue) >= STARVES && self.starved(queue) >= STARVES)
    }

    /// Stage of the node with this number, if it does more than to move items, as the sink and rebatching stages do.
    fn working(&self, node: usize) -> Option<usize> {
        let stage = node.checked_sub(1)?;
        self.shape.stages.get(stage).is_some_and(|stage| stage.work != Work::Moving).then_some(stage)
    }

    /// Adds the part that puts into `queue`, or the parts that feed it if it only moves samples.
    fn feeds(&self, queue: usize, seen: &mut [bool], found: &mut Vec<Limit>) {
        match self.working(queue) {
            Some(stage) => found.push(Limit::Stage(stage)),
            None if queue == 0 => found.push(Limit::Source),
            None if std::mem::replace(&mut seen[queue], true) => {}
            None => {
                let before = RouteSpan::before(&self.shape.routes, queue);
                before.into_iter().for_each(|queue| self.feeds(queue, seen, found));
            }
        }
    }

    fn waits_for_threads(&self, stage: usize) -> bool {
        let is_full = self.threads.is_some_and(|threads| threads.share() >= THREADS_FULL);
        is_full && self.waits(stage, |slots| slots.thread_wait) >= WANTED
    }

    /// True if more permits of its store would help a stage more than more tasks would. A task with a permit for one of its reads
    /// counts as busy even if its other reads wait, so the number of reads that all tasks request counts as well.
    pub(super) fn waits_for_permits(&self, stage: usize) -> bool {
        let shape = &self.shape.stages[stage];
        let reads = shape.store.as_ref().and_then(|store| store.reads).map(u64::from);
        let asks_for_more = reads.is_some_and(|reads| shape.reads_of(shape.concurrency) > reads);
        asks_for_more || self.waits(stage, |slots| slots.permit_wait) >= WANTED
    }

    /// Share of one kind of wait, 0.0 to 1.0, in the time that the stage's slots are held by this wait or by running ops.
    fn waits(&self, stage: usize, wait: impl Fn(&SlotUse) -> f64) -> f64 {
        self.slots[stage].as_ref().map_or(0.0, |slots| {
            let held = slots.busy + wait(slots);
            if held > 0.0 { wait(slots) / held } else { 0.0 }
        })
    }

    /// The stage that loses the largest share of the samples, and the share that all stages lose together.
    pub(super) fn failing(&self) -> (Option<usize>, f64) {
        let (mut worst, mut most, mut kept) = (None, 0.0, 1.0);
        let passing = self.passing();
        for (stage, passing) in passing.into_iter().enumerate() {
            let share = passing * self.failed_share(stage);
            kept *= 1.0 - share;
            if share > most {
                (worst, most) = (Some(stage), share);
            }
        }
        (worst, 1.0 - kept)
    }

    /// Share of the samples that each stage gets, 0.0 to 1.0: 1 outside of routes.
    fn passing(&self) -> Vec<f64> {
        let mut passing = vec![1.0; self.measured.stages.len()];
        let tasks = |node: usize| self.measured.stages.get(node - 1).map_or(0, |task| task.num_tasks);
        for span in &self.shape.routes {
            let all: u64 = tasks(span.join).max(1);
            for path in span.paths() {
                let share = (tasks(*path.start()) as f64 / all as f64).min(1.0);
                path.for_each(|node| passing.get_mut(node - 1).into_iter().for_each(|of| *of *= share));
            }
        }
        passing
    }

    /// Share of a stage's samples that failed, 0.0 to 1.0.
    pub(super) fn failed_share(&self, stage: usize) -> f64 {
        let (shape, task) = (&self.shape.stages[stage], &self.measured.stages[stage]);
        let samples = task.num_tasks.saturating_mul(shape.samples);
        if samples == 0 { 0.0 } else { (task.failed_samples as f64 / samples as f64).min(1.0) }
    }

    /// Answer to whether data loading is the bottleneck. Where items come in bursts, the larger part of the consumer's time
    /// decides.
    pub(super) fn answer(&self, kind: VerdictKind) -> Answer {
        match kind {
            VerdictKind::Variance if !self.shape.discards && self.consumer_wait() < Some(0.5) => Answer::No,
            VerdictKind::Consumer => Answer::No,
            VerdictKind::NothingWaits => Answer::NothingWaits,
            VerdictKind::TooLittle => Answer::Unknown,
            _ => Answer::Yes,
        }
    }

    /// Share of time in which the consumer waited.
    pub(super) fn consumer_wait(&self) -> Option<f64> {
        self.measured.queues.last().and_then(|sink| sink.starved)
    }

    /// Items that the consumer took per second.
    pub(super) fn rate(&self) -> Option<f64> {
        self.measured.queues.last().and_then(|sink| sink.qps)
    }

    /// Mean number of samples per item that the consumer took; `None` if the consumer took no item, or samples were not counted.
    pub(super) fn samples_per_item(&self) -> Option<f64> {
        let items = self.measured.queues.last()?.num_items;
        self.measured
            .samples
            .filter(|samples| *samples > 0 && items > 0)
            .map(|samples| samples as f64 / items as f64)
    }

    /// Samples that failed in the measured time.
    pub(super) fn failed_samples(&self) -> u64 {
        self.measured.stages.iter().map(|task| task.failed_samples).sum()
    }

    /// True if samples failed, in the measured time or, where the failures of the run are known, at any time.
    pub(super) fn has_failures(&self) -> bool {
        self.failed_samples() > 0 || !self.measured.failures.is_empty()
    }

    /// Items that the consumer could have taken per second; `None` if it waits for more than 99 % of the time.
    pub(super) fn demand(&self) -> Option<f64> {
        let works = 1.0 - self.consumer_wait()?;
        (!self.shape.discards && works >= 0.01).then_some(self.rate()? / works)
    }

    /// Measured time, in seconds.
    fn length_s(&self) -> f64 {
        self.measured.queues.last().map_or(0.0, |sink| sink.elapsed_s)
    }

    /// The stage that the sentence names, with the use of its slots.
    pub(super) fn stage(&self, limit: Option<Limit>) -> Option<(&StageTraits, &SlotUse)> {
        let Some(Limit::Stage(stage)) = limit else { return None };
        Some((&self.shape.stages[stage], self.slots[stage].as_ref()?))
    }
}
