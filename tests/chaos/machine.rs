//! What a server needs of its machine: a file system that can be full, limits, signals, and what its process uses.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

/// Size of a file system for a data directory, in MiB.
const DISK_MIB: u64 = 512;
/// Set in the process that may mount file systems.
const INSIDE: &str = "PENSTOCK_CHAOS_INSIDE";

/// A file system of its own below a folder, gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Mounts one; only where [`enter_namespaces`] says that this can be done.
    pub(crate) fn mount(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        let size = format!("size={DISK_MIB}m,mode=700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "chaos"]).arg(folder).status();
        assert!(mounted.unwrap().success());
        Self(folder.to_owned())
    }

    /// Takes all room but so many bytes.
    pub(crate) fn fill(&self, left: u64) {
        let mut file = File::create(self.0.join("fill")).unwrap();
        let mut piece = vec![0; 1 << 20];
        while !piece.is_empty() {
            if file.write_all(&piece).is_err() {
                piece.truncate(piece.len() / 2);
            }
        }
        let full = file.metadata().unwrap().len();
        file.set_len(full.saturating_sub(left)).unwrap();
    }

    pub(crate) fn empty(&self) {
        fs::remove_file(self.0.join("fill")).ok();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a process that is ending may still have it.
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

/// Goes on with the test of that name where file systems can be mounted, in name spaces of its own, which needs no root. `None`
/// once it has passed there; else whether this is there. Where the machine gives no name spaces, disks are never full.
pub(crate) fn enter_namespaces(test: &str) -> Option<bool> {
    if env::var_os(INSIDE).is_some() {
        // Other programs of this machine have shared memory too.
        let mounted = Command::new("mount").args(["-t", "tmpfs", "chaos", "/dev/shm"]).status();
        assert!(mounted.unwrap().success());
        return Some(true);
    }
    let within = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]);
        command
    };
    let tried = within().args(["mount", "-t", "tmpfs", "chaos", "/mnt"]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        tell("no disk will be full: `unshare --user --mount` and `mount` do not work here");
        return Some(false);
    }
    let mut command = within();
    command.arg(env::current_exe().unwrap()).args([test, "--exact", "--include-ignored", "--nocapture"]);
    assert!(command.env(INSIDE, "1").status().unwrap().success(), "see above");
    None
}

/// What a process uses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) rss_kib: u64,
    /// Of that, memory that it shares with others or could.
    pub(crate) shared_kib: u64,
    /// Memory of its own that it may write to, used or not.
    pub(crate) data_kib: u64,
    pub(crate) threads: u64,
    pub(crate) files: u64,
}

impl Facts {
    /// `None` when the process is gone.
    pub(crate) fn of(process: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let figure = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        Some(Self {
            rss_kib: figure("VmRSS:")?,
            shared_kib: figure("RssShmem:")?,
            data_kib: figure("VmData:")?,
            threads: figure("Threads:")?,
            files: fs::read_dir(format!("/proc/{process}/fd")).ok()?.count() as u64,
        })
    }
}

/// Processes that it has started and that live.
pub(crate) fn children(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|children| children.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Whether a process does anything any more; one that is only not buried yet does not.
pub(crate) fn lives(process: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

pub(crate) fn signal(process: u32, signal: Signal) {
    kill_process(pid(process), signal).ok();
}

/// Lets a process have no more memory of its own than that; `None` for as much as this process may have.
pub(crate) fn limit_memory(process: u32, kib: Option<u64>) {
    let usual = getrlimit(Resource::Data);
    let limit = Rlimit { current: kib.map(|kib| kib << 10).or(usual.current), maximum: usual.maximum };
    prlimit(Some(pid(process)), Resource::Data, limit).unwrap();
}

fn pid(process: u32) -> Pid {
    Pid::from_raw(i32::try_from(process).unwrap()).unwrap()
}

/// Names of shared memory of this machine.
pub(crate) fn shared_memory() -> BTreeSet<PathBuf> {
    fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[expect(clippy::print_stderr, reason = "who started it watches it for minutes")]
pub(crate) fn tell(text: &str) {
    eprintln!("{text}");
}
