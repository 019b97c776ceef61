//! Figures of a run over one window.

use std::collections::BTreeMap;

use penstock_types::figures::{FigureWindow, LedgerMovement, RunFigures, RunTotals, WindowKind};
use penstock_types::run::{RunDetail, RunId, RunSnapshot, StageRecord, Window};
use penstock_types::series::{Level, Row, Timed};
use penstock_types::stats::per_second;
use penstock_types::verdict::{self, PipelineShape, Verdict, VerdictKind};

use crate::error::RunsError;
use crate::history::{Layout, RunRows};
use crate::queries::nanos;
use crate::runs::Runs;
use crate::wire::FiguresQuery;

const SECOND: u64 = 1_000_000_000;

/// Window that a request selects; all times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Steady,
    Last(u64),
    Range(u64, u64),
}

/// Figures that were measured in a window, and the number of samples taken from each queue, in the order of the pipeline, which is empty
/// if samples were not counted.
type Measured = (RunFigures, Vec<u64>);

impl Runs {
    /// Returns the figures of a run over a window: the figures of all stages and queues, the movement of samples, and a verdict
    /// on exactly this window.
    pub async fn figures(&self, id: &RunId, query: FiguresQuery) -> Result<RunFigures, RunsError> {
        let wanted = Wanted::of(&query)?;
        let detail = self.detail(id).await?;
        self.read_rows(id, move |rows, layout| figures(detail, wanted, &rows, &layout)).await
    }
}

impl Wanted {
    fn of(query: &FiguresQuery) -> Result<Self, RunsError> {
        let FiguresQuery { from_s, to_s, last_s } = *query;
        if let Some(last_s) = last_s {
            RunsError::refuse_unless(from_s.is_none() && to_s.is_none(), || {
                "pass `last_s`, or `from_s` and `to_s`".to_owned()
            })?;
            return Ok(Self::Last(nanos(last_s, "last_s")?));
        }
        if from_s.is_none() && to_s.is_none() {
            return Ok(Self::Steady);
        }
        let from = nanos(from_s.unwrap_or(0.0), "from_s")?;
        let to = to_s.map(|to| nanos(to, "to_s")).transpose()?.unwrap_or(u64::MAX);
        RunsError::refuse_unless(from < to, || "`from_s` must be less than `to_s`".to_owned())?;
        Ok(Self::Range(from, to))
    }
}

fn figures(
    detail: RunDetail,
    wanted: Wanted,
    rows: &RunRows<'_>,
    layout: &Layout,
) -> Result<RunFigures, RunsError> {
    let RunDetail { summary, snapshot, .. } = detail;
    let Some(snapshot) = snapshot else {
        return Ok(RunFigures { run: summary.id, state: summary.state, ..RunFigures::default() });
    };
    let (found, taken) =
        measured(&snapshot, wanted, rows, layout)?.unwrap_or_else(|| whole(&snapshot, layout));
    let sink = found.queues.last().map(|queue| &queue.figures);
    let is_batched = match &layout.shape {
        Some(shape) => shape.delivers_batches(),
        None => {
            snapshot.ledger.total.delivered != snapshot.queues.last().map_or(0, |sink| sink.figures.num_items)
        }
    };
    let qps = sink.and_then(|sink| sink.qps);
    let rates = found.queues.iter().enumerate().map(|(place, queue)| {
        let rate = taken.get(place).and_then(|taken| per_second(*taken, queue.figures.elapsed_s));
        (queue.id.clone(), rate.or(queue.figures.qps.filter(|_| !is_batched)))
    });
    let queue_samples_per_s: BTreeMap<_, _> = rates.collect();
    let failed = |stages: &[StageRecord]| stages.iter().map(|stage| stage.task.failed_samples).sum();
    Ok(RunFigures {
        run: summary.id,
        state: summary.state,
        total: RunTotals {
            elapsed_s: snapshot.elapsed_s,
            expected: snapshot.expected,
            failed_samples: failed(&snapshot.stages),
            samples: snapshot.ledger.total.clone(),
            balanced: snapshot.ledger.balanced,
        },
        samples: found.ledger.as_ref().map(|ledger| ledger.total.delivered),
        failed_samples: failed(&found.stages),
        samples_per_s: found.queues.last().and_then(|sink| queue_samples_per_s[&sink.id]),
        batches_per_s: qps.filter(|_| is_batched),
        consumer_waited: sink
            .filter(|sink| sink.num_items > 0 || sink.starved != Some(0.0))
            .and_then(|sink| sink.starved),
        queue_samples_per_s,
        ..found
    })
}

/// Measures a window from the stored rows; `None` if the window is the whole run, whose figures are in the snapshot of the run.
fn measured(
    snapshot: &RunSnapshot,
    wanted: Wanted,
    rows: &RunRows<'_>,
    layout: &Layout,
) -> Result<Option<Measured>, RunsError> {
    let end = rows.end()?;
    if end == 0 {
        return Ok(None);
    }
    let warm = warm_begin(snapshot, rows)?;
    let is_over = snapshot.state.is_over();
    let (kind, from, to) = match wanted {
        Wanted::Range(0, to) if to as f64 >= snapshot.elapsed_s * 1e9 => return Ok(None),
        Wanted::Range(from, to) => {
            let (from, to) = (from.min(end), to.min(end));
            let grid = grid(to - from);
            (WindowKind::Range, from / grid * grid, to.next_multiple_of(grid).min(end))
        }
        Wanted::Last(length) if warm.unwrap_or(0) < end.saturating_sub(length) => {
            // While a run continues, the window ends at a whole second, because the task times of the current second are
            // incomplete.
            let end = if is_over { end } else { end / SECOND * SECOND };
            (WindowKind::Last, end.saturating_sub(length), end)
        }
        Wanted::Last(_) | Wanted::Steady => match warm {
            Some(warm) => (WindowKind::Steady, warm.next_multiple_of(grid(end - warm.min(end))), end),
            None => return Ok(None),
        },
    };
    let empty = || Row::empty(0, from, layout.stages.len(), layout.queues.len());
    let row = rows.sum(from, to)?.unwrap_or_else(empty);
    let is_past = kind == WindowKind::Range && to < end;
    let was_warm = warm.is_some_and(|warm| warm <= row.t0);
    let judged = layout.shape.as_ref().map(|shape| {
        // The verdict treats a window in the past, and a window that starts after warm-up, like a run that has ended, because no
        // more rows can be added to the window.
        let is_over = is_over || is_past || was_warm;
        // The usage of the machine is known for the whole run only.
        let machine = snapshot.machine.as_ref().filter(|_| kind == WindowKind::Steady);
        let shape = shape.at(&snapshot.changes, row.t1 as f64 / 1e9);
        let measured = shape.measured(&row, (was_warm, is_over), &snapshot.failures, machine);
        Verdict::of(&shape, measured).with_tried(&snapshot.changes)
    });
    let verdict = match kind {
        WindowKind::Steady if judged.as_ref().is_some_and(|found| found.kind == VerdictKind::TooLittle) => {
            return Ok(None);
        }
        WindowKind::Steady => judged.or_else(|| snapshot.verdict.clone()),
        _ => judged,
    };
    let mut window = layout.at(&snapshot.changes, row.t1 as f64 / 1e9).window(&row);
    // The last interval before the end of a run may be shorter.
    let is_whole =
        |length: u64| from.is_multiple_of(length) && (to.is_multiple_of(length) || is_over && to >= end);
    set_percentiles(&mut window, &row, is_whole);
    let figures = RunFigures {
        window: FigureWindow { kind, from_s: window.t0_s, to_s: window.t1_s },
        stages: window.stages,
        queues: window.queues,
        ledger: LedgerMovement::of_books(layout.nodes(), &row.books),
        verdict,
        ..RunFigures::default()
    };
    let routes = layout.shape.as_ref().map_or(&[][..], PipelineShape::routes);
    Ok(Some((figures, row.taken_from_queues(routes))))
}

/// Sets the percentiles of a window. They need task times, which are stored for whole seconds, or waits, which are stored for whole
/// rows of the middle level; `is_whole` is true if the window consists of whole intervals of a length.
fn set_percentiles(window: &mut Window, row: &Row, is_whole: impl Fn(u64) -> bool) {
    if is_whole(SECOND) {
        for (place, stage) in window.stages.iter_mut().enumerate() {
            let Some(times) = row.histogram(Timed::Tasks(place)) else { continue };
            let quantile = |q| times.quantile_s(q);
            let task = &mut stage.task;
            (task.p50_time_s, task.p90_time_s) = (quantile(0.50), quantile(0.90));
            (task.p99_time_s, task.max_time_s) = (quantile(0.99), times.longest_s());
        }
    }
    if is_whole(Level::Middle.width()) {
        for (place, queue) in window.queues.iter_mut().enumerate() {
            let waits =
                |of: Timed| row.histogram(of).map(|waits| (waits.quantile_s(0.90), waits.quantile_s(0.99)));
            let figures = &mut queue.figures;
            if let Some((puts, gets)) = waits(Timed::Puts(place)).zip(waits(Timed::Gets(place))) {
                (figures.p90_put_time_s, figures.p99_put_time_s) = puts;
                (figures.p90_get_time_s, figures.p99_get_time_s) = gets;
            }
        }
    }
}

/// Figures of the whole run, warm-up included, from the last snapshot of the run.
fn whole(snapshot: &RunSnapshot, layout: &Layout) -> Measured {
    let verdict = layout.shape.as_ref().map(|shape| {
        let measured = verdict::Measured {
            from_s: 0.0,
            to_s: snapshot.elapsed_s,
            stages: snapshot.stages.iter().map(|stage| stage.task.clone()).collect(),
            queues: snapshot.queues.iter().map(|queue| queue.figures.clone()).collect(),
            samples: Some(snapshot.ledger.total.delivered),
            is_warm: false,
            is_over: snapshot.state.is_over(),
            failures: &snapshot.failures,
            machine: snapshot.machine.as_ref(),
        };
        Verdict::of(&shape.at(&snapshot.changes, snapshot.elapsed_s), measured).with_tried(&snapshot.changes)
    });
    let figures = RunFigures {
        window: FigureWindow { kind: WindowKind::Whole, from_s: 0.0, to_s: snapshot.elapsed_s },
        stages: snapshot.stages.clone(),
        queues: snapshot.queues.clone(),
        ledger: Some(LedgerMovement::from(&snapshot.ledger)),
        verdict: verdict.or_else(|| snapshot.verdict.clone()),
        ..RunFigures::default()
    };
    (figures, snapshot.ledger.queues.iter().map(|queue| queue.taken).collect())
}

/// Unit to whose multiples the bounds of a window of this length are rounded, in nanoseconds. Long windows are rounded to whole
/// seconds or to whole rows of the middle level, because percentiles are known only for these.
pub(crate) fn grid(length: u64) -> u64 {
    match length / SECOND {
        0..10 => Level::Finest.width(),
        10..60 => SECOND,
        _ => Level::Middle.width(),
    }
}

/// Start of the first row after warm-up, in nanoseconds since the run's start; `None` if the run is too short to leave out
/// warm-up.
fn warm_begin(snapshot: &RunSnapshot, rows: &RunRows<'_>) -> Result<Option<u64>, RunsError> {
    let verdict = snapshot.verdict.as_ref().filter(|verdict| verdict.from_s > 0.0);
    let begin = verdict.map(|verdict| rows.begin_after((verdict.from_s * 1e9).round() as u64)).transpose()?;
    Ok(begin.filter(|begin| *begin >= Level::Finest.width()))
}
