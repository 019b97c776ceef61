//! Order of batches: the batch that a worker may begin next, and the batch that the consumer gets next.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use penstock_engine::lock::locked;

use crate::spec::Assignment;

/// Assigns the batches of one pass to workers, and delivers them to the consumer in order.
#[derive(Debug)]
pub(crate) struct BatchWindow<T> {
    rules: BatchRules,
    state: Mutex<State<T>>,
    /// Signals that a worker may begin another batch, or must end.
    room: Condvar,
    /// Signals that a batch may be ready, or that no further batch follows.
    came: Condvar,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchRules {
    pub(crate) batches: u32,
    pub(crate) workers: u32,
    /// Maximum number of batches per worker that are begun but not delivered.
    pub(crate) prefetch: u32,
    pub(crate) assignment: Assignment,
}

#[derive(Debug)]
struct State<T> {
    /// Number of batches begun: one count for each worker with static assignment, else one count for all workers.
    begun: Vec<u32>,
    delivered: u32,
    ready: BTreeMap<u32, T>,
    is_over: bool,
}

impl<T> BatchWindow<T> {
    pub(crate) fn new(rules: BatchRules) -> Self {
        let begun = match rules.assignment {
            Assignment::Static => vec![0; rules.workers as usize],
            Assignment::Steal => vec![0],
        };
        let state = State { begun, delivered: 0, ready: BTreeMap::new(), is_over: false };
        Self { rules, state: Mutex::new(state), room: Condvar::new(), came: Condvar::new() }
    }

    /// Waits until the worker may begin its next batch, and returns the number of the batch; `None` if no batch is left or the
    /// pass has ended.
    pub(crate) fn begin(&self, worker: u32) -> Option<u32> {
        let BatchRules { batches, workers, prefetch, assignment } = self.rules;
        let mut state = locked(&self.state);
        loop {
            if state.is_over {
                return None;
            }
            let (place, next, may) = match assignment {
                Assignment::Static => {
                    let own = state.begun[worker as usize];
                    let next = u64::from(worker) + u64::from(own) * u64::from(workers);
                    // Number of delivered batches of this worker: with static assignment, its batches are `worker`, `worker +
                    // workers`, and so on.
                    let delivered = (state.delivered + workers - 1 - worker) / workers;
                    (worker as usize, next, own < delivered.saturating_add(prefetch))
                }
                Assignment::Steal => {
                    let next = state.begun[0];
                    let most = state.delivered.saturating_add(workers.saturating_mul(prefetch));
                    (0, u64::from(next), next < most)
                }
            };
            let next = u32::try_from(next).ok().filter(|next| *next < batches)?;
            if may {
                state.begun[place] += 1;
                return Some(next);
            }
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn finish(&self, batch: u32, made: T) {
        locked(&self.state).ready.insert(batch, made);
        self.came.notify_all();
    }

    /// Waits for the next batch in order and returns it; `None` after the last batch, or if the pass has ended.
    pub(crate) fn take(&self) -> Option<(u32, T)> {
        let mut state = locked(&self.state);
        loop {
            let next = state.delivered;
            if state.is_over || next == self.rules.batches {
                return None;
            }
            if let Some(made) = state.ready.remove(&next) {
                state.delivered += 1;
                drop(state);
                self.room.notify_all();
                return Some((next, made));
            }
            state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the pass and wakes all waiting threads.
    pub(crate) fn end(&self) {
        locked(&self.state).is_over = true;
        self.room.notify_all();
        self.came.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(assignment: Assignment) -> BatchWindow<()> {
        BatchWindow::new(BatchRules { batches: 7, workers: 2, prefetch: 2, assignment })
    }

    #[test]
    fn batches_go_round_and_no_worker_runs_ahead() {
        let window = window(Assignment::Static);
        assert_eq!([window.begin(1), window.begin(1), window.begin(0)], [Some(1), Some(3), Some(0)]);
        window.finish(1, ());
        window.finish(0, ());
        assert_eq!(window.take(), Some((0, ())));
        assert_eq!(window.take(), Some((1, ())));
        // One of the two batches of worker 1 was delivered, so the worker may begin another batch.
        assert_eq!(window.begin(1), Some(5));
        assert_eq!([window.begin(0), window.begin(0)], [Some(2), Some(4)]);
        for batch in 2..6 {
            window.finish(batch, ());
            assert_eq!(window.take(), Some((batch, ())));
        }
        assert_eq!([window.begin(1), window.begin(0), window.begin(0)], [None, Some(6), None]);
        window.finish(6, ());
        assert_eq!([window.take(), window.take()], [Some((6, ())), None]);
    }

    #[test]
    fn an_idle_worker_takes_the_next_batch() {
        let window = window(Assignment::Steal);
        assert_eq!([window.begin(1), window.begin(1), window.begin(0)], [Some(0), Some(1), Some(2)]);
        assert_eq!(window.begin(1), Some(3));
        window.end();
        assert_eq!((window.begin(0), window.take()), (None, None));
    }
}
