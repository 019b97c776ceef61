//! Settings that change in a run.

use std::num::NonZeroUsize;

use penstock_types::policy::{Capacity, Concurrency};
use penstock_types::stats::Tick;

use super::Schedule;
use super::stage::Kind;
use super::work::RunsOn;

/// A new value of a setting of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resize<'a> {
    /// Concurrency of the stage with this id.
    Concurrency(&'a str, Concurrency),
    /// Capacity of the queue with this id.
    Capacity(&'a str, Capacity),
    /// Number of workers that take jobs of any stage. A worker above it runs only the stateful stages that are bound to it. Numbers
    /// above that of the run's threads have no further effect.
    Workers(NonZeroUsize),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeFault {
    #[error("no stage has the id `{id}`")]
    UnknownStage { id: String },
    #[error("no queue has the id `{id}`")]
    UnknownQueue { id: String },
    #[error("stage `{id}` always has one task at a time, so its concurrency stays 1")]
    OneTask { id: String },
}

impl Schedule {
    /// Changes a setting, and moves what can move then. Tasks that were begun before a concurrency was lowered end as usual, and items
    /// above a lowered capacity stay in their queue until they are taken. Has no effect on a run that is over.
    pub(crate) fn resize(&mut self, change: Resize<'_>, now: Tick) -> Result<(), ResizeFault> {
        let Some(now) = self.advance(now) else { return Ok(()) };
        match change {
            Resize::Concurrency(id, concurrency) => {
                let found = self.stages.iter().position(|stage| stage.core.id == id);
                let position = found.ok_or_else(|| ResizeFault::UnknownStage { id: id.to_owned() })?;
                let stage = &mut self.stages[position];
                match &mut stage.kind {
                    Kind::Pipe(pipe) if !matches!(pipe.runs_on, RunsOn::OneThread(_)) => {
                        pipe.resize(concurrency.get() as usize, &mut stage.core, now);
                    }
                    _ if concurrency.get() == 1 => {}
                    _ => return Err(ResizeFault::OneTask { id: id.to_owned() }),
                }
                self.settle(position + 1, now);
            }
            Resize::Capacity(id, capacity) => {
                let found = self.queues.iter().position(|queue| queue.id == id);
                let node = found.ok_or_else(|| ResizeFault::UnknownQueue { id: id.to_owned() })?;
                self.queues[node].capacity = capacity.get() as usize;
                self.settle(node, now);
            }
            Resize::Workers(workers) => self.work.workers = workers.get(),
        }
        Ok(())
    }

    /// Number of workers that take jobs for any worker: those with lower numbers.
    pub(crate) fn workers(&self) -> usize {
        self.work.workers
    }
}
