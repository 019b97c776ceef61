//! Room in the memory budget: the demand of downstream nodes, and the detection of runs that wait for memory that nothing can
//! free.

use std::iter;
use std::ops::RangeInclusive;

use penstock_types::stats::Tick;

use super::Schedule;
use super::budget::Behind;
use super::core::bytes_in;
use super::queue::Queue;
use super::stage::{Kind, Stage};

/// Nodes downstream of a node; the node's own output queue is not included.
pub(crate) struct NodesBehind<'a> {
    pub(super) stages: &'a [Stage],
    pub(super) queues: &'a [Queue],
    pub(super) sink_is_empty: bool,
    /// Number of the first of these nodes.
    pub(super) first: usize,
    /// Nodes among these that wait for the node, and are not downstream of it: the other paths of a route that keeps the order.
    pub(super) beside: &'a [RangeInclusive<usize>],
}

impl NodesBehind<'_> {
    /// Memory demand of these nodes; `is_clear` is set if no item waits in the queue or task before them.
    pub(crate) fn demand(&self, is_clear: bool) -> Behind {
        let is_behind = |place: usize| self.beside.iter().all(|nodes| !nodes.contains(&(self.first + place)));
        let mut queues = self.queues.iter().enumerate().filter(|(place, _)| is_behind(*place));
        let is_empty = self.sink_is_empty && queues.all(|(_, queue)| queue.items == 0);
        let mut behind = Behind { is_idle: is_clear && is_empty, ..Behind::default() };
        for (_, stage) in self.stages.iter().enumerate().filter(|(place, _)| is_behind(*place)) {
            match &stage.kind {
                Kind::Pipe(pipe) => {
                    behind.growth = behind.growth.saturating_add(pipe.free_growth());
                    behind.is_idle &= pipe.alive() == 0;
                    behind.collects |= pipe.holds_back();
                }
                Kind::Aggregate(aggregate) => {
                    behind.promised = behind.promised.saturating_add(aggregate.promised_bytes());
                    behind.is_idle &= aggregate.batch.is_none();
                    behind.collects |= aggregate.collects();
                }
                Kind::Disaggregate(disaggregate) => behind.is_idle &= disaggregate.inside() == 0,
                Kind::Gate(passage) | Kind::Join(passage) => behind.is_idle &= passage.hand.is_none(),
            }
        }
        behind
    }
}

impl Schedule {
    /// Records that the source made a chunk of `bytes` and also keeps `kept_bytes`. Returns true if the chunk may be offered.
    pub(crate) fn source_waits(&mut self, bytes: u64, kept_bytes: u64, now: Tick) -> bool {
        let Some(now) = self.advance(now) else { return false };
        self.source.wait_with(bytes, &mut self.budget);
        self.source.keep(kept_bytes, &mut self.budget);
        if self.work.preparing > 0 {
            return false;
        }
        // Moves items, because the chunk may be smaller than its reservation, which frees memory.
        self.move_all(now);
        let calls = self.calls_source();
        if !calls {
            self.fail_if_stuck(now);
        }
        calls
    }

    /// True if the source waits with a chunk that may be offered now.
    pub(crate) fn calls_source(&mut self) -> bool {
        self.wants_more()
            && self.source.waiting_bytes().is_some_and(|bytes| {
                let Self { source, stages, queues, sink, budget, .. } = self;
                let behind =
                    NodesBehind { stages, queues, sink_is_empty: sink.hand.is_none(), first: 0, beside: &[] };
                // The end of the data needs no memory. After samples, the source makes the next chunk, for which at most the size
                // of the largest chunk so far is reserved. This reservation leaves room for the stages, so their growth is not
                // counted.
                let ahead = if bytes == 0 { 0 } else { bytes + source.largest_bytes };
                budget.admits(bytes, ahead, || Behind { growth: 0, ..behind.demand(source.is_empty()) })
            })
    }

    /// Ends the run as failed if the run waits for memory that nothing can free.
    pub(super) fn fail_if_stuck(&mut self, now: Tick) {
        if !self.is_waiting() {
            return;
        }
        // Steps all nodes once more, because the recorded refusal may be outdated.
        self.mark_all();
        self.move_all(now);
        if self.is_waiting() && self.budget.refused {
            self.fail(self.out_of_memory());
        }
    }

    /// True if no task is running, no item can be delivered and the source cannot offer a chunk.
    fn is_waiting(&mut self) -> bool {
        if self.end.over || !self.budget.is_limited() {
            return false;
        }
        let works = |stage: &Stage| matches!(&stage.kind, Kind::Pipe(pipe) if pipe.working > 0);
        let works = self.stages.iter().any(works);
        let has_output = self.queues.last().is_some_and(|queue| queue.items > 0);
        !works
            && !has_output
            && !(self.wants_more() && (self.source.waiting_bytes().is_none() || self.calls_source()))
    }

    /// Bytes held by each node and its output queue, first to last.
    pub(super) fn bytes_by_node(&self) -> impl Iterator<Item = u64> {
        self.bytes_of_nodes_and_queues().map(|(node, queue)| node + queue)
    }

    /// Bytes held by each node, and those held by its output queue, first to last.
    pub(super) fn bytes_of_nodes_and_queues(&self) -> impl Iterator<Item = (u64, u64)> {
        let nodes = iter::once(self.source.bytes())
            .chain(self.stages.iter().map(Stage::bytes))
            .chain([bytes_in(&self.sink.hand)]);
        nodes.zip(&self.queues).map(|(node, queue)| (node, queue.bytes))
    }

    /// Error for a run that is stuck for lack of memory: the memory held by each node, and the budget that would suffice.
    fn out_of_memory(&self) -> String {
        let ids = iter::once(&self.source.core)
            .chain(self.stages.iter().map(|stage| &stage.core))
            .map(|core| core.id.as_str());
        let collected = |node: usize| match node.checked_sub(1).map(|stage| &self.stages[stage].kind) {
            Some(Kind::Aggregate(aggregate)) => aggregate.in_words(),
            _ => None,
        };
        let parts: Vec<String> = ids
            .zip(self.bytes_by_node())
            .enumerate()
            .filter(|(_, (_, bytes))| *bytes > 0)
            .map(|(node, (id, bytes))| {
                let collected = collected(node).map(|words| format!(", {words}")).unwrap_or_default();
                format!("`{id}` {}{collected}", mib(bytes))
            })
            .collect();
        // Each incomplete batch needs memory for its missing samples, and the refused op needs memory for its result.
        let (mut lacking, mut largest) = (0_u64, self.source.largest_bytes);
        for stage in &self.stages {
            match &stage.kind {
                Kind::Pipe(pipe) => largest = largest.max(pipe.sizes.largest().unwrap_or(0)),
                Kind::Aggregate(aggregate) if aggregate.collects() => {
                    lacking = lacking.saturating_add(aggregate.promised_bytes());
                }
                Kind::Aggregate(_) | Kind::Disaggregate(_) | Kind::Gate(_) | Kind::Join(_) => {}
            }
        }
        let wanted = self.budget.held.saturating_add(lacking).saturating_add(largest);
        format!(
            "the run needs more memory than `buffer_mib` allows: {} of {} are in use, no task runs and no item can \
             move. In use by stage and its output queue: {}. About {} MiB would suffice: raise `buffer_mib`, or make \
             batches smaller",
            mib(self.budget.held),
            mib(self.budget.limit),
            parts.join("; "),
            wanted.div_ceil(MIB),
        )
    }
}

const MIB: u64 = 1 << 20;

/// A size in MiB with one decimal.
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}
