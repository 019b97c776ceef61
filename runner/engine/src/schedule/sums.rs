use penstock_types::stats::{BookRow, QueueSums, TaskSums, Tick};

#[derive(Clone, Debug, Default)]
pub(crate) struct RunSums {
    pub(crate) at: Tick,
    pub(crate) stages: Vec<TaskSums>,
    pub(crate) queues: Vec<QueueSums>,
    /// Samples taken by the consumer.
    pub(crate) delivered: u64,
    pub(crate) failed_samples: u64,
    pub(crate) concurrency: Vec<usize>,
    pub(crate) capacity: Vec<usize>,
    pub(crate) occupancy: Vec<usize>,
    /// Numbers of samples that passed source, stages, sink and consumer.
    pub(crate) books: Vec<BookRow>,
}

/// All sums of a run, added up from readings of its schedule. Two sets of histograms suffice for any number of readings.
#[derive(Debug, Default)]
pub(crate) struct RunReader {
    total: RunSums,
    /// Latest reading, filled by [`Schedule::read`].
    ///
    /// [`Schedule::read`]: super::Schedule::read
    pub(crate) recent: RunSums,
}

impl RunReader {
    /// Adds the last reading to the sums of the run, and returns these.
    pub(crate) fn add(&mut self) -> RunSums {
        let Self { total, recent } = self;
        total.stages.resize_with(recent.stages.len(), TaskSums::default);
        total.queues.resize_with(recent.queues.len(), QueueSums::default);
        total.stages.iter_mut().zip(&mut recent.stages).for_each(|(total, recent)| total.add(recent));
        total.queues.iter_mut().zip(&mut recent.queues).for_each(|(total, recent)| total.add(recent));
        RunSums {
            stages: total.stages.clone(),
            queues: total.queues.clone(),
            concurrency: recent.concurrency.clone(),
            capacity: recent.capacity.clone(),
            occupancy: recent.occupancy.clone(),
            books: recent.books.clone(),
            ..*recent
        }
    }
}
