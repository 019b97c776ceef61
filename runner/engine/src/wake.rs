//! Waits of a run's threads, and the calls that end them.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::thread::yield_now;
use std::time::Duration;

use penstock_types::stats::Tick;

/// Calls to threads that wait for the same event. A thread whose last wait was short spins before it sleeps, so that the call costs
/// neither side a system call.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    calls: AtomicU64,
    sleep: Condvar,
    /// Set if the last wait was shorter than [`SHORT_NANOS`].
    spins: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    since: Tick,
    calls: u64,
}

/// Maximum length of a wait after which the next wait begins with spinning: a few times the time that a sleeping thread needs to
/// wake up.
const SHORT_NANOS: u64 = 50_000;
/// Rounds of spinning. The number of pauses doubles with each of the first rounds; each later round yields the core once.
const PAUSE_ROUNDS: u32 = 7;
const YIELD_ROUNDS: u32 = 16;

impl Signal {
    /// Begins a wait. Called before the thread is listed as waiting.
    pub(crate) fn wait_since(&self, since: Tick) -> Wait {
        Wait { since, calls: self.calls.load(Ordering::Acquire) }
    }

    /// True if a thread should call [`Self::spin`] before [`Self::sleep`].
    pub(crate) fn spins(&self) -> bool {
        self.spins.load(Ordering::Relaxed)
    }

    /// Spins until the next call, for some microseconds at most. The caller does not hold the lock.
    pub(crate) fn spin(&self, wait: Wait) {
        for round in 0..PAUSE_ROUNDS + YIELD_ROUNDS {
            if self.calls.load(Ordering::Acquire) != wait.calls {
                return;
            }
            match round {
                0..PAUSE_ROUNDS => (0..1 << round).for_each(|_| spin_loop()),
                _ => yield_now(),
            }
        }
    }

    /// Sleeps until a call to a sleeping thread, or for `most`. The lock is released meanwhile.
    pub(crate) fn sleep<'a, T>(&self, lock: MutexGuard<'a, T>, most: Option<Duration>) -> MutexGuard<'a, T> {
        match most {
            None => self.sleep.wait(lock).unwrap_or_else(PoisonError::into_inner),
            Some(most) => self.sleep.wait_timeout(lock, most).unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    /// Ends a wait that was not for the end of the run.
    pub(crate) fn waited(&self, wait: Wait, now: Tick) {
        self.spins.store(now - wait.since < SHORT_NANOS, Ordering::Relaxed);
    }

    /// Calls one thread: one that spins, or one that sleeps if `sleeps`.
    pub(crate) fn call(&self, sleeps: bool) {
        self.calls.fetch_add(1, Ordering::Release);
        if sleeps {
            self.sleep.notify_one();
        }
    }

    pub(crate) fn call_all(&self) {
        self.calls.fetch_add(1, Ordering::Release);
        self.sleep.notify_all();
    }
}

#[derive(Debug)]
pub(crate) struct IdleWorkers {
    /// Workers that wait and were not called; the last one began to wait last.
    waiting: Vec<IdleWorker>,
    /// Workers that were called and have not yet looked for a job.
    called: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdleWorker {
    pub(crate) worker: usize,
    pub(crate) sleeps: bool,
}

impl IdleWorkers {
    pub(crate) fn none_of(workers: usize) -> Self {
        Self { waiting: Vec::with_capacity(workers), called: Vec::with_capacity(workers) }
    }

    pub(crate) fn enter(&mut self, worker: usize, sleeps: bool) {
        self.waiting.push(IdleWorker { worker, sleeps });
    }

    pub(crate) fn leave(&mut self, worker: usize) {
        self.waiting.retain(|idle| idle.worker != worker);
        self.called.retain(|called| *called != worker);
    }

    /// Picks the workers to call: one for each job in `jobs` (the only worker that may run it, or `None` for any below `workers`) for
    /// which no worker is on its way.
    pub(crate) fn call(
        &mut self,
        jobs: impl Iterator<Item = Option<usize>> + Clone,
        workers: usize,
    ) -> Vec<IdleWorker> {
        let mut picked = Vec::new();
        if self.waiting.is_empty() || jobs.clone().next().is_none() {
            return picked;
        }
        let mut coming = self.called.clone();
        // A job that only a busy worker may run calls no other worker.
        for only in jobs.clone().flatten() {
            if let Some(position) = coming.iter().position(|worker| *worker == only) {
                coming.swap_remove(position);
            } else if let Some(position) = self.waiting.iter().position(|idle| idle.worker == only) {
                picked.push(self.waiting.remove(position));
            }
        }
        coming.retain(|worker| *worker < workers);
        for _ in jobs.filter(Option::is_none) {
            if coming.pop().is_none() {
                let Some(position) = self.waiting.iter().rposition(|idle| idle.worker < workers) else {
                    break;
                };
                picked.push(self.waiting.remove(position));
            }
        }
        self.called.extend(picked.iter().map(|idle| idle.worker));
        picked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(workers: &[usize]) -> IdleWorkers {
        let mut idle = IdleWorkers::none_of(4);
        workers.iter().for_each(|worker| idle.enter(*worker, true));
        idle
    }

    fn called(idle: &mut IdleWorkers, jobs: &[Option<usize>]) -> Vec<usize> {
        idle.call(jobs.iter().copied(), 4).iter().map(|idle| idle.worker).collect()
    }

    #[test]
    fn a_job_that_only_a_busy_worker_may_run_calls_no_worker() {
        let mut idle = idle(&[1, 2, 3]);
        assert!(called(&mut idle, &[Some(0)]).is_empty());
        assert_eq!(called(&mut idle, &[None, Some(0), Some(1), None, None]), [1, 3, 2]);
        assert!(called(&mut idle, &[None]).is_empty());
    }

    #[test]
    fn a_worker_above_their_number_is_called_for_its_own_jobs_only() {
        let mut idle = idle(&[0, 3, 4, 5]);
        assert_eq!(called(&mut idle, &[None, None, Some(5)]), [5, 3, 0]);
        idle.enter(3, true);
        let few = |idle: &mut IdleWorkers| idle.call([None].into_iter(), 1);
        assert!(few(&mut idle).is_empty(), "worker 0 is on its way");
        idle.leave(0);
        assert!(few(&mut idle).is_empty(), "worker 5 is on its way, and may not run the job");
    }

    #[test]
    fn a_job_calls_no_second_worker_while_the_first_one_wakes_up() {
        let mut idle = idle(&[1, 2]);
        assert_eq!(called(&mut idle, &[None]), [2]);
        assert!(called(&mut idle, &[None]).is_empty());
        assert_eq!(called(&mut idle, &[None, None]), [1], "a second job calls a second worker");
        idle.leave(2);
        idle.enter(2, false);
        assert_eq!(called(&mut idle, &[None, None]), [2], "worker 1 is still on its way");
    }
}
