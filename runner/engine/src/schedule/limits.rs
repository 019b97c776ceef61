//! Failures that end a run: their limits, and the nodes that are stopped.

use super::Schedule;
use super::stage::Kind;

impl Schedule {
    /// Ends the source if the limit of the run is exceeded.
    #[cold]
    pub(super) fn end_source_if_exceeded(&mut self) {
        if self.end.error.is_none()
            && let Some(message) = self.run_exceeded(false)
        {
            self.end_source(message);
        }
    }

    /// Ends the source if every sample of an epoch failed, or too many. The end of an epoch can reveal this without a new failure.
    pub(super) fn end_after_lost_epoch(&mut self) {
        if self.end.error.is_none()
            && let Some(lost) = self.failures.epochs.lost()
        {
            self.end_source(lost.to_owned());
        }
    }

    /// Ends the source with an error. The stages pass on their remaining items.
    #[cold]
    fn end_source(&mut self, message: String) {
        self.cut_source(message);
        self.agenda.mark(0);
    }

    fn cut_source(&mut self, message: String) {
        self.end.fail(message);
        self.settled.cut();
        self.source.end(&mut self.budget);
    }

    /// Checks all failure limits once more: during the run, a maximum share of failures applies only after enough tasks, at the end always.
    pub(super) fn check_all_limits(&mut self) {
        for stage in 0..self.stages.len() {
            self.exceeded(stage, true).into_iter().for_each(|message| self.end.fail(message));
        }
        self.run_exceeded(true).into_iter().for_each(|message| self.end.fail(message));
    }

    /// Message for an op's fatal error, with the name of the stage.
    pub(super) fn fatal(&self, stage: usize, fatal: Option<String>) -> Option<String> {
        Some(format!("stage `{}`: {}", self.stages[stage].core.id, fatal?))
    }

    /// Reason for ending the run after failures in `stage`, if any of the limits is exceeded.
    pub(super) fn exceeded(&self, stage: usize, over: bool) -> Option<String> {
        let of_stage = self.stages[stage].core.exceeded(over);
        of_stage
            .or_else(|| self.run_exceeded(over))
            .or_else(|| self.failures.epochs.lost().map(str::to_owned))
    }

    /// Reason for ending the run after failures anywhere, if the limit of the run is exceeded.
    fn run_exceeded(&self, over: bool) -> Option<String> {
        let made =
            || self.stages.iter().map(|stage| stage.core.book.made).sum::<u64>() + self.source.core.book.made;
        self.failures.exceeded(made, over)
    }

    /// Fails the run because of too many failures in `stage`: the stage takes no more items, items upstream of it stay there, and
    /// items downstream of it are delivered, as are those in other paths of a route around it. If `stage` is a join, its route gets no
    /// more items.
    pub(super) fn cut(&mut self, stage: usize, message: String) {
        self.cut_source(message);
        let own = self.routes.spans().find(|span| span.join == stage + 1);
        let (failed, is_join) = own.map_or((stage + 1, false), |span| (span.input() + 1, true));
        let mut dead: Vec<bool> = (0..self.queues.len()).map(|node| node < failed).collect();
        for span in self.routes.spans().filter(|span| span.contains(failed)) {
            for path in span.paths() {
                let gate = *path.start();
                if !path.contains(&failed) || is_join && span.join == stage + 1 {
                    path.for_each(|node| dead[node] = false);
                }
                dead[gate] = true;
            }
        }
        self.close_routers_around(failed);
        self.end.dead = dead;
        let end = &self.end;
        // Items before and in this stage stay in memory for the rest of the run.
        let bytes = self.bytes_of_nodes_and_queues().enumerate().map(|(place, (node, queue))| {
            let reader = self.routes.reader(place);
            let is_read = reader != failed && !end.is_dead(reader);
            u64::from(end.is_dead(place)) * node + u64::from(!is_read) * queue
        });
        let left = bytes.sum();
        self.budget.write_off(left);
        if let Kind::Pipe(pipe) = &mut self.stages[stage].kind {
            pipe.stop_taking();
        }
        self.work.jobs.retain(|job| !end.is_dead(job.task.stage + 1));
        self.work.starts.retain(|(task, _)| !end.is_dead(task.stage + 1));
    }
}
