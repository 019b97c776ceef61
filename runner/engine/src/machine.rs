//! What this process may use of its machine.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use procfs::process::Process;
use procfs::{Current, Meminfo};

/// Bytes of memory that this process may use: what the machine has, or what the control groups of the process leave it, if that
/// is less; `None` where the system does not tell. Limits of control groups of version 1 are not looked at.
pub fn memory_bytes() -> Option<u64> {
    let machine = Meminfo::current().ok().map(|memory| memory.mem_total);
    machine.into_iter().chain(group_limit()).min()
}

/// The least limit of the control groups that this process is in.
fn group_limit() -> Option<u64> {
    let groups = Process::myself().and_then(|own| own.cgroups()).ok()?;
    // The one without controllers of its own is that of version 2.
    let group = groups.0.into_iter().find(|group| group.controllers.iter().all(String::is_empty))?;
    let root = Path::new("/sys/fs/cgroup");
    let folder: PathBuf = root.join(group.pathname.trim_start_matches('/'));
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(root));
    folders.filter_map(|folder| read_to_string(folder.join("memory.max")).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_more_memory_than_the_machine_has() {
        let bytes = memory_bytes().unwrap();
        assert!(bytes > 0 && bytes <= Meminfo::current().unwrap().mem_total, "{bytes}");
    }
}
