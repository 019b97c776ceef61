use std::collections::VecDeque;

use crate::item::Item;
use crate::ports::{Fault, Output};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Task {
    /// Position of the stage, 0 for the first one after the source.
    pub(crate) stage: usize,
    pub(crate) slot: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunsOn {
    /// Futures on the I/O runtime, which need no thread while they wait.
    Tasks,
    /// Any worker thread; each worker thread has a separate instance of the op.
    AnyThread,
    /// A single worker thread, because the op keeps state between items.
    OneThread(usize),
}

#[derive(Debug)]
pub(crate) struct WorkerJob {
    pub(crate) task: Task,
    pub(crate) work: OpCall,
    /// The only worker that may run the job; `None` for any.
    pub(crate) worker: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct DoneTask {
    pub(crate) task: Task,
    /// `Err` if the op ended without a result.
    pub(crate) outcome: Result<Output, Fault>,
    pub(crate) time: OpTime,
}

/// Time that an op took, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpTime {
    pub(crate) wall: u64,
    /// Time on a core; 0 for ops that run on no worker thread.
    pub(crate) cpu: u64,
}

#[derive(Debug)]
pub(crate) enum OpCall {
    /// Builds the op before the source starts.
    Prepare,
    Apply(Item),
    /// Requests the samples that the op still holds at the end of an epoch.
    Finish,
}

#[derive(Debug)]
pub(crate) struct WorkList {
    /// Jobs for worker threads, oldest first.
    pub(crate) jobs: VecDeque<WorkerJob>,
    pub(crate) starts: Vec<(Task, Item)>,
    /// Number of ops still to be built before the source starts.
    pub(crate) preparing: usize,
    /// Number of workers that take jobs for any worker: those with lower numbers.
    pub(crate) workers: usize,
}

impl RunsOn {
    /// Threads for the ops of a stage: any worker thread, or a single one for a stateful stage. Stateful stages are distributed
    /// over the threads by position.
    pub(crate) fn thread(stateful: bool, position: usize, threads: usize) -> Self {
        if stateful { Self::OneThread(position % threads) } else { Self::AnyThread }
    }

    /// The only worker that may run the ops; `None` for any.
    pub(crate) fn worker(self) -> Option<usize> {
        match self {
            Self::OneThread(worker) => Some(worker),
            Self::Tasks | Self::AnyThread => None,
        }
    }
}

impl Default for WorkList {
    fn default() -> Self {
        Self { jobs: VecDeque::new(), starts: Vec::new(), preparing: 0, workers: usize::MAX }
    }
}

impl WorkList {
    pub(crate) fn take_job(&mut self, worker: usize) -> Option<WorkerJob> {
        let mine = |job: &WorkerJob| job.worker.map_or(worker < self.workers, |only| only == worker);
        let position = self.jobs.iter().position(mine)?;
        self.jobs.remove(position)
    }

    /// Takes the oldest job of `stage` that calls the op on an item.
    pub(crate) fn take_job_of(&mut self, stage: usize) -> Option<WorkerJob> {
        let is_same = |job: &WorkerJob| job.task.stage == stage && matches!(job.work, OpCall::Apply(_));
        let position = self.jobs.iter().position(is_same)?;
        self.jobs.remove(position)
    }
}
