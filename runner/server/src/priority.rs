//! Priority of threads: requests come before runs, and before the compilers of a client that uploads several modules at once.

use std::panic::resume_unwind;
use std::thread;

use rustix::process::nice;

/// Niceness of low priority: on a busy core, such a thread gets a third of the time of one without. Other processes on the machine
/// come before it by the same share.
const NICENESS: i32 = 5;

/// Gives this thread, and the threads and processes that it starts, a low priority. Has an effect on Linux alone, where it does not
/// apply to the other threads of the process.
pub(crate) fn lower() {
    if cfg!(target_os = "linux")
        && let Err(error) = nice(NICENESS)
    {
        tracing::debug!(%error, "cannot lower the priority of a thread");
    }
}

/// Works on a new thread with a low priority; that of the caller stays.
pub(crate) fn work_low<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            lower();
            work()
        });
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn a_low_priority_stays_with_its_thread() {
        let niceness = || getpriority_process(None).unwrap();
        let before = niceness();
        assert_eq!(work_low(niceness), (before + NICENESS).min(19));
        assert_eq!(niceness(), before);
    }
}
