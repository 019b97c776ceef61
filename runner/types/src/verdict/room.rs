//! Room for more work: worker threads and cores that are not in use.

use super::judge::Look;
use crate::kinds::Work;
use crate::spec::Threads;

/// Factor by which work must be able to grow for more tasks to help.
const FULL: f64 = 1.05;

/// Cores in use that are worth a word.
const LEAST: f64 = 0.05;

impl Look<'_> {
    /// Factor by which the work on threads can grow, at least 1; infinite for pipelines without such work.
    pub(super) fn room(&self) -> f64 {
        self.room_on_threads().min(self.room_on_cores()).max(1.0)
    }

    /// Largest number of worker threads that brings a gain.
    pub(super) fn most_threads(&self) -> u32 {
        let most = self.shape.cores.filter(|_| self.shape.computes_only()).unwrap_or(Threads::MOST);
        most.max(self.shape.threads)
    }

    /// Share of time in which computing ops had a core; `None` if none has run.
    pub(super) fn core_share(&self) -> Option<f64> {
        let (cpu_s, busy_s) = self.computing().fold((0.0, 0.0), |(cpu_s, busy_s), task| {
            (cpu_s + task.cpu_s.unwrap_or(0.0), busy_s + task.busy_s)
        });
        (busy_s > 0.0).then(|| cpu_s / busy_s)
    }

    /// Resource that leaves no room for more work, who uses it, and what would make room; `None` if there is room.
    pub(super) fn full(&self) -> Option<String> {
        let relief = "make the ops cheaper, or use more cores";
        if self.room_on_cores() < FULL {
            let cores = self.shape.cores?;
            let ops = self.ops_cores();
            let (rest, others) = self.measured.machine.map_or((0.0, 0.0), |machine| {
                (machine.process_cores - ops, machine.others_cores().unwrap_or(0.0))
            });
            let users = [
                ("the ops of this run use", ops),
                ("the rest of this process, such as other runs,", rest),
                ("other processes", others),
            ];
            let used = users.into_iter().filter(|&(_, cores)| cores >= LEAST);
            let used = used.map(|(user, cores)| format!("{user} {cores:.1}")).collect::<Vec<_>>();
            let foreign = match self.on_free_cores().filter(|_| rest.max(others) >= LEAST) {
                Some(more) => {
                    format!("end what else runs on the machine, for up to {more:.1} times the rate, ")
                }
                None => String::new(),
            };
            return Some(format!(
                "No core is free for more work. Of the {cores} cores, {}: {foreign}{relief}.",
                used.join(", ")
            ));
        }
        let threads = self.threads.filter(|_| self.room_on_threads() < FULL)?;
        Some(format!(
            "No worker thread is free for more work, and more threads than cores bring no gain. Ops of this run use {:.1} of the {} threads: \
             {relief}.",
            threads.busy, threads.threads
        ))
    }

    /// Factor by which the work on cores could grow if no other work used them.
    fn on_free_cores(&self) -> Option<f64> {
        let at_most = f64::from(self.shape.cores?) / self.ops_cores();
        Some((1.0 / self.core_share()?).min(at_most).max(1.0))
    }

    fn room_on_threads(&self) -> f64 {
        self.threads.map_or(f64::INFINITY, |threads| f64::from(self.most_threads()) / threads.busy)
    }

    fn room_on_cores(&self) -> f64 {
        let ops = self.ops_cores();
        let (Some(cores), true) = (self.shape.cores, ops > 0.0) else { return f64::INFINITY };
        let machine = self.measured.machine;
        let own = machine.map_or(ops, |machine| machine.process_cores.max(ops));
        let others = machine.and_then(|machine| machine.others_cores()).unwrap_or(0.0);
        (f64::from(cores) - others) / own
    }

    /// Cores that computing ops used, on average.
    fn ops_cores(&self) -> f64 {
        let used = |cpu_s: f64, elapsed_s: f64| if elapsed_s > 0.0 { cpu_s / elapsed_s } else { 0.0 };
        self.computing().map(|task| used(task.cpu_s.unwrap_or(task.busy_s), task.elapsed_s)).sum()
    }

    fn computing(&self) -> impl Iterator<Item = &crate::stats::TaskFigures> {
        let stages = self.shape.stages.iter().zip(&self.measured.stages);
        stages.filter(|(stage, _)| stage.work == Work::Computing).map(|(_, task)| task)
    }
}
