use std::collections::VecDeque;

use crate::item::Item;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Task {
    /// Position of its stage, 0 for the first one behind the source.
    pub(crate) stage: usize,
    pub(crate) slot: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunsOn {
    /// As futures on the I/O runtime; they need no thread while they wait.
    Tasks,
    /// On any worker thread, each with an op of its own.
    AnyThread,
    /// On one worker thread only, because the op keeps state from item to item.
    OneThread(usize),
}

#[derive(Debug)]
pub(crate) struct WorkerJob {
    pub(crate) task: Task,
    pub(crate) work: OpCall,
    /// The only worker that may do it, if it matters.
    pub(crate) worker: Option<usize>,
}

/// How long an op took, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpTime {
    pub(crate) wall: u64,
    /// On a core; 0 for what runs on no worker thread.
    pub(crate) cpu: u64,
}

#[derive(Debug)]
pub(crate) enum OpCall {
    /// Build the op, before anything else happens.
    Prepare,
    Apply(Item),
    /// Ask the op for what it holds back: the epoch is over.
    Finish,
}

#[derive(Debug, Default)]
pub(crate) struct WorkList {
    /// For worker threads, oldest first.
    pub(crate) jobs: VecDeque<WorkerJob>,
    pub(crate) starts: Vec<(Task, Item)>,
}

impl RunsOn {
    /// Any of so many threads, or a single one: stateful stages are spread over the threads by their positions.
    pub(crate) fn thread(stateful: bool, position: usize, threads: usize) -> Self {
        if stateful { Self::OneThread(position % threads) } else { Self::AnyThread }
    }

    /// The only worker that may run the ops, if it matters.
    pub(crate) fn worker(self) -> Option<usize> {
        match self {
            Self::OneThread(worker) => Some(worker),
            Self::Tasks | Self::AnyThread => None,
        }
    }
}

impl WorkList {
    pub(crate) fn take_job(&mut self, worker: usize) -> Option<WorkerJob> {
        let mine = |job: &WorkerJob| job.worker.is_none_or(|only| only == worker);
        let position = self.jobs.iter().position(mine)?;
        self.jobs.remove(position)
    }
}
