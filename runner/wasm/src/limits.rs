//! Limits of a guest: memory, tables, CPU time, and the size of its logs and results.

use crate::error::mib;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use wasmtime::{ResourceLimiter, UpdateDeadline};

/// Minimum stack of a thread that runs guests, in bytes. Guests may use 512 KiB of it; the rest is for the host. On a thread with
/// a smaller stack, a guest that recurses too deeply would end the whole process.
pub const WORKER_STACK_BYTES: usize = 2 << 20;

pub(crate) const GUEST_STACK_BYTES: usize = 512 << 10;
/// Maximum number of core instances in one component instance. A stage in Rust or C needs 3: the module and two shims for its
/// imports. The libraries of CPython are 38 modules, one instance each. The pool only counts core instances: an unused one costs
/// nothing.
pub(crate) const CORE_INSTANCES: u32 = 64;
pub(crate) const TABLES: u32 = 4;
/// Maximum number of memories in one component instance: a stage in JavaScript has one of QuickJS and two of one page each. The
/// memory limit of a stage applies to their sum.
pub(crate) const MEMORIES: u32 = 3;
/// Maximum number of entries of one table.
pub(crate) const TABLE_ENTRIES: usize = 20_000;

/// Maximum number of bytes that one call may return, for any number of samples in the call.
pub(crate) const MAX_CALL_OUTPUT_BYTES: u64 = 1 << 30;
/// Maximum number of children of one sample.
pub(crate) const MAX_CHILDREN: usize = 65_536;
pub(crate) const MAX_FIELDS: usize = 256;
pub(crate) const MAX_NAME_BYTES: usize = 256;
pub(crate) const MAX_KEY_BYTES: usize = 4_096;
pub(crate) const MAX_RANK: usize = 16;
/// Maximum size of a tensor in bytes, where sizes of 0 in its shape count as 1. The largest batch, of 1,000,000 such tensors, has
/// less than 2^63 bytes, so products of the sizes in a batch's shape cannot overflow.
pub(crate) const MAX_SHAPE_BYTES: u64 = 1 << 42;
/// Maximum length of a guest's message in a fault, in bytes.
pub(crate) const MAX_REASON_BYTES: usize = 1_024;
/// Maximum size of the state that a stateful guest saves, in bytes.
pub(crate) const MAX_STATE_BYTES: usize = 1 << 20;

/// Maximum number of held samples that the host remembers for one stateful instance; beyond it, the oldest samples count as
/// merged into others.
pub(crate) const MAX_HELD: usize = 65_536;

/// Wall-clock limit of a call as a multiple of its CPU time limit: high enough to spare working guests on a loaded machine, low
/// enough to end a guest that is stuck.
pub(crate) const WALL_FACTOR: u32 = 10;
/// Maximum CPU time of `finish` as a multiple of the deadline of a sample, for any number of held samples.
pub(crate) const MAX_FINISH_FACTOR: u32 = 1_000;
/// Maximum CPU time for starting an instance as a multiple of the deadline of a sample. Larger than one, because `init` may read
/// large files such as vocabularies.
pub(crate) const INIT_FACTOR: u32 = 10;
/// Minimum of the CPU time limit for starting an instance.
pub(crate) const MIN_INIT: Duration = Duration::from_secs(1);
/// Number of values, or of pages of 4 KiB, that the host converts between two checks of deadline and stop. Converting them takes
/// less than a tick.
const WORK_PER_CHECK: u64 = 8_192;

/// Reasons why the host ends a guest.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Kill {
    #[error("exceeded its deadline of {}", time_allowed(*.per_sample, *.samples))]
    Deadline { per_sample: Duration, samples: u32 },
    #[error(
        "took {WALL_FACTOR} times its deadline of {} in wall-clock time, while using less CPU time than its deadline",
        time_allowed(*.per_sample, *.samples)
    )]
    WallClock { per_sample: Duration, samples: u32 },
    #[error("the run was stopped")]
    Stopped,
    #[error("requested {} MiB of memory, but the limit is {} MiB (`memory_mib`)", mib(*.asked), mib(*.limit))]
    Memory { asked: u64, limit: u64 },
    #[error(
        "requested {} MiB of memory, but the module itself declares a maximum of {} MiB; build the module with a larger maximum",
        mib(*.asked), mib(*.maximum)
    )]
    OwnMemory { asked: u64, maximum: u64 },
    #[error("requested a table of {asked} entries, but the limit is {TABLE_ENTRIES}")]
    Table { asked: u64 },
    #[error("requested a table of {asked} entries, but the module itself declares a maximum of {maximum}")]
    OwnTable { asked: u64, maximum: u64 },
    #[error("counted `{name}`, which the module's manifest does not declare under `counters`")]
    UndeclaredCounter { name: String },
    #[error("added {delta} to counter `{name}`, but only finite numbers can be added")]
    CounterValue { name: String, delta: f64 },
}

fn time_allowed(per_sample: Duration, samples: u32) -> String {
    let millis = per_sample.as_millis();
    match samples {
        0 => format!(
            "{millis} ms CPU time ({INIT_FACTOR} x `deadline_ms`, but at least {} ms)",
            MIN_INIT.as_millis()
        ),
        1 => format!("{millis} ms CPU time per sample (`deadline_ms`)"),
        _ => format!("{millis} ms CPU time per sample (`deadline_ms`), for {samples} samples"),
    }
}

/// Ends a guest that exceeds the limits of memory and tables. If the guest's request were only refused, the guest would abort
/// without a reason.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    pub(crate) bytes: u64,
    /// Size of all memories of the instance, in bytes.
    pub(crate) used: u64,
    /// Peak memory of the stage's instances, in bytes.
    pub(crate) peak: Arc<AtomicU64>,
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let limit = self.bytes;
        let asked = self.used.saturating_sub(current as u64).saturating_add(desired as u64);
        match maximum.map(|maximum| maximum as u64) {
            // The message states the smaller limit, because raising only the larger one would change nothing.
            Some(maximum) if desired as u64 > maximum && maximum < limit => {
                Err(Kill::OwnMemory { asked: desired as u64, maximum }.into())
            }
            _ if asked > limit => Err(Kill::Memory { asked, limit }.into()),
            _ => {
                self.used = asked;
                self.peak.fetch_max(asked, Ordering::Relaxed);
                Ok(true)
            }
        }
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(error)
    }

    fn table_growing(&mut self, _: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let asked = desired as u64;
        match maximum {
            Some(maximum) if desired > maximum && maximum < TABLE_ENTRIES => {
                Err(Kill::OwnTable { asked, maximum: maximum as u64 }.into())
            }
            _ if desired > TABLE_ENTRIES => Err(Kill::Table { asked }.into()),
            _ => Ok(true),
        }
    }

    fn table_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(error)
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES as usize
    }

    fn tables(&self) -> usize {
        TABLES as usize
    }

    fn memories(&self) -> usize {
        MEMORIES as usize
    }
}

/// Measures the CPU time of one call from its first tick. A call shorter than a tick reads no clock, and a longer call may exceed
/// its deadline by at most one tick.
#[derive(Debug)]
pub(crate) struct CallClock {
    stop: Arc<AtomicBool>,
    call: u64,
    /// Number of the call for which `start` was read.
    timed_call: u64,
    start: Clocks,
    allowed: Allowed,
    /// Values converted in this call since the last check.
    work: u64,
    /// Set once the host has converted many values. From then on, calls are timed from their start, because no tick occurs while
    /// the engine reads a guest's results.
    is_heavy: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// CPU time limit of one sample, or of the whole call if `samples` is 0.
    pub(crate) per_sample: Duration,
    /// Number of samples in the call; 0 for a call without samples, such as `init`.
    pub(crate) samples: u32,
}

/// CPU time of this thread and wall-clock time, read together.
#[derive(Clone, Copy, Debug, Default)]
struct Clocks {
    cpu: Duration,
    wall: Duration,
}

impl CallClock {
    pub(crate) fn new(stop: Arc<AtomicBool>, allowed: Allowed) -> Self {
        Self { stop, call: 1, timed_call: 0, start: Clocks::default(), allowed, work: 0, is_heavy: false }
    }

    /// Resets the clock at the start of a call.
    pub(crate) fn begin(&mut self, allowed: Allowed) {
        self.call += 1;
        self.allowed = allowed;
        self.work = 0;
        if self.is_heavy {
            (self.timed_call, self.start) = (self.call, Clocks::read());
        }
    }

    /// Charges work of the host to the current call, in converted values or pages of bytes. After every [`WORK_PER_CHECK`] units,
    /// checks deadline and stop, as at a tick of a running guest.
    #[inline]
    pub(crate) fn on_work(&mut self, values: u64) -> Result<(), Kill> {
        self.work = self.work.saturating_add(values);
        if self.work < WORK_PER_CHECK {
            return Ok(());
        }
        self.work = 0;
        self.is_heavy = true;
        self.on_tick().map(drop)
    }

    /// Called by a running guest at every tick.
    pub(crate) fn on_tick(&mut self) -> Result<UpdateDeadline, Kill> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Kill::Stopped);
        }
        self.on_time(Clocks::read())?;
        Ok(UpdateDeadline::Continue(1))
    }

    fn on_time(&mut self, now: Clocks) -> Result<(), Kill> {
        if self.timed_call != self.call {
            self.timed_call = self.call;
            self.start = now;
            return Ok(());
        }
        let Allowed { per_sample, samples } = self.allowed;
        let total = per_sample.saturating_mul(samples.max(1));
        if now.cpu.saturating_sub(self.start.cpu) >= total {
            return Err(Kill::Deadline { per_sample, samples });
        }
        if now.wall.saturating_sub(self.start.wall) >= total.saturating_mul(WALL_FACTOR) {
            return Err(Kill::WallClock { per_sample, samples });
        }
        Ok(())
    }
}

impl Clocks {
    fn read() -> Self {
        Self { cpu: read_clock(ClockId::ThreadCPUTime), wall: monotonic() }
    }
}

/// Monotonic time since a fixed moment.
pub(crate) fn monotonic() -> Duration {
    read_clock(ClockId::Monotonic)
}

fn read_clock(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().expect("these clocks count up from zero")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(cpu: u64, wall: u64) -> Clocks {
        Clocks { cpu: Duration::from_millis(cpu), wall: Duration::from_millis(wall) }
    }

    fn clock(samples: u32) -> CallClock {
        CallClock::new(Arc::default(), Allowed { per_sample: Duration::from_millis(100), samples })
    }

    #[test]
    fn a_call_is_timed_from_its_first_tick() {
        let mut clock = clock(1);
        assert_eq!(clock.on_time(at(500, 500)), Ok(()));
        assert_eq!(clock.on_time(at(599, 600)), Ok(()));
        let kill = clock.on_time(at(600, 601)).unwrap_err();
        assert_eq!(kill.to_string(), "exceeded its deadline of 100 ms CPU time per sample (`deadline_ms`)");
    }

    #[test]
    fn the_next_call_is_timed_from_zero() {
        let mut clock = clock(1);
        clock.on_time(at(0, 0)).unwrap();
        clock.begin(Allowed { per_sample: Duration::from_millis(100), samples: 1 });
        assert_eq!(clock.on_time(at(150, 150)), Ok(()));
        assert_eq!(clock.on_time(at(249, 249)), Ok(()));
        assert!(clock.on_time(at(250, 250)).is_err());
    }

    #[test]
    fn a_batch_may_take_the_time_of_all_of_its_samples() {
        let mut clock = clock(8);
        clock.on_time(at(0, 0)).unwrap();
        assert_eq!(clock.on_time(at(799, 799)), Ok(()));
        let kill = clock.on_time(at(800, 800)).unwrap_err();
        assert_eq!(
            kill.to_string(),
            "exceeded its deadline of 100 ms CPU time per sample (`deadline_ms`), for 8 samples"
        );
    }

    #[test]
    fn waiting_for_a_processor_is_limited_to_ten_times_the_deadline() {
        let mut clock = clock(1);
        clock.on_time(at(0, 0)).unwrap();
        assert_eq!(clock.on_time(at(10, 999)), Ok(()));
        let kill = clock.on_time(at(11, 1000)).unwrap_err();
        assert!(matches!(kill, Kill::WallClock { .. }), "{kill}");
    }

    #[test]
    fn a_memory_fault_names_the_smaller_of_the_stages_limit_and_the_modules_maximum() {
        let mut limit = MemoryLimit { bytes: 256 << 20, used: 0, peak: Arc::default() };
        let mut grow = |mib: usize, maximum: Option<usize>| {
            limit.used = 0;
            let grown = limit.memory_growing(0, mib << 20, maximum.map(|mib| mib << 20));
            grown.map_err(|error| error.to_string())
        };
        assert_eq!(grow(256, None), Ok(true));
        assert_eq!(grow(64, Some(64)), Ok(true));
        let own = "requested 300 MiB of memory, but the module itself declares a maximum of 64 MiB; build the \
                   module with a larger maximum";
        assert_eq!(grow(300, Some(64)), Err(own.into()));
        let ours = "requested 300 MiB of memory, but the limit is 256 MiB (`memory_mib`)";
        for maximum in [None, Some(256), Some(280), Some(4096)] {
            assert_eq!(grow(300, maximum), Err(ours.into()));
        }
        assert_eq!(limit.peak.load(Ordering::Relaxed), 256 << 20, "refused memory does not count");
    }

    #[test]
    fn all_memories_of_an_instance_share_one_limit() {
        let mut limit = MemoryLimit { bytes: 100, used: 0, peak: Arc::default() };
        let mut grow = |current, desired| limit.memory_growing(current, desired, None).is_ok();
        assert!(grow(0, 60) && grow(0, 30) && grow(60, 70));
        assert!(!grow(30, 31));
        assert!(!grow(0, 1));
        assert_eq!((limit.used, limit.peak.load(Ordering::Relaxed)), (100, 100));
    }

    #[test]
    fn a_table_fault_names_the_smaller_of_the_limit_and_the_modules_maximum() {
        let mut limit = MemoryLimit { bytes: 1, used: 0, peak: Arc::default() };
        let mut grow =
            |entries, maximum| limit.table_growing(0, entries, maximum).map_err(|error| error.to_string());
        assert_eq!(grow(20_000, None), Ok(true));
        let ours = "requested a table of 20001 entries, but the limit is 20000";
        assert_eq!(grow(20_001, Some(20_000)), Err(ours.into()));
        let own = "requested a table of 12 entries, but the module itself declares a maximum of 9";
        assert_eq!(grow(12, Some(9)), Err(own.into()));
    }

    #[test]
    fn work_of_the_host_is_charged_to_its_call_and_later_calls_are_timed_from_their_beginning() {
        let mut clock = clock(1);
        for _ in 1..WORK_PER_CHECK {
            assert_eq!(clock.on_work(1), Ok(()));
        }
        clock.begin(clock.allowed);
        assert_eq!(clock.on_work(WORK_PER_CHECK - 1), Ok(()));
        assert_eq!(
            (clock.timed_call, clock.is_heavy),
            (0, false),
            "little work in many calls reads no clock"
        );
        assert_eq!(clock.on_work(1), Ok(()));
        assert_eq!(clock.timed_call, clock.call);
        clock.begin(Allowed { per_sample: Duration::ZERO, samples: 1 });
        assert_eq!(clock.timed_call, clock.call);
        assert!(matches!(clock.on_work(WORK_PER_CHECK), Err(Kill::Deadline { .. })));
        clock.stop.store(true, Ordering::Relaxed);
        assert_eq!(clock.on_work(WORK_PER_CHECK), Err(Kill::Stopped));
    }

    #[test]
    fn a_stop_ends_the_call_at_the_next_tick() {
        let stop = Arc::new(AtomicBool::new(true));
        let mut clock = CallClock::new(stop, Allowed { per_sample: Duration::from_secs(9), samples: 1 });
        assert!(matches!(clock.on_tick(), Err(Kill::Stopped)));
    }
}
