use penstock_types::ledger::StageBook;
use penstock_types::stats::{StageMeter, Tick};

use super::aggregate::Aggregate;
use super::core::{Core, Hand, StageStep, bytes_in, samples_in};
use super::disaggregate::Disaggregate;
use super::pipe::Pipe;
use super::shape::{PipeRule, StageRule, StageShape};

/// A stage between source and sink.
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
    route: usize,
    pub(super) hand: Hand,
}

impl Passage {
    pub(crate) fn new(route: usize) -> Self {
        Self { route, hand: None }
    }

    /// Number of the route.
    pub(crate) fn route(&self) -> usize {
        self.route
    }
}

impl Stage {
    /// Creates a stage that is measured from the time in `measured` on; with `None`, the stage is not measured.
    pub(crate) fn new(position: usize, shape: StageShape, measured: Option<Tick>) -> Self {
        let kind = match shape.rule {
            StageRule::Op(PipeRule { concurrency, order, runs_on }) => {
                Kind::Pipe(Pipe::new(position, concurrency, runs_on, order, shape.keeps_size))
            }
            StageRule::Aggregate(plan) => Kind::Aggregate(Aggregate::new(plan)),
            StageRule::Disaggregate => Kind::Disaggregate(Disaggregate::default()),
            StageRule::Gate { route } => Kind::Gate(Passage::new(route)),
            StageRule::Join { route } => Kind::Join(Passage::new(route)),
        };
        let concurrency = shape.rule.concurrency();
        let meter = measured.map_or_else(StageMeter::off, |now| StageMeter::starting_at(now, concurrency));
        let core = Core::new(shape.node.id, shape.on_error, shape.max_failures, meter);
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

    /// Maximum number of tasks at a time.
    pub(crate) fn concurrency(&self) -> usize {
        match &self.kind {
            Kind::Pipe(pipe) => pipe.concurrency(),
            Kind::Aggregate(_) | Kind::Disaggregate(_) | Kind::Gate(_) | Kind::Join(_) => 1,
        }
    }

    /// Number of tasks whose op is not done.
    pub(crate) fn working(&self) -> usize {
        match &self.kind {
            Kind::Pipe(pipe) => pipe.working(),
            Kind::Aggregate(_) | Kind::Disaggregate(_) | Kind::Gate(_) | Kind::Join(_) => 0,
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

    /// Expected bytes of the samples that are missing from an incomplete batch.
    pub(crate) fn promised_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Aggregate(aggregate) if aggregate.collects() => aggregate.promised_bytes(),
            _ => 0,
        }
    }

    /// Bytes of the largest known result.
    pub(crate) fn largest_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Pipe(pipe) => pipe.largest_bytes(),
            Kind::Aggregate(_) | Kind::Disaggregate(_) | Kind::Gate(_) | Kind::Join(_) => 0,
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
