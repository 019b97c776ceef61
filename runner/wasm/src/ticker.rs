//! The thread that increments the engine's epoch while guests exist, so that running guests check their deadline.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use penstock_engine::lock::locked;
use wasmtime::Engine;

use crate::limits::monotonic;

/// Interval at which a running guest checks its deadline and the stop flag.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// Timer thread that ticks while there are guests, and sleeps without a timeout while there are none. Joined on drop.
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Guard that keeps the ticker ticking until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticking(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    guests: usize,
    closed: bool,
}

/// Time of the next tick. Kept across wake-ups, because wake-ups must not delay the tick.
#[derive(Debug, Default)]
struct Beat {
    due: Option<Duration>,
}

impl Ticker {
    pub(crate) fn start(engine: &Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (engine, own) = (engine.clone(), shared.clone());
        let thread = std::thread::Builder::new()
            .name("sandbox-ticker".into())
            .spawn(move || own.run(|| engine.increment_epoch()))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Makes the ticker tick until the returned guard is dropped.
    pub(crate) fn tick(&self) -> Ticking {
        self.shared.change(|state| state.guests += 1);
        Ticking(self.shared.clone())
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.change(|state| state.closed = true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the sandbox's timer thread panicked");
        }
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.change(|state| state.guests -= 1);
    }
}

impl Shared {
    /// Changes the state. Wakes the ticker only when it must start or stop ticking; guests that start and end in between do not
    /// wake it.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = locked(&self.state);
        let was_idle = state.guests == 0;
        change(&mut state);
        if state.closed || (was_idle && state.guests > 0) {
            self.changed.notify_all();
        }
    }

    fn run(&self, tick: impl Fn()) {
        let mut beat = Beat::default();
        let mut state = locked(&self.state);
        while !state.closed {
            state = if state.guests == 0 {
                beat = Beat::default();
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                let (is_due, wait) = beat.at(monotonic());
                if is_due {
                    tick();
                }
                self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }
}

impl Beat {
    /// Returns true if a tick is due, and the time until the next one. Missed ticks are skipped.
    fn at(&mut self, now: Duration) -> (bool, Duration) {
        let due = *self.due.get_or_insert(now + TICK);
        if now < due {
            return (false, due - now);
        }
        self.due = Some(now + TICK);
        (true, TICK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    #[test]
    fn the_ticker_ticks_while_there_is_a_guest_and_ends_when_closed() {
        let shared = Arc::new(Shared::default());
        let (ticks, ticked) = mpsc::channel();
        std::thread::scope(|scope| {
            let own = shared.clone();
            scope.spawn(move || own.run(|| ticks.send(()).unwrap_or_default()));
            assert!(ticked.try_recv().is_err());
            shared.change(|state| state.guests = 1);
            ticked.recv().unwrap();
            ticked.recv().unwrap();
            shared.change(|state| state.closed = true);
        });
    }

    #[test]
    fn a_wake_up_does_not_delay_the_next_tick() {
        let micros = Duration::from_micros;
        let mut beat = Beat::default();
        assert_eq!(beat.at(micros(0)), (false, micros(1000)));
        assert_eq!(beat.at(micros(999)), (false, micros(1)));
        assert_eq!(beat.at(micros(1500)), (true, TICK));
        assert_eq!(beat.at(micros(2400)), (false, micros(100)));
        assert_eq!(beat.at(micros(9000)), (true, TICK), "a late tick is not followed by a burst");
        assert_eq!(beat.at(micros(9001)), (false, micros(999)));
    }

    #[test]
    fn the_ticker_ticks_even_if_instances_start_and_end_rapidly() {
        let shared = Arc::new(Shared::default());
        let (ticks, ticked) = mpsc::channel();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let own = shared.clone();
            scope.spawn(move || own.run(|| ticks.send(()).unwrap_or_default()));
            shared.change(|state| state.guests += 1); // a guest that loops
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    shared.change(|state| state.guests += 1);
                    drop(Ticking(shared.clone()));
                    // Delay between two changes: short enough that changes occur many times per tick, but long enough to let the
                    // ticker get the lock.
                    (0..10_000).for_each(|number| _ = std::hint::black_box(number));
                }
            });
            let count = (0..20).take_while(|_| ticked.recv_timeout(Duration::from_secs(2)).is_ok()).count();
            is_over.store(true, Ordering::Relaxed);
            shared.change(|state| state.closed = true);
            assert_eq!(count, 20);
        });
    }
}
