use penstock_types::ledger::StageBook;
use penstock_types::plan::Moving;
use penstock_types::stats::{StageMeter, Tick};

use super::aggregate::Aggregate;
use super::core::{Core, Hand, StageStep, bytes_in, samples_in};
use super::disaggregate::Disaggregate;
use super::pipe::Pipe;
use super::shape::PipeRule;
use crate::graph::StageNode;
use crate::stage_work::StageWork;

#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) core: Core,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Pipe(Pipe),
    Aggregate(Aggregate),
    Disaggregate(Disaggregate),
    Gate(Passage),
    Join(Passage),
}

/// Gate or join: its route, and the item that waits for room in its queue.
#[derive(Debug)]
pub(crate) struct Passage {
    pub(super) route: usize,
    pub(super) hand: Hand,
}

impl Stage {
    /// Creates a stage that is measured from the time in `measured` on; with `None`, the stage is not measured.
    pub(crate) fn new(position: usize, stage: StageNode<PipeRule>, measured: Option<Tick>) -> Self {
        let kind = match stage.work {
            StageWork::Op(rule) => Kind::Pipe(Pipe::new(position, rule, stage.keeps_size)),
            StageWork::Moving(Moving::Aggregate(plan)) => Kind::Aggregate(Aggregate::new(plan)),
            StageWork::Moving(Moving::Disaggregate) => Kind::Disaggregate(Disaggregate::default()),
            StageWork::Moving(Moving::Gate { route }) => Kind::Gate(Passage { route, hand: None }),
            StageWork::Moving(Moving::Join { route }) => Kind::Join(Passage { route, hand: None }),
        };
        let concurrency = stage.work.op().map_or(1, |rule| rule.concurrency);
        let meter = measured.map_or_else(StageMeter::off, |now| StageMeter::starting_at(now, concurrency));
        let core = Core::new(stage.node.id, stage.on_error, stage.max_failures, meter);
        Self { core, kind }
    }

    /// Does all work that is possible now; gates and joins do theirs in the steps of their route.
    pub(crate) fn step(&mut self, step: &mut StageStep<'_>) {
        let Self { core, kind } = self;
        match kind {
            Kind::Pipe(pipe) => pipe.step(core, step),
            Kind::Aggregate(aggregate) => aggregate.step(core, step),
            Kind::Disaggregate(disaggregate) => disaggregate.step(core, step),
            Kind::Gate(_) | Kind::Join(_) => {}
        }
    }

    pub(crate) fn concurrency(&self) -> usize {
        match &self.kind {
            Kind::Pipe(pipe) => pipe.concurrency,
            Kind::Aggregate(_) | Kind::Disaggregate(_) | Kind::Gate(_) | Kind::Join(_) => 1,
        }
    }

    /// Bytes held by the stage, without its output queue.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::Pipe(pipe) => pipe.bytes(),
            Kind::Aggregate(aggregate) => aggregate.bytes(),
            Kind::Disaggregate(disaggregate) => disaggregate.bytes(),
            Kind::Gate(passage) | Kind::Join(passage) => bytes_in(&passage.hand),
        }
    }

    pub(crate) fn book(&self) -> StageBook {
        let left = match &self.kind {
            Kind::Pipe(pipe) => pipe.inside(),
            Kind::Aggregate(aggregate) => aggregate.inside(),
            Kind::Disaggregate(disaggregate) => disaggregate.inside(),
            Kind::Gate(passage) | Kind::Join(passage) => samples_in(&passage.hand),
        };
        self.core.book_with(left)
    }
}
