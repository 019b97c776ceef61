//! System resources of a server: a file system that can be full, limits, signals, and the usage of its process.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

/// Size of a file system for a data directory, in MiB.
const DISK_MIB: u64 = 512;
/// Environment variable that is set in the process that may mount file systems.
const INSIDE: &str = "PENSTOCK_CHAOS_INSIDE";

/// A file system mounted on a folder, unmounted on drop.
#[derive(Debug)]
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Mounts a file system; works only if [`enter_namespaces`] returned true.
    pub(crate) fn mount(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        let size = format!("size={DISK_MIB}m,mode=700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "chaos"]).arg(folder).status();
        assert!(mounted.unwrap().success());
        Self(folder.to_owned())
    }

    /// Fills the file system, except for this many bytes.
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
        // Lazy unmount: a process that is ending may still use the file system.
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

/// Runs the test again in separate Linux namespaces, where file systems can be mounted without root. Returns `None` once the test
/// has passed there, true inside the namespaces, and false if the machine does not permit namespaces: then the test has to run
/// without full disks.
pub(crate) fn enter_namespaces(test: &str) -> Option<bool> {
    if env::var_os(INSIDE).is_some() {
        // Hides the shared memory of other programs of this machine.
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

/// Resource usage of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) rss_kib: u64,
    /// Part of the resident memory that is or could be shared with others, in KiB.
    pub(crate) shared_kib: u64,
    /// Private writable memory, used or not, in KiB.
    pub(crate) data_kib: u64,
    pub(crate) threads: u64,
    pub(crate) files: u64,
}

impl Facts {
    /// Reads the usage; `None` if the process is gone.
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

/// Live child processes of a process.
pub(crate) fn children(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|children| children.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// True if a process is running; false for a zombie.
pub(crate) fn lives(process: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

pub(crate) fn signal(process: u32, signal: Signal) {
    kill_process(pid(process), signal).ok();
}

/// Limits the private memory of a process; `None` restores the limit of this process.
pub(crate) fn limit_memory(process: u32, kib: Option<u64>) {
    let usual = getrlimit(Resource::Data);
    let limit = Rlimit { current: kib.map(|kib| kib << 10).or(usual.current), maximum: usual.maximum };
    prlimit(Some(pid(process)), Resource::Data, limit).unwrap();
}

fn pid(process: u32) -> Pid {
    Pid::from_raw(i32::try_from(process).unwrap()).unwrap()
}

/// Names of the shared memory segments of this machine.
pub(crate) fn shared_memory() -> BTreeSet<PathBuf> {
    fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[expect(clippy::print_stderr, reason = "progress is printed, since the test takes minutes")]
pub(crate) fn tell(text: &str) {
    eprintln!("{text}");
}
