//! Priority of threads: requests come before runs, and before the compilers of a client that uploads several modules at once.

use std::io;
use std::panic::resume_unwind;
use std::thread::{self, Builder};

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

/// Works on a new thread with a low priority; that of the caller stays. Fails if the system has no thread left.
pub(crate) fn work_low<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = Builder::new().name("work-low".to_owned()).spawn_scoped(scope, || {
            lower();
            work()
        })?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn a_low_priority_stays_with_its_thread_and_the_processes_that_it_starts() {
        let niceness = || getpriority_process(None).unwrap();
        let of_process = || {
            let told = Command::new("nice").output().unwrap().stdout;
            String::from_utf8(told).unwrap().trim().parse::<i32>().unwrap()
        };
        let before = niceness();
        let low = (before + NICENESS).min(19);
        assert_eq!(work_low(|| (niceness(), of_process())).unwrap(), (low, low));
        assert_eq!((niceness(), of_process()), (before, before));
    }
}
