//! The thread that moves the engine's epoch while guests exist, so that running guests look at their deadline.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::Engine;

/// How often a running guest looks at its deadline and at the stop flag.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// Ticks while there are guests; sleeps without a timeout while there are none. Joined when dropped.
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// One guest for which the ticker ticks; until it is dropped.
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

impl Ticker {
    pub(crate) fn start(engine: &Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (engine, own) = (engine.clone(), shared.clone());
        let thread = std::thread::Builder::new()
            .name("sandbox-ticker".into())
            .spawn(move || own.run(|| engine.increment_epoch()))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Ticks until what comes back is dropped.
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
    fn change(&self, change: impl FnOnce(&mut State)) {
        // The counts stay sound whatever panicked while holding the lock.
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn run(&self, tick: impl Fn()) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.closed {
            state = if state.guests == 0 {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                let (state, waited) =
                    self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner);
                if waited.timed_out() {
                    tick();
                }
                state
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn it_ticks_while_there_is_a_guest_and_ends_when_closed() {
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
}
