//! Timer with a precision of a tenth of a millisecond. tokio's timer counts in whole milliseconds and wakes tasks up to one
//! millisecond late.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use penstock_types::stats::Tick;
use rustix::thread::set_current_timer_slack;

use crate::clock::{Clock, MonotonicClock};
use crate::lock::locked;
use crate::ports::StopFlag;

/// Maximum time between two checks of the stop flag in a blocking wait.
const SLICE: Duration = Duration::from_millis(20);

/// Wakes futures at their deadlines, from a dedicated thread. Dropping the timer joins the thread and completes all pending
/// sleeps.
#[derive(Debug)]
pub struct Timer {
    shared: Arc<TimerShared>,
    thread: Option<JoinHandle<()>>,
}

/// A future that becomes ready after its deadline, or at once when its timer is dropped, since the run is over then. Dropping the
/// future removes its entry from the timer.
#[derive(Debug)]
#[must_use = "a sleep does nothing until it is awaited"]
pub struct Sleep {
    shared: Arc<TimerShared>,
    deadline: Tick,
    /// Key of the entry in the timer, once the future has been polled.
    place: Option<WakeKey>,
}

/// Deadline, and a number that distinguishes sleeps with the same deadline.
type WakeKey = (Tick, u64);

#[derive(Debug)]
struct TimerShared {
    clock: MonotonicClock,
    waiting: Mutex<Waiting>,
    /// Notified when an earlier deadline is added and when the timer closes.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    // A sorted map instead of a binary heap, because dropped sleeps must be removed from the middle.
    wakers: BTreeMap<WakeKey, Waker>,
    next: u64,
    is_closed: bool,
}

impl Timer {
    /// Starts the timer's thread. Fails if the system cannot start a thread.
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(TimerShared {
            clock: MonotonicClock::start(),
            waiting: Mutex::default(),
            changed: Condvar::new(),
        });
        let thread = std::thread::Builder::new().name("timer".to_owned()).spawn({
            let shared = shared.clone();
            move || shared.wake_until_closed()
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sleeps for `duration`, counted from this call and not from the first poll.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        let deadline = self.shared.clock.now().after(duration);
        Sleep { shared: self.shared.clone(), deadline, place: None }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.waiting().is_closed = true;
        self.shared.changed.notify_one();
        let Some(thread) = self.thread.take() else { return };
        // A waker may own the last future that owns this timer. Then this code runs on the timer's thread, which cannot join
        // itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("the timer's thread panicked");
        }
    }
}

impl TimerShared {
    // A poisoned lock is ignored: under the lock, only dropping a waker can panic, which leaves the map consistent.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        locked(&self.waiting)
    }

    fn wake_until_closed(&self) {
        // Linux delays waits of a thread by up to 50 us unless told otherwise; if it refuses, sleeps end that much later.
        set_current_timer_slack(NonZeroU64::new(1)).unwrap_or_default();
        let mut waiting = self.waiting();
        while !waiting.is_closed {
            let now = self.clock.now();
            let first = waiting.wakers.first_entry();
            waiting = match first {
                Some(due) if due.key().0 <= now => {
                    let waker = due.remove();
                    drop(waiting);
                    // Called without the lock, because waking may poll a future on this thread.
                    waker.wake();
                    self.waiting()
                }
                Some(later) => {
                    let wait = Duration::from_nanos(later.key().0 - now);
                    self.changed.wait_timeout(waiting, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let rest = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        rest.into_values().for_each(Waker::wake);
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        let mut waiting = self.shared.waiting();
        if waiting.is_closed || self.shared.clock.now() >= deadline {
            return Poll::Ready(());
        }
        let place = self.place.unwrap_or_else(|| {
            waiting.next += 1;
            (deadline, waiting.next)
        });
        let replaced = waiting.wakers.insert(place, context.waker().clone());
        let is_first = waiting.wakers.first_key_value().is_some_and(|(first, _)| *first == place);
        drop(waiting);
        if is_first && replaced.is_none() {
            self.shared.changed.notify_one();
        }
        self.place = Some(place);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let removed = self.shared.waiting().wakers.remove(&place);
            // Dropped after the lock is released: the drop of a waker may use the timer.
            drop(removed);
        }
    }
}

/// Blocks this thread for `duration`, or until at most 20 ms after `stop` is set. Returns true if the full time has passed.
pub fn wait(duration: Duration, stop: &StopFlag) -> bool {
    let clock = MonotonicClock::start();
    let deadline = clock.now().after(duration);
    loop {
        if stop.is_set() {
            return false;
        }
        match Duration::from_nanos(deadline - clock.now()) {
            Duration::ZERO => return true,
            rest => std::thread::sleep(rest.min(SLICE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::executor::block_on;
    use futures::future::select;
    use futures::poll;
    use futures::task::{ArcWake, waker};

    use super::*;

    fn timer() -> Timer {
        Timer::start().unwrap()
    }

    #[test]
    fn a_sleep_never_ends_early() {
        let timer = timer();
        for micros in [0, 1, 50, 999, 1_000, 3_333] {
            let duration = Duration::from_micros(micros);
            let clock = MonotonicClock::start();
            block_on(timer.sleep(duration));
            assert!(clock.now() >= Tick::ZERO.after(duration), "{micros} us took {:?}", clock.now());
        }
    }

    struct SendsDeadline(mpsc::Sender<Tick>, Tick);

    impl ArcWake for SendsDeadline {
        fn wake_by_ref(this: &Arc<Self>) {
            this.0.send(this.1).unwrap();
        }
    }

    #[test]
    fn sleeps_end_in_the_order_of_their_deadlines_and_not_of_their_starts() {
        let timer = timer();
        // Repeated, because a sleep may be over before its first poll if this thread was delayed.
        for _ in 0..20 {
            let (sender, receiver) = mpsc::channel();
            let mut sleeps = [30, 10, 20, 10].map(|millis| timer.sleep(Duration::from_millis(millis)));
            let all_wait = sleeps.iter_mut().all(|sleep| {
                let waker = waker(Arc::new(SendsDeadline(sender.clone(), sleep.deadline)));
                Pin::new(sleep).poll(&mut Context::from_waker(&waker)).is_pending()
            });
            if all_wait {
                let woken: Vec<Tick> = receiver.iter().take(sleeps.len()).collect();
                assert!(woken.is_sorted(), "{woken:?}");
                return;
            }
        }
        panic!("never fast enough to wait for a sleep of 10 ms");
    }

    #[test]
    fn a_shorter_sleep_ends_before_an_earlier_longer_one() {
        let timer = timer();
        let hour = timer.sleep(Duration::from_secs(3600));
        let blink = async { timer.sleep(Duration::from_millis(1)).await };
        block_on(select(hour, Box::pin(blink)));
    }

    #[test]
    fn a_dropped_sleep_removes_its_entry() {
        let timer = timer();
        block_on(async {
            let mut sleeps: Vec<Sleep> = (0..1000).map(|_| timer.sleep(Duration::from_secs(3600))).collect();
            for sleep in &mut sleeps {
                assert!(poll!(sleep).is_pending());
            }
            assert_eq!(timer.shared.waiting().wakers.len(), 1000);
            drop(sleeps.split_off(1));
            assert_eq!(timer.shared.waiting().wakers.len(), 1);
            assert!(poll!(&mut sleeps[0]).is_pending());
            assert_eq!(timer.shared.waiting().wakers.len(), 1, "polling again must not add a second entry");
        });
        assert_eq!(timer.shared.waiting().wakers.len(), 0);
        assert_eq!(Arc::strong_count(&timer.shared), 2, "the timer and its thread");
    }

    #[test]
    fn a_dropped_timer_ends_its_sleeps_and_its_thread() {
        let timer = timer();
        let shared = Arc::downgrade(&timer.shared);
        let mut sleep = timer.sleep(Duration::from_secs(3600));
        block_on(async { assert!(poll!(&mut sleep).is_pending()) });
        drop(timer);
        block_on(sleep);
        assert!(shared.upgrade().is_none(), "the thread still runs");
    }

    #[test]
    fn a_blocking_wait_lasts_its_full_time_unless_stopped() {
        let duration = Duration::from_micros(2_500);
        let clock = MonotonicClock::start();
        assert!(wait(duration, &StopFlag::default()));
        assert!(clock.now() >= Tick::ZERO.after(duration));

        let stop = StopFlag::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(Duration::from_secs(3600), &stop));
            stop.set();
            assert!(!waiting.join().unwrap());
        });
    }
}
