//! CPU time, memory and open files of this process, as Linux reports them.

use std::fs;

use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::Serialize;

/// Resources that the server's process uses.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct ProcessUse {
    /// CPU time of all threads since the process started, in seconds.
    pub(crate) cpu_s: f64,
    /// Resident memory of the process, in bytes.
    pub(crate) rss_bytes: u64,
    /// Number of open files and connections.
    pub(crate) open_files: u64,
}

/// Resources that this process uses; `None` if `/proc` is missing.
pub(crate) fn process_use() -> Option<ProcessUse> {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    // One of the entries is the descriptor of the directory that is being read.
    let files = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    Some(ProcessUse {
        cpu_s: cpu.tv_sec as f64 + cpu.tv_nsec as f64 * 1e-9,
        rss_bytes: pages * page_size() as u64,
        open_files: files as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reports_cpu_time_memory_and_open_files() {
        // The test opens so many files that files which concurrent tests open or close do not matter.
        let files: Vec<_> = (0..200).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let with = process_use().unwrap();
        assert!(with.cpu_s > 0.0 && with.rss_bytes > 1 << 20);
        assert!(with.open_files >= 200, "{}", with.open_files);
        drop(files);
    }
}
