//! Figures of a run over one window: everything that a page or a report states about it, all read at the same moment.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ledger::{Ledger, RunBook, StageBook};
use crate::run::{QueueRecord, RunId, RunSnapshot, RunState, StageRecord};
use crate::stats::BookRow;
use crate::verdict::Verdict;

/// Figures of a run over one window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunFigures {
    /// Id of the run.
    pub run: RunId,
    /// State of the run when the figures were read.
    pub state: RunState,
    /// Figures from the run's start to the reading, independent of the window.
    pub total: RunTotals,
    /// Interval that all figures below cover.
    pub window: FigureWindow,
    /// Samples that the consumer took in the window; `null` for runs of earlier versions, which did not count samples over time.
    pub samples: Option<u64>,
    /// Samples that failed in the window.
    pub failed_samples: u64,
    /// Samples that the consumer took per second.
    pub samples_per_s: Option<f64>,
    /// Batches that the consumer took per second; `null` where the consumer takes single samples.
    pub batches_per_s: Option<f64>,
    /// Share of time in which the consumer waited for an item, 0.0 to 1.0.
    pub consumer_waited: Option<f64>,
    /// The stages, first to last. Percentiles and maxima are `null` where they are known only for another window.
    pub stages: Vec<StageRecord>,
    /// The queues, first to last.
    pub queues: Vec<QueueRecord>,
    /// Samples taken per second from each queue, by the id of the queue.
    pub queue_samples_per_s: BTreeMap<String, Option<f64>>,
    /// Movement of samples; `null` for runs of earlier versions, which did not count samples over time.
    pub ledger: Option<LedgerMovement>,
    /// Verdict on the window; `null` for runs of earlier versions, which did not store the figures that a verdict needs.
    pub verdict: Option<Verdict>,
}

/// Figures of a run from its start to the reading.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunTotals {
    /// Seconds since the run's start, or from its start to its end.
    pub elapsed_s: f64,
    /// Samples that the source makes in all; `null` while the number is unknown, and for a source without an end.
    pub expected: Option<u64>,
    /// Samples that failed since the run's start.
    pub failed_samples: u64,
    /// Samples of the run, by outcome.
    pub samples: RunBook,
    /// Set if the counts of every stage and queue in the ledger balance.
    pub balanced: bool,
}

/// Interval that figures cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FigureWindow {
    /// Kind of the window.
    pub kind: WindowKind,
    /// Start, in seconds since the run's start. A requested start is moved back to the start of a stored row.
    pub from_s: f64,
    /// End, in seconds since the run's start. A requested end is moved forward to the end of a stored row.
    pub to_s: f64,
}

/// Kind of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WindowKind {
    /// The whole run, warm-up included. Percentiles and maxima are available.
    #[default]
    Whole,
    /// The whole run without warm-up, which ends with the first item that the consumer takes.
    Steady,
    /// The last seconds of the run so far.
    Last,
    /// A requested interval of the run.
    Range,
}

/// Movement of samples in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerMovement {
    /// Source, stages and sink, first to last.
    pub stages: Vec<StageMovement>,
    /// Movement of the whole run.
    pub total: RunMovement,
}

/// Movement of samples at one stage: `in + made = out + dropped + skipped + dead_lettered + discarded + left`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageMovement {
    /// Id of the stage.
    pub id: String,
    /// Samples taken from the queue before the stage.
    #[serde(rename = "in")]
    pub taken: u64,
    /// Samples made by the source or by fan-out.
    pub made: u64,
    /// Samples put into the queue behind the stage.
    pub out: u64,
    /// Samples left out on purpose.
    pub dropped: u64,
    /// Samples that failed and were left out.
    pub skipped: u64,
    /// Samples that failed and were kept as dead letters.
    pub dead_lettered: u64,
    /// Samples discarded with incomplete last batches, or because another rank had no more batches.
    pub discarded: u64,
    /// Change in the number of samples inside the stage.
    pub left: i64,
}

/// Movement of samples of a run: `made = delivered + dropped + skipped + dead_lettered + discarded + left`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunMovement {
    /// Samples made by the source and by fan-out.
    pub made: u64,
    /// Samples taken by the consumer.
    pub delivered: u64,
    /// Samples left out on purpose.
    pub dropped: u64,
    /// Samples that failed and were left out.
    pub skipped: u64,
    /// Samples that failed and were kept as dead letters.
    pub dead_lettered: u64,
    /// Samples discarded with incomplete last batches, or because another rank had no more batches.
    pub discarded: u64,
    /// Change in the number of samples inside stages and queues.
    pub left: i64,
}

impl RunFigures {
    /// Replaces the figures since the run's start in `snapshot` by the figures of the window.
    #[must_use]
    pub fn measured_in(self, snapshot: RunSnapshot) -> RunSnapshot {
        let Self { stages, queues, samples_per_s, consumer_waited, ledger, .. } = self;
        let books = ledger.map(|ledger| ledger.stages.into_iter().map(StageBook::from).collect());
        let stage_books = books.unwrap_or_else(|| snapshot.ledger.stages.clone());
        let ledger = Ledger { stages: stage_books, ..snapshot.ledger };
        RunSnapshot { stages, queues, samples_per_s, consumer_waited, ledger, ..snapshot }
    }
}

impl LedgerMovement {
    /// Movement computed from the sample counts of a row; `ids` are the ids of source, stages and sink, in order. `None` for a
    /// row without counts.
    pub fn of_books<'a>(ids: impl IntoIterator<Item = &'a str>, books: &[BookRow]) -> Option<Self> {
        let (consumer, nodes) = books.split_last()?;
        let stages: Vec<_> = ids.into_iter().zip(nodes).map(|(id, row)| StageMovement::of(id, row)).collect();
        let delivered = consumer.taken.saturating_sub(consumer.discarded);
        Some(Self { total: RunMovement::of(&stages, delivered), stages })
    }
}

/// Movement from the start of a run to the reading of its ledger.
impl From<&Ledger> for LedgerMovement {
    fn from(ledger: &Ledger) -> Self {
        let stages: Vec<_> = ledger.stages.iter().map(StageMovement::from).collect();
        Self { total: RunMovement::of(&stages, ledger.total.delivered), stages }
    }
}

impl From<&StageBook> for StageMovement {
    fn from(book: &StageBook) -> Self {
        Self { left: book.left.cast_signed(), ..Self::of(&book.id, &BookRow::from(book)) }
    }
}

/// Copies the counts; `left` is 0 for a stage that contains fewer samples than before.
impl From<StageMovement> for StageBook {
    fn from(movement: StageMovement) -> Self {
        let StageMovement { id, taken, made, out, dropped, skipped, dead_lettered, discarded, left } =
            movement;
        let left = u64::try_from(left).unwrap_or(0);
        Self { id, taken, made, out, dropped, skipped, dead_lettered, discarded, left }
    }
}

impl StageMovement {
    fn of(id: &str, row: &BookRow) -> Self {
        let BookRow { taken, made, out, dropped, skipped, dead_lettered, discarded } = *row;
        let left = change([taken, made], [out, dropped, skipped, dead_lettered, discarded]);
        Self { id: id.to_owned(), taken, made, out, dropped, skipped, dead_lettered, discarded, left }
    }
}

impl RunMovement {
    fn of(stages: &[StageMovement], delivered: u64) -> Self {
        let sum = |of: fn(&StageMovement) -> u64| stages.iter().map(of).fold(0, u64::saturating_add);
        let mut total = Self {
            made: sum(|stage| stage.made),
            delivered,
            dropped: sum(|stage| stage.dropped),
            skipped: sum(|stage| stage.skipped),
            dead_lettered: sum(|stage| stage.dead_lettered),
            discarded: sum(|stage| stage.discarded),
            left: 0,
        };
        let gone = [delivered, total.dropped, total.skipped, total.dead_lettered, total.discarded];
        total.left = change([total.made, 0], gone);
        total
    }
}

/// Number of samples that came minus the number that went; limited to the range of `i64`, since counts may be read from a file.
fn change(came: [u64; 2], gone: [u64; 5]) -> i64 {
    let sum = |counts: &[u64]| counts.iter().map(|count| i128::from(*count)).sum::<i128>();
    let change = sum(&came) - sum(&gone);
    i64::try_from(change).unwrap_or(if change < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::QueueBook;

    fn ledger() -> Ledger {
        let stage = |id: &str, book: StageBook| StageBook { id: id.to_owned(), ..book };
        let stages = vec![
            stage("0:src", StageBook { made: 10, out: 9, left: 1, ..StageBook::default() }),
            stage(
                "1:work",
                StageBook { taken: 8, made: 3, out: 7, skipped: 2, left: 2, ..StageBook::default() },
            ),
            stage("2:sink", StageBook { taken: 6, out: 6, ..StageBook::default() }),
        ];
        let queue = |put, taken| QueueBook { put, taken, left: put - taken, ..QueueBook::default() };
        Ledger::close(stages, vec![queue(9, 8), queue(7, 6), queue(6, 5)], &[])
    }

    #[test]
    fn movement_from_the_start_is_the_ledger() {
        let ledger = ledger();
        let whole = LedgerMovement::from(&ledger);
        assert_eq!((whole.total.left, whole.total.made), (6, 13));
        let mut books: Vec<BookRow> = ledger.stages.iter().map(BookRow::from).collect();
        books.push(BookRow { taken: 6, discarded: 1, ..BookRow::default() });
        let ids = ["0:src", "1:work", "2:sink"];
        assert_eq!(LedgerMovement::of_books(ids, &books), Some(whole), "the consumer gave one sample back");
        assert_eq!(LedgerMovement::of_books(ids, &[]), None);
    }

    #[test]
    fn a_stage_that_gives_more_than_it_takes_has_fewer_samples_inside() {
        let row = BookRow { taken: 2, out: 5, skipped: 1, ..BookRow::default() };
        assert_eq!(StageMovement::of("1:work", &row).left, -4);
    }
}
