//! Ledger of a run: the number of samples by outcome. The unit is samples, never items.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::routes::RouteSpan;

/// Greatest difference of the delivered samples of a source from its share of the draws, as a share of them, that is not warned of.
const MAX_SHIFT: f64 = 0.05;

/// Ledger of a run, for every stage and queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ledger {
    /// Sample counts of source, stages and sink, in the order of the pipeline.
    pub stages: Vec<StageBook>,
    /// Sample counts of the queues between the stages and behind the sink, in the order of the pipeline.
    pub queues: Vec<QueueBook>,
    /// Sample counts of the whole run: the sums over stages and queues.
    pub total: RunBook,
    /// Sample counts of the sources of a mixture, in the order of their names; none for any other source.
    #[serde(default)]
    pub sources: Vec<SourceBook>,
    /// Set if the counts of every stage and queue balance and agree with the counts of the adjacent ones.
    pub balanced: bool,
}

/// Sample counts of one stage: `in + made = out + dropped + skipped + dead_lettered + discarded + left`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageBook {
    /// Id of the stage.
    pub id: String,
    /// Samples taken from the queue before the stage.
    #[serde(rename = "in")]
    pub taken: u64,
    /// Samples created by the source, or by fan-out (of k samples made from one, k - 1 are new).
    pub made: u64,
    /// Samples put into the queue behind the stage.
    pub out: u64,
    /// Samples left out on purpose: the module returned `drop`, or merged the sample into another one.
    pub dropped: u64,
    /// Samples that failed and were left out.
    pub skipped: u64,
    /// Samples that failed and were written to the dead letters.
    pub dead_lettered: u64,
    /// Samples discarded because the last batch was not full (`drop_last`), or because another rank had no more batches.
    pub discarded: u64,
    /// Samples still in the stage at the time of the snapshot.
    pub left: u64,
}

/// Sample counts of one queue: `put = taken + left`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueBook {
    /// Id of the queue.
    pub id: String,
    /// Samples put into the queue.
    pub put: u64,
    /// Samples taken out of the queue and not returned to it.
    pub taken: u64,
    /// Samples still in the queue at the time of the snapshot, or taken by a consumer that could no longer process them.
    pub left: u64,
}

/// Sample counts of one source of a mixture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceBook {
    /// Name of the source.
    pub name: String,
    /// Weight of the source.
    pub weight: u32,
    /// Samples drawn from the source.
    pub drawn: u64,
    /// Samples taken by the consumer that were drawn from the source, or made of one by fan-out.
    pub delivered: u64,
    /// Set if the stages have changed the source's share by more than 5 %, and by more than chance does.
    pub shifted: bool,
}

/// Sample counts of the whole run: `made = delivered + dropped + skipped + dead_lettered + discarded + left`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunBook {
    /// Samples created by the source and by fan-out.
    pub made: u64,
    /// Samples taken by the consumer.
    pub delivered: u64,
    /// Samples left out on purpose.
    pub dropped: u64,
    /// Samples that failed and were left out.
    pub skipped: u64,
    /// Samples that failed and were written to the dead letters.
    pub dead_lettered: u64,
    /// Samples discarded with incomplete last batches, or because another rank had no more batches.
    pub discarded: u64,
    /// Samples still in stages and queues.
    pub left: u64,
}

impl Ledger {
    /// Sums up and checks the sample counts of a run. `stages` are ordered from the source to the sink; `queues[i]` is the queue
    /// behind `stages[i]`. `routes` are the routes among these nodes.
    pub fn close(stages: Vec<StageBook>, queues: Vec<QueueBook>, routes: &[RouteSpan]) -> Self {
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
            && stages.len() == queues.len()
            && readers_agree(&stages, &queues, routes)
            && total.balances();
        Self { stages, queues, total, sources: Vec::new(), balanced }
    }

    /// The ledger of a run that has ended because another rank had no more batches: what was left is discarded, in a queue by the stage
    /// that had put it, and so are the `unread` samples that the source would still have made.
    #[must_use]
    pub fn ended_together(mut self, unread: u64) -> Self {
        for (stage, queue) in self.stages.iter_mut().zip(&mut self.queues) {
            let left = std::mem::take(&mut queue.left);
            queue.put -= left;
            stage.out -= left;
            stage.discarded += left + std::mem::take(&mut stage.left);
        }
        if let Some(source) = self.stages.first_mut() {
            source.made += unread;
            source.discarded += unread;
        }
        self.total.made += unread;
        self.total.discarded += unread + std::mem::take(&mut self.total.left);
        self
    }

    /// Adds the counts of the sources of a mixture.
    #[must_use]
    pub fn with_sources(self, mut sources: Vec<SourceBook>) -> Self {
        let sum = |of: fn(&SourceBook) -> u64| sources.iter().map(of).sum::<u64>();
        let (drawn, delivered) = (sum(|source| source.drawn), sum(|source| source.delivered));
        let made = self.stages.first().map_or(0, |source| source.made);
        let balanced = self.balanced && (sources.is_empty() || drawn == made);
        sources.iter_mut().for_each(|source| source.shifted = source.is_shifted(drawn, delivered));
        Self { sources, balanced, ..self }
    }
}

impl SourceBook {
    /// True if the delivered samples differ from the source's share of the draws by more than 5 %, and by more than three standard
    /// deviations of a random choice.
    fn is_shifted(&self, all_drawn: u64, all_delivered: u64) -> bool {
        let share = self.drawn as f64 / all_drawn.max(1) as f64;
        let expected = share * all_delivered as f64;
        let chance = (expected * (1.0 - share)).sqrt();
        let difference = (self.delivered as f64 - expected).abs();
        difference > expected * MAX_SHIFT && difference > 3.0 * chance
    }
}

/// True if the readers of each queue have taken what the queue gave. The gates of a route and its join, which takes samples without a
/// path from the queue before the route, are compared together with all queues that they read.
fn readers_agree(stages: &[StageBook], queues: &[QueueBook], routes: &[RouteSpan]) -> bool {
    let taken = |node: usize| stages[node].taken;
    let given = |queue: usize| queues[queue].taken;
    let mut is_in_line = vec![true; stages.len()];
    let routes_agree = routes.iter().filter(|route| route.join < stages.len()).all(|route| {
        let nodes = || route.gates.iter().copied().chain([route.join]);
        nodes().for_each(|node| is_in_line[node] = false);
        nodes().map(taken).sum::<u64>() == route.ends().chain([route.input()]).map(given).sum::<u64>()
    });
    routes_agree
        && (1..stages.len()).filter(|node| is_in_line[*node]).all(|node| taken(node) == given(node - 1))
}

impl StageBook {
    /// True if every sample of the stage is accounted for.
    pub fn balances(&self) -> bool {
        self.taken + self.made
            == self.out + self.dropped + self.skipped + self.dead_lettered + self.discarded + self.left
    }
}

impl QueueBook {
    /// True if every sample of the queue is accounted for.
    pub fn balances(&self) -> bool {
        self.put == self.taken + self.left
    }
}

impl RunBook {
    /// Sums of two books.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            made: self.made.saturating_add(other.made),
            delivered: self.delivered.saturating_add(other.delivered),
            dropped: self.dropped.saturating_add(other.dropped),
            skipped: self.skipped.saturating_add(other.skipped),
            dead_lettered: self.dead_lettered.saturating_add(other.dead_lettered),
            discarded: self.discarded.saturating_add(other.discarded),
            left: self.left.saturating_add(other.left),
        }
    }

    /// The book with the number of samples made that all outcomes together give.
    #[must_use]
    pub fn closed(self) -> Self {
        let made =
            self.delivered + self.dropped + self.skipped + self.dead_lettered + self.discarded + self.left;
        Self { made, ..self }
    }

    /// True if every sample of the run is accounted for.
    pub fn balances(&self) -> bool {
        let Self { made, delivered, dropped, skipped, dead_lettered, discarded, left } = *self;
        let outcomes = [delivered, dropped, skipped, dead_lettered, discarded, left];
        outcomes.into_iter().try_fold(0_u64, u64::checked_add) == Some(made)
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
        let ledger = Ledger::close(stages, queues, &[]);
        assert!(ledger.balanced);
        assert_eq!(
            ledger.total,
            RunBook { made: 13, delivered: 5, skipped: 2, left: 6, ..RunBook::default() }
        );
    }

    #[test]
    fn what_is_left_when_the_ranks_end_together_is_discarded() {
        let (stages, queues) = books();
        let ended = Ledger::close(stages, queues, &[]).ended_together(20);
        let discarded: Vec<u64> = ended.stages.iter().map(|stage| stage.discarded).collect();
        assert_eq!(discarded, [22, 3, 1]);
        let total = RunBook { made: 33, delivered: 5, skipped: 2, discarded: 26, ..RunBook::default() };
        assert_eq!(ended.total, total);
        let again = Ledger::close(ended.stages, ended.queues, &[]);
        assert!(again.balanced);
        assert_eq!(again.total, total);
    }

    #[test]
    fn sources_are_shifted_if_more_than_chance_changes_their_shares() {
        const NONE: [u64; 0] = [];
        let shifted = |counts: [(u64, u64); 2]| {
            let book = |(drawn, delivered)| SourceBook { drawn, delivered, ..SourceBook::default() };
            let sources = Ledger::default().with_sources(counts.map(book).into()).sources;
            sources.into_iter().filter(|source| source.shifted).map(|source| source.drawn).collect::<Vec<_>>()
        };
        assert_eq!(shifted([(3000, 3000), (1000, 1000)]), NONE);
        assert_eq!(shifted([(3000, 300), (1000, 100)]), NONE);
        // 40 samples of 4,000 would have 10 of the second source; 5 of them may be chance.
        assert_eq!(shifted([(3000, 35), (1000, 5)]), NONE);
        assert_eq!(shifted([(3000, 3000), (1000, 500)]), [3000, 1000]);
        // A few samples in 10,000 are below 5 %.
        assert_eq!(shifted([(3000, 3000), (1000, 980)]), NONE);
        assert_eq!(shifted([(0, 0), (0, 0)]), NONE);
    }

    #[test]
    fn draws_of_sources_balance_with_the_source() {
        let (stages, queues) = books();
        let ledger = Ledger::close(stages, queues, &[]);
        let with = |drawn| {
            let source = SourceBook { drawn, ..SourceBook::default() };
            ledger.clone().with_sources(vec![source]).balanced
        };
        assert!(with(10));
        assert!(!with(9));
    }

    #[test]
    fn one_lost_sample_anywhere_is_detected() {
        for place in 0..6 {
            let (mut stages, mut queues) = books();
            match place {
                0..3 => stages[place].left += 1,
                _ => queues[place - 3].taken += 1,
            }
            assert!(!Ledger::close(stages, queues, &[]).balanced, "place {place}");
        }
    }

    #[test]
    fn gates_and_join_of_a_route_take_what_their_queues_give() {
        let stage = |taken, skipped, out| StageBook { taken, skipped, out, ..StageBook::default() };
        let stages = vec![
            StageBook { made: 10, out: 10, ..StageBook::default() },
            stage(6, 0, 6),
            stage(6, 1, 5),
            stage(3, 0, 3),
            // Takes 8 from the paths, and one sample without a path.
            stage(9, 1, 8),
            stage(8, 0, 8),
        ];
        let queue = |put| QueueBook { put, taken: put, ..QueueBook::default() };
        let queues = || [10, 6, 5, 3, 8, 8].map(queue).to_vec();
        let route = [RouteSpan { gates: vec![1, 3], join: 4 }];
        assert!(Ledger::close(stages.clone(), queues(), &route).balanced);
        assert!(!Ledger::close(stages.clone(), queues(), &[]).balanced);
        let mut lost = stages;
        lost[4] = stage(8, 0, 8);
        assert!(!Ledger::close(lost, queues(), &route).balanced);
    }

    #[test]
    fn a_stage_that_takes_more_than_its_queue_gave_is_detected() {
        let (mut stages, queues) = books();
        stages[1].taken += 1;
        stages[1].left += 1;
        assert!(!Ledger::close(stages, queues, &[]).balanced);
    }
}
