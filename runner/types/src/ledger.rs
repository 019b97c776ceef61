//! The books of a run: where every sample went. Counted in samples, never in items.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The books of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ledger {
    /// Source, stages and sink, first to last.
    pub stages: Vec<StageBook>,
    /// The queues between them and behind the sink, first to last.
    pub queues: Vec<QueueBook>,
    /// The whole run: the sum of the above.
    pub total: RunBook,
    /// Whether every book balances and each agrees with its neighbours.
    pub balanced: bool,
}

/// The book of one stage: `in + made = out + dropped + skipped + dead_lettered + discarded + left`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageBook {
    /// Id of the stage.
    pub id: String,
    /// Taken from the queue before it.
    #[serde(rename = "in")]
    pub taken: u64,
    /// Made here: by the source, or by fan-out (of k samples made from one, k - 1 are new).
    pub made: u64,
    /// Put into the queue behind it.
    pub out: u64,
    /// Left out on purpose: the module answered `drop`, or took the sample into another one.
    pub dropped: u64,
    /// Failed and left out.
    pub skipped: u64,
    /// Failed and kept aside.
    pub dead_lettered: u64,
    /// Thrown away because the last batch was not full (`drop_last`).
    pub discarded: u64,
    /// Still inside at the moment of the snapshot.
    pub left: u64,
}

/// The book of one queue: `put = taken + left`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueBook {
    /// Id of the queue.
    pub id: String,
    /// Put into it.
    pub put: u64,
    /// Taken out of it, and not given back.
    pub taken: u64,
    /// Still inside at the moment of the snapshot, or taken by a consumer that could make nothing of it any more.
    pub left: u64,
}

/// The book of the whole run: `made = delivered + dropped + skipped + dead_lettered + discarded + left`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunBook {
    /// Made by the source and by fan-out.
    pub made: u64,
    /// Taken by the consumer.
    pub delivered: u64,
    /// Left out on purpose.
    pub dropped: u64,
    /// Failed and left out.
    pub skipped: u64,
    /// Failed and kept aside.
    pub dead_lettered: u64,
    /// Thrown away with incomplete last batches.
    pub discarded: u64,
    /// Inside stages and queues.
    pub left: u64,
}

impl Ledger {
    /// Sums up and checks the books of a run. `stages` run from the source to the sink; `queues[i]` stands at the exit of
    /// `stages[i]`.
    pub fn close(stages: Vec<StageBook>, queues: Vec<QueueBook>) -> Self {
        let mut total = RunBook::default();
        for stage in &stages {
            total.made += stage.made;
            total.dropped += stage.dropped;
            total.skipped += stage.skipped;
            total.dead_lettered += stage.dead_lettered;
            total.discarded += stage.discarded;
            total.left += stage.left;
        }
        total.left += queues.iter().map(|queue| queue.left).sum::<u64>();
        total.delivered = queues.last().map_or(0, |queue| queue.taken);
        let balanced = stages.iter().all(StageBook::balances)
            && queues.iter().all(QueueBook::balances)
            && stages.iter().zip(&queues).all(|(stage, queue)| stage.out == queue.put)
            && stages.iter().skip(1).zip(&queues).all(|(reader, queue)| reader.taken == queue.taken)
            && stages.len() == queues.len()
            && total.balances();
        Self { stages, queues, total, balanced }
    }
}

impl StageBook {
    /// Whether nothing was lost here.
    pub fn balances(&self) -> bool {
        self.taken + self.made
            == self.out + self.dropped + self.skipped + self.dead_lettered + self.discarded + self.left
    }
}

impl QueueBook {
    /// Whether nothing was lost here.
    pub fn balances(&self) -> bool {
        self.put == self.taken + self.left
    }
}

impl RunBook {
    /// Whether nothing was lost anywhere.
    pub fn balances(&self) -> bool {
        self.made
            == self.delivered + self.dropped + self.skipped + self.dead_lettered + self.discarded + self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn books() -> (Vec<StageBook>, Vec<QueueBook>) {
        let source = StageBook { made: 10, out: 9, left: 1, ..StageBook::default() };
        let stage = StageBook { taken: 8, made: 3, out: 7, skipped: 2, left: 2, ..StageBook::default() };
        let sink = StageBook { taken: 6, out: 6, ..StageBook::default() };
        let queue = |put, taken| QueueBook { put, taken, left: put - taken, ..QueueBook::default() };
        (vec![source, stage, sink], vec![queue(9, 8), queue(7, 6), queue(6, 5)])
    }

    #[test]
    fn books_that_agree_balance_and_add_up() {
        let (stages, queues) = books();
        let ledger = Ledger::close(stages, queues);
        assert!(ledger.balanced);
        assert_eq!(
            ledger.total,
            RunBook { made: 13, delivered: 5, skipped: 2, left: 6, ..RunBook::default() }
        );
    }

    #[test]
    fn one_lost_sample_anywhere_is_noticed() {
        for place in 0..6 {
            let (mut stages, mut queues) = books();
            match place {
                0..3 => stages[place].left += 1,
                _ => queues[place - 3].taken += 1,
            }
            assert!(!Ledger::close(stages, queues).balanced, "place {place}");
        }
    }

    #[test]
    fn a_stage_that_read_more_than_the_queue_gave_is_noticed() {
        let (mut stages, queues) = books();
        stages[1].taken += 1;
        stages[1].left += 1;
        assert!(!Ledger::close(stages, queues).balanced);
    }
}
