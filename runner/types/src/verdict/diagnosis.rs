#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::judge::{Limit, Look};
use super::{PipelineShape, Verdict, VerdictKind, VerdictSpan, words};
use crate::failure::FailureGroup;
use crate::machine::MachineFigures;
use crate::plan::Plan;
use crate::series::Row;
use crate::stats::{BookRow, QueueFigures, QueueSums, TaskSums};

/// Minimum length of a window with at least [`WINDOW_ITEMS`] items, in nanoseconds.
const WINDOW: u64 = 1_000_000_000;
/// Number of delivered items and failed samples that end a window before [`LONGEST_WINDOW`].
const WINDOW_ITEMS: u64 = 50;
/// Time after which a window ends with any number of items, in nanoseconds.
const LONGEST_WINDOW: u64 = 10_000_000_000;
/// Number of windows in a row that must agree on another verdict to replace the current one.
const HOLDS: u32 = 3;
/// Share of time in use below which the current limit is replaced after a single window, if another part reaches [`FULL`].
const SLACK: f64 = 0.5;
/// Share of time in use from which a new limit replaces one below [`SLACK`] after a single window.
const FULL: f64 = 0.9;
/// Maximum number of spans kept; older spans are dropped.
const MAX_SPANS: usize = 100;

/// Follows a run and keeps its verdicts: one of the whole run, and one for each span of time in which the verdict stayed the
/// same. Uses no clock: the caller passes the sums with their time.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    shape: PipelineShape,
    /// Sums up to the interval in which the consumer got its first item.
    warm_up: Row,
    is_warm: bool,
    /// Sums after the warm-up.
    warm: Row,
    /// Sums of the current window, which is not judged yet.
    open: Row,
    spans: VecDeque<VerdictSpan>,
    /// Verdict of the latest windows that differs from the current one, and the number of windows that agree on it.
    next: Option<(VerdictSpan, u32)>,
    is_over: bool,
}

impl Diagnosis {
    /// Diagnosis of a run that is about to start.
    pub fn of(shape: PipelineShape) -> Self {
        let (stages, queues) = (shape.stages.len(), shape.stages.len() + 2);
        let row = || Row::empty(0, 0, stages, queues);
        Self {
            warm_up: row(),
            is_warm: false,
            warm: row(),
            open: row(),
            spans: VecDeque::new(),
            next: None,
            is_over: false,
            shape,
        }
    }

    /// Takes over the settings of a plan of the same pipeline that can change in a run.
    pub fn resize(&mut self, plan: &Plan) {
        self.shape.resize(plan);
    }

    /// Adds the sums of the interval that ends at `t1`, in nanoseconds since the start of the run.
    pub fn add(
        &mut self,
        t1: u64,
        stages: &[TaskSums],
        queues: &[QueueSums],
        books: &[BookRow],
        is_over: bool,
    ) {
        self.is_over = is_over;
        if !self.is_warm {
            self.warm_up.add(t1, stages, queues, books);
            self.is_warm = self.warm_up.queues.last().is_some_and(|sink| sink.gets > 0);
            for row in [&mut self.warm, &mut self.open] {
                (row.t0, row.t1) = (t1, t1);
            }
        } else {
            for row in [&mut self.warm, &mut self.open] {
                row.add(t1, stages, queues, books);
            }
            let items = self.open.queues.last().map_or(0, |sink| sink.gets);
            let failed: u64 = self.open.stages.iter().map(|stage| stage.failed_samples).sum();
            let length = self.open.t1 - self.open.t0;
            if (length >= WINDOW && items + failed >= WINDOW_ITEMS) || length >= LONGEST_WINDOW {
                self.judge(t1);
            }
        }
        self.go_on(t1);
        if is_over {
            self.end(t1);
        }
    }

    /// Extends the current verdict; before the first one, updates the number of delivered items.
    fn go_on(&mut self, t1: u64) {
        let to_s = t1 as f64 / 1e9;
        match self.spans.back_mut() {
            Some(span) if span.kind != VerdictKind::TooLittle => span.to_s = to_s,
            _ => {
                let kind = VerdictKind::TooLittle;
                let sentence = words::sentence(&self.look(&self.all(), false, &[], None), kind, None);
                self.spans.pop_back();
                self.spans.push_back(VerdictSpan { from_s: 0.0, to_s, kind, stage: None, sentence });
            }
        }
    }

    /// Sums of the warm-up and the time after it.
    fn all(&self) -> Row {
        let mut all = self.warm_up.clone();
        all.merge(&self.warm);
        all
    }

    /// Verdict of the whole run so far. Excludes the warm-up, which ends with the first item, as soon as the time after it is
    /// sufficient.
    pub fn whole(&self, failures: &[FailureGroup], machine: Option<&MachineFigures>) -> Verdict {
        let warm = self.look(&self.warm, true, failures, machine).verdict();
        if warm.kind != VerdictKind::TooLittle {
            return warm;
        }
        self.look(&self.all(), false, failures, machine).verdict()
    }

    /// Same as [`Self::whole`], with the figures of the sink queue at this moment. The sums end up to an interval earlier, so a run that
    /// has just begun may have delivered items that they lack.
    pub fn whole_now(
        &self,
        sink: &QueueFigures,
        failures: &[FailureGroup],
        machine: Option<&MachineFigures>,
    ) -> Verdict {
        let mut whole = self.whole(failures, machine);
        if whole.kind == VerdictKind::TooLittle {
            let unit = &self.shape.unit;
            whole.sentence = words::too_little(unit, sink.num_items, sink.elapsed_s, self.is_over);
            whole.to_s = whole.to_s.max(sink.elapsed_s);
        }
        whole
    }

    /// Spans of verdicts, oldest first, without gaps; at most the last hundred. The last one may continue.
    pub fn spans(&self) -> Vec<VerdictSpan> {
        self.spans.iter().cloned().collect()
    }

    /// Current verdict; `None` before the first measurement.
    pub fn current(&self) -> Option<&VerdictSpan> {
        self.spans.back()
    }

    fn look<'a>(
        &'a self,
        row: &Row,
        is_warm: bool,
        failures: &'a [FailureGroup],
        machine: Option<&'a MachineFigures>,
    ) -> Look<'a> {
        Look::at(&self.shape, self.shape.measured(row, (is_warm, self.is_over), failures, machine))
    }

    /// Judges the current window and ends it at `t1`, unless it is too little for a verdict.
    fn judge(&mut self, t1: u64) {
        let found = VerdictSpan::from(self.look(&self.open, true, &[], None).verdict());
        if found.kind == VerdictKind::TooLittle {
            return;
        }
        let empty = Row::empty(0, t1, self.open.stages.len(), self.open.queues.len());
        let window = std::mem::replace(&mut self.open, empty);
        let Some(standing) = self.spans.back_mut() else { return };
        if (standing.kind, &standing.stage) == (found.kind, &found.stage) {
            standing.sentence = found.sentence;
            self.next = None;
            return;
        }
        let standing = standing.clone();
        let (next, windows) = match self.next.take() {
            Some((next, windows)) if (next.kind, &next.stage) == (found.kind, &found.stage) => {
                (VerdictSpan { from_s: next.from_s, ..found }, windows + 1)
            }
            _ => (found, 1),
        };
        if windows >= HOLDS
            || standing.kind == VerdictKind::TooLittle
            || self.is_decisive(&window, &standing, &next)
        {
            self.move_to(next);
        } else {
            self.next = Some((next, windows));
        }
    }

    /// True if one window suffices: the current limit has slack, and the new one has none.
    fn is_decisive(&self, window: &Row, standing: &VerdictSpan, next: &VerdictSpan) -> bool {
        let look = self.look(window, true, &[], None);
        let in_use = |span: &VerdictSpan| self.limit(span).map(|limit| look.in_use(limit));
        in_use(standing).is_some_and(|share| share < SLACK) && in_use(next).is_some_and(|share| share >= FULL)
    }

    fn limit(&self, span: &VerdictSpan) -> Option<Limit> {
        match (span.kind, &span.stage) {
            (VerdictKind::Consumer | VerdictKind::Variance, _) => Some(Limit::Consumer),
            (VerdictKind::Source, _) => Some(Limit::Source),
            (_, Some(id)) => self.shape.stages.iter().position(|stage| stage.id == *id).map(Limit::Stage),
            (_, None) => None,
        }
    }

    fn move_to(&mut self, next: VerdictSpan) {
        if let Some(standing) = self.spans.back_mut() {
            standing.to_s = next.from_s;
        }
        self.next = None;
        self.spans.push_back(next);
        if self.spans.len() > MAX_SPANS {
            self.spans.pop_front();
        }
    }

    /// Ends the last span. No later window can confirm the last ones, so they confirm the verdict of the whole run. A run with at
    /// most one verdict gets that of the whole run.
    fn end(&mut self, t1: u64) {
        self.judge(t1);
        let whole = VerdictSpan { to_s: t1 as f64 / 1e9, ..VerdictSpan::from(self.whole(&[], None)) };
        let agrees = |span: &VerdictSpan| (span.kind, &span.stage) == (whole.kind, &whole.stage);
        let next = self.next.take().map(|(next, _)| next).filter(agrees);
        match self.spans.iter().filter(|span| span.kind != VerdictKind::TooLittle).count() {
            0 => self.move_to(whole),
            _ if self.spans.iter().any(agrees) => {}
            judged => match (next, self.spans.back_mut()) {
                (Some(next), _) => self.move_to(VerdictSpan { to_s: whole.to_s, ..next }),
                (None, Some(only)) if judged == 1 => *only = VerdictSpan { from_s: only.from_s, ..whole },
                (None, _) => {}
            },
        }
        self.spans.retain(|span| span.to_s > span.from_s);
    }
}

impl From<Verdict> for VerdictSpan {
    fn from(verdict: Verdict) -> Self {
        Self {
            from_s: verdict.from_s,
            to_s: verdict.to_s,
            kind: verdict.kind,
            stage: verdict.stage,
            sentence: verdict.sentence,
        }
    }
}
