use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Accumulated time of ops, in nanoseconds, after which the thread's CPU clock is read again. The read is a system call, whose
/// cost is negligible at this interval.
const READ_EVERY: u64 = 1_000_000;

/// Fraction of their time for which the ops of this thread had a core: exact for ops longer than [`READ_EVERY`]; shorter ops get
/// the fraction of the last measured interval.
#[derive(Debug)]
pub(super) struct CpuShare {
    read: Duration,
    /// Time of ops since the last reading, in nanoseconds.
    ops: u64,
    share: f64,
}

impl CpuShare {
    /// Starts the measurement of all subsequent ops.
    pub(super) fn starting() -> Self {
        Self { read: thread_cpu(), ops: 0, share: 1.0 }
    }

    /// Time for which an op that took `wall` nanoseconds had a core, in nanoseconds.
    pub(super) fn of(&mut self, wall: u64) -> u64 {
        self.ops = self.ops.saturating_add(wall);
        if self.ops >= READ_EVERY {
            let now = thread_cpu();
            let cpu = now.saturating_sub(self.read).as_nanos() as f64;
            // The CPU time includes the thread's work between ops, which is negligible.
            self.share = (cpu / self.ops as f64).min(1.0);
            (self.read, self.ops) = (now, 0);
        }
        (wall as f64 * self.share) as u64
    }
}

fn thread_cpu() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;
    use crate::clock::{Clock, MonotonicClock};

    #[test]
    fn computing_ops_use_a_core_and_sleeping_ops_do_not() {
        let clock = MonotonicClock::start();
        let timed = |cpu: &mut CpuShare, work: &mut dyn FnMut()| {
            let begin = clock.now();
            work();
            let wall = clock.now() - begin;
            (cpu.of(wall), wall)
        };
        let mut cpu = CpuShare::starting();
        let (used, wall) = timed(&mut cpu, &mut || std::thread::sleep(Duration::from_millis(30)));
        assert!(used * 10 < wall, "{used} of {wall}");
        let before = thread_cpu();
        let (used, _) = timed(&mut cpu, &mut || {
            while thread_cpu() - before < Duration::from_millis(20) {
                black_box(0);
            }
        });
        assert!((20_000_000..40_000_000).contains(&used), "{used}");
    }
}
