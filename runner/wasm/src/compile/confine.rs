//! System call filter of the compiling process, which allows only computing and writing the result.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// System calls that are allowed with any arguments. Since the process cannot open new file descriptors, it can read and write
/// only its three pipes.
const ALLOWED: [i64; 31] = [
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_read,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_tgkill,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Restricts this thread, and all threads that it starts, to the system calls that computing needs. These threads can open no
/// file or socket, start no process or program, raise no limit and gain no privilege. A refused call fails as if the kernel did
/// not have it, so that libraries use their fallbacks: the C library, for example, starts threads by `clone3`, whose arguments a
/// filter cannot inspect, and falls back to `clone`, whose arguments a filter can inspect.
///
/// Fails if the kernel does not support filters; modules must not be compiled then.
pub(super) fn allow_computing_only() -> io::Result<()> {
    let failed = |error: &dyn std::fmt::Display| {
        io::Error::other(format!(
            "the kernel does not accept the system call filter (seccomp) that confines the compiling process: {error}"
        ))
    };
    let program = filter().map_err(|error| failed(&error))?;
    // Also sets `no_new_privs`, which is required to install a filter without being root.
    seccompiler::apply_filter(&program).map_err(|error| failed(&error))
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.map(|call| (call, Vec::new())).into();
    // `clone` may only create a thread of this process, not a new process.
    let thread = libc::CLONE_THREAD as u64;
    rules.insert(libc::SYS_clone, only(0, SeccompCmpOp::MaskedEq(thread), thread)?);
    // Limits may only be read: the third argument, a new limit, must be null.
    rules.insert(libc::SYS_prlimit64, only(2, SeccompCmpOp::Eq, 0)?);
    rules.insert(libc::SYS_prctl, only(0, SeccompCmpOp::Eq, libc::PR_SET_NAME as u64)?);
    let refused = SeccompAction::Errno(libc::ENOSYS as u32);
    SeccompFilter::new(rules, refused, SeccompAction::Allow, ARCH.try_into()?)?.try_into()
}

/// Rule that allows a call only if the comparison of an argument with a value holds.
fn only(
    argument: u8,
    compares: SeccompCmpOp,
    value: u64,
) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, compares, value)?;
    Ok(vec![SeccompRule::new(vec![condition])?])
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::process::Command;
    use std::sync::mpsc;

    use rustix::process::{Resource, getrlimit, setrlimit};

    use super::*;

    /// Runs work on a confined thread and returns its result.
    fn confined<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                allow_computing_only().unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn a_confined_thread_has_no_access_to_network_files_and_processes() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        assert!(TcpStream::connect(address).is_ok() && File::open("/proc/self/status").is_ok());
        let limit = getrlimit(Resource::Core);
        let attempts = confined(move || {
            [
                ("connect", TcpStream::connect(address).err()),
                ("listen", TcpListener::bind(("127.0.0.1", 0)).err()),
                ("datagram", UdpSocket::bind(("127.0.0.1", 0)).err()),
                ("pair", UnixStream::pair().err()),
                ("read", File::open("/proc/self/status").err()),
                ("write", File::create("/tmp/penstock-confined").err()),
                ("remove", std::fs::remove_file("/tmp/penstock-confined").err()),
                ("list", std::fs::read_dir("/").err()),
                ("start", Command::new("/bin/true").spawn().err()),
                ("limit", setrlimit(Resource::Core, limit).err().map(Into::into)),
                ("pipe", io::pipe().err()),
            ]
        });
        for (attempt, error) in attempts {
            let error = error.unwrap_or_else(|| panic!("{attempt} was allowed"));
            assert_eq!(error.raw_os_error(), Some(libc::ENOSYS), "{attempt}: {error}");
        }
    }

    #[test]
    fn threads_of_a_confined_thread_are_confined_and_can_compute() {
        let (error, sum) = confined(|| {
            let thread = std::thread::Builder::new().name("compile-module".into());
            let work = || (File::open("/proc/self/status").err(), vec![1_u64; 1 << 20].iter().sum::<u64>());
            thread.spawn(work).unwrap().join().unwrap()
        });
        assert_eq!(error.and_then(|error| error.raw_os_error()), Some(libc::ENOSYS));
        assert_eq!(sum, 1 << 20);
    }

    #[test]
    fn the_kernel_reports_a_confined_thread_without_new_privileges() {
        let (say, said) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let status = Path::new("/proc").join(std::fs::read_link("/proc/thread-self").unwrap());
                allow_computing_only().unwrap();
                say.send(status.join("status")).unwrap();
                ended.recv().unwrap_err();
            });
            let status = std::fs::read_to_string(said.recv().unwrap()).unwrap();
            drop(end);
            for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
                assert!(status.lines().any(|found| found == line), "{status}");
            }
        });
    }
}
