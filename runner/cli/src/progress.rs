use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use penstock_engine::running::StopReason;
use penstock_pipeline::{Ended, Run, StateFile};
use penstock_types::run::RunSnapshot;
use penstock_types::verdict::VerdictSpan;

use crate::text::{count, percent, rate, warn};

/// Time between two updates of the display.
const LOOK: Duration = Duration::from_millis(200);
/// Time between two lines if the output is not a terminal, in seconds.
const LINE_EVERY_S: f64 = 5.0;

/// Display of a run's progress: an updating line on a terminal, a line every few seconds elsewhere.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    plain: bool,
    /// Run time at which the last line was printed, in seconds, if the output is not a terminal.
    line_at_s: f64,
    /// Run time in seconds and number of delivered samples at the last measurement of the rate.
    last: Option<(f64, u64)>,
    rate: Option<f64>,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        let terminal = io::stderr().is_terminal();
        Self {
            bar: (terminal && !quiet).then(spinner),
            plain: !terminal && !quiet,
            line_at_s: 0.0,
            last: None,
            rate: None,
        }
    }

    pub(crate) fn show(&mut self, snapshot: &RunSnapshot) {
        let delivered = snapshot.ledger.total.delivered;
        self.measure(snapshot.elapsed_s, delivered);
        let readiness = snapshot.queues.last().and_then(|sink| sink.figures.readiness);
        let limit =
            snapshot.verdicts.last().map_or_else(|| "not known yet".to_owned(), VerdictSpan::in_short);
        let line = format!(
            "{}: {} samples delivered, {}/s, sink ready {}, limit: {limit}, {:.0} s",
            snapshot.state.name(),
            count(delivered),
            rate(self.rate),
            percent(readiness),
            snapshot.elapsed_s
        );
        match &self.bar {
            Some(bar) => {
                let total = &snapshot.ledger.total;
                let done =
                    total.delivered + total.dropped + total.skipped + total.dead_lettered + total.discarded;
                if let Some(expected) = snapshot.expected.filter(|_| bar.length().is_none()) {
                    bar.set_style(style("{spinner} {bar:30} {percent:>3} % {wide_msg}"));
                    bar.set_length(expected);
                }
                // With fan-out, more samples are delivered than the source has produced, but the bar must not exceed its end.
                bar.set_position(done.min(snapshot.expected.unwrap_or(done)));
                bar.set_message(line);
            }
            None if self.plain && snapshot.elapsed_s - self.line_at_s >= LINE_EVERY_S => {
                self.line_at_s = snapshot.elapsed_s;
                warn(&format!("{} {line}", snapshot.name));
            }
            None => {}
        }
    }

    /// Removes the progress line from the terminal.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Updates the rate, measured over about the last second.
    fn measure(&mut self, elapsed_s: f64, delivered: u64) {
        match self.last {
            Some((at, before)) if elapsed_s - at >= 1.0 => {
                self.rate = Some((delivered - before) as f64 / (elapsed_s - at));
                self.last = Some((elapsed_s, delivered));
            }
            Some(_) => {}
            None => self.last = Some((elapsed_s, delivered)),
        }
    }
}

/// Displays the progress of a run until it ends, and stops the run after `time`.
/// Keeps its state in `state`.
pub(crate) fn watch(
    run: Run,
    time: Option<Duration>,
    quiet: bool,
    mut state: Option<&mut StateFile>,
) -> Ended {
    let mut progress = Progress::new(quiet);
    loop {
        let elapsed = Duration::from_secs_f64(run.snapshot().elapsed_s);
        let left = time.map(|time| time.saturating_sub(elapsed));
        if left.is_some_and(|left| left.is_zero()) {
            run.handle.stop(StopReason::TimeIsUp);
        }
        if run.handle.wait_for(left.unwrap_or(LOOK).min(LOOK)) {
            break;
        }
        let snapshot = run.snapshot();
        progress.show(&snapshot);
        if let Some(state) = &mut state {
            state.update(&run, Duration::from_secs_f64(snapshot.elapsed_s));
        }
    }
    progress.clear();
    run.wait()
}

/// A line on a terminal that changes until it is cleared; hidden if standard error is none.
pub(crate) fn spinner() -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_style(style("{spinner} {wide_msg}"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

pub(crate) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
