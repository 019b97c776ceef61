//! The parent's side of the compiling process: starts the process, communicates with it for a bounded time, and always reaps it.

use std::io::{self, ErrorKind, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use penstock_types::text::{hex, printable};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::frame::{CompileAnswer, Request, read_bytes, read_document, write_bytes, write_document};
use super::{CompilerProcess, refused};
use crate::component::ModuleKind;
use crate::error::{CompileLimit, ModuleError};

/// Maximum number of times a compiling process is started if it fails for reasons other than the module.
const ATTEMPTS: u32 = 2;
/// Maximum number of threads of one compilation. Each thread takes address space for its stack and its heap.
const MAX_THREADS: usize = 4;
/// Maximum number of bytes of the process's standard error that are kept.
const MAX_COMPLAINT_BYTES: u64 = 8 << 10;
/// Message that the standard library prints before it aborts because an allocation failed.
const ALLOCATION_FAILED: &str = "memory allocation of ";
/// Message that the standard library prints before it aborts on stack overflow.
const STACK_OVERFLOWED: &str = "has overflowed its stack";

enum Failure {
    /// The module caused the failure.
    Module(ModuleError),
    /// The process failed for a reason other than the module; a further attempt may succeed.
    Process(String),
}

/// Output and exit status of a process that has ended.
struct Ended {
    status: ExitStatus,
    answer: io::Result<(CompileAnswer, Vec<u8>)>,
    complaint: String,
    /// Set if the process exceeded its wall-clock limit.
    was_late: bool,
}

/// Compiles in a child process. If the child is killed by another process or sends an invalid result, a second child is started.
/// Without an engine digest, the child only checks that the module can be compiled, and the returned code is empty.
pub(super) fn compile(
    process: &CompilerProcess,
    engine_digest: Option<&[u8; 32]>,
    bytes: &[u8],
    kind: ModuleKind,
) -> Result<Vec<u8>, ModuleError> {
    let limits = &process.limits;
    let request = Request {
        kind,
        is_look: engine_digest.is_none(),
        engine: engine_digest.map(|digest| hex(digest)).unwrap_or_default(),
        parent: std::process::id(),
        module_bytes: bytes.len() as u64,
        memory_bytes: limits.memory_bytes,
        cpu_s: limits.cpu.as_secs() + u64::from(limits.cpu.subsec_nanos() > 0),
        code_bytes: limits.code_bytes,
    };
    let mut attempt = 1;
    loop {
        match converse(process, &request, bytes).and_then(|ended| judge(process, ended)) {
            Ok(code) => return Ok(code),
            Err(Failure::Module(error)) => return Err(error),
            Err(Failure::Process(reason)) if attempt == ATTEMPTS => {
                return Err(ModuleError::Compiler { reason: format!("{reason}; tried {ATTEMPTS} times") });
            }
            Err(Failure::Process(reason)) => {
                tracing::warn!(attempt, reason, "the compiling process failed, starting another one");
                attempt += 1;
            }
        }
    }
}

/// Child process in a separate process group, so that Ctrl-C reaches only the parent, which decides whether to end the child. The
/// child is killed and reaped on drop unless it was reaped before.
struct Worker(Child);

impl Worker {
    fn start(process: &CompilerProcess) -> io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        Command::new(&process.program)
            .args(&process.arguments)
            .env_clear()
            .envs(process.environment.iter().map(|(name, value)| (name, value)))
            .env("RAYON_NUM_THREADS", threads.to_string())
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(Self)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Waits for the end of the child without reaping it, so that its process id is not reused.
    fn wait(&self) -> io::Result<()> {
        loop {
            match waitid(WaitId::Pid(self.pid()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Err(rustix::io::Errno::INTR) => {}
                ended => return Ok(ended.map(drop)?),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Checked before killing: after the child is reaped, another process may have its id.
        let ended = match self.0.try_wait() {
            Ok(None) => {
                kill(self.pid());
                self.0.wait().map(drop)
            }
            ended => ended.map(drop),
        };
        if let Err(error) = ended {
            tracing::error!(%error, "cannot wait for the compiling process");
        }
    }
}

/// Kills the child's process group. Must only be called before the child is reaped.
fn kill(group: Pid) {
    // Fails if no process of the group is left, which is not an error.
    kill_process_group(group, Signal::KILL).unwrap_or_default();
}

fn converse(process: &CompilerProcess, request: &Request, bytes: &[u8]) -> Result<Ended, Failure> {
    let failed = |what: &str, error: io::Error| Failure::Process(format!("{what}: {error}"));
    let program = process.program.display();
    let mut worker =
        Worker::start(process).map_err(|error| failed(&format!("cannot start `{program}`"), error))?;
    let pipes = (worker.0.stdin.take(), worker.0.stdout.take(), worker.0.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
        return Err(Failure::Process("the compiling process has no pipes".into()));
    };
    let (answer, complaint, was_late) = std::thread::scope(|scope| {
        let talk = Talk::begin(scope, &worker, process, request, bytes, stdin, stderr);
        // If a thread could not be started, the child is killed, because otherwise parent and child might wait for each other
        // forever.
        talk.inspect_err(|_| kill(worker.pid())).map(|talk| talk.end(&worker, process, stdout))
    })
    .map_err(|error| failed("cannot start the threads that communicate with the compiling process", error))?;
    let status = worker.0.wait().map_err(|error| failed("cannot wait for the compiling process", error))?;
    Ok(Ended { status, answer, complaint, was_late })
}

/// Threads that serve a child's pipes and enforce its time limit. The threads end when the child ends.
struct Talk<'scope> {
    complaint: ScopedJoinHandle<'scope, String>,
    timer: ScopedJoinHandle<'scope, bool>,
    is_over: mpsc::Sender<()>,
}

impl<'scope> Talk<'scope> {
    fn begin<'env>(
        scope: &'scope Scope<'scope, 'env>,
        worker: &Worker,
        process: &CompilerProcess,
        request: &'scope Request,
        bytes: &'scope [u8],
        mut stdin: ChildStdin,
        stderr: ChildStderr,
    ) -> io::Result<Self> {
        let (is_over, over) = mpsc::channel::<()>();
        let (wall, group) = (process.limits.wall, worker.pid());
        let named = |name: &str| Builder::new().name(name.into());
        let timer = named("compile-timer").spawn_scoped(scope, move || {
            let is_late = over.recv_timeout(wall) == Err(RecvTimeoutError::Timeout);
            if is_late {
                kill(group);
            }
            is_late
        })?;
        named("compile-request").spawn_scoped(scope, move || {
            // A write error is ignored: if the child ends before it has read everything, its exit status gives the reason.
            write_document(&mut stdin, request)
                .and_then(|()| write_bytes(&mut stdin, bytes))
                .unwrap_or_default();
        })?;
        let complaint = named("compile-stderr").spawn_scoped(scope, move || complaint(stderr))?;
        Ok(Self { complaint, timer, is_over })
    }

    /// Reads the result, and waits until the child has ended.
    fn end(
        self,
        worker: &Worker,
        process: &CompilerProcess,
        mut stdout: ChildStdout,
    ) -> (io::Result<(CompileAnswer, Vec<u8>)>, String, bool) {
        let mut answer = read_answer(&mut stdout, process.limits.code_bytes);
        if answer.as_ref().is_err_and(|error| error.kind() != ErrorKind::UnexpectedEof) {
            kill(worker.pid());
        }
        if let Err(error) = worker.wait() {
            answer = Err(error);
        }
        drop(self.is_over);
        let was_late = self.timer.join().unwrap_or_default();
        // Kills processes that the child started, because they may keep its pipes open.
        kill(worker.pid());
        (answer, self.complaint.join().unwrap_or_default(), was_late)
    }
}

fn read_answer(stdout: &mut ChildStdout, code_bytes: u64) -> io::Result<(CompileAnswer, Vec<u8>)> {
    let answer = read_document(stdout)?;
    let code = match answer {
        CompileAnswer::Compiled => read_bytes(stdout, code_bytes)?,
        _ => Vec::new(),
    };
    match stdout.read(&mut [0])? {
        0 => Ok((answer, code)),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "unexpected data after the result")),
    }
}

/// Returns the beginning of the child's standard error, and discards the rest, so that the child never blocks on a full pipe.
fn complaint(mut stderr: ChildStderr) -> String {
    let mut kept = Vec::new();
    (&mut stderr).take(MAX_COMPLAINT_BYTES).read_to_end(&mut kept).unwrap_or_default();
    io::copy(&mut stderr, &mut io::sink()).unwrap_or_default();
    String::from_utf8_lossy(&kept).into_owned()
}

fn judge(process: &CompilerProcess, ended: Ended) -> Result<Vec<u8>, Failure> {
    let Ended { status, answer, complaint, was_late } = ended;
    let limits = &process.limits;
    let exceeded = |limit| Failure::Module(ModuleError::CompileLimit { limit });
    match answer {
        Ok((answer, code)) if status.success() => {
            return match answer {
                CompileAnswer::Compiled => Ok(code),
                CompileAnswer::Invalid(reason) => {
                    Err(Failure::Module(ModuleError::Invalid { reason: printable(&reason, 1000) }))
                }
                CompileAnswer::Refused(reason) => Err(Failure::Module(refused(&reason))),
                CompileAnswer::OutOfMemory => Err(exceeded(CompileLimit::Memory(limits.memory_bytes))),
                CompileAnswer::TooLong => Err(exceeded(CompileLimit::Code(limits.code_bytes))),
                CompileAnswer::OtherEngine => Err(Failure::Module(ModuleError::Compiler {
                    reason: format!(
                        "`{}` is from another build than this process; restart this process",
                        process.program.display()
                    ),
                })),
            };
        }
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            return Err(Failure::Process(format!("the compiling process sent an invalid result ({error})")));
        }
        _ if was_late => return Err(exceeded(CompileLimit::Wall(limits.wall))),
        _ => {}
    }
    let said = match complaint.lines().next() {
        Some(line) => format!(": {}", printable(line, 300)),
        None => String::new(),
    };
    let signal = status.signal().and_then(Signal::from_named_raw);
    Err(match signal {
        Some(Signal::XCPU) => exceeded(CompileLimit::Cpu(limits.cpu)),
        Some(Signal::ABORT) if complaint.contains(ALLOCATION_FAILED) => {
            exceeded(CompileLimit::Memory(limits.memory_bytes))
        }
        Some(Signal::ABORT) if complaint.contains(STACK_OVERFLOWED) => Failure::Module(refused(
            "the compiler ran out of stack: the module's functions are nested too deeply (split the largest functions), or the types in its custom sections refer to each other in a cycle (keep the custom sections as the SDK writes them)",
        )),
        Some(Signal::ABORT | Signal::SEGV | Signal::BUS | Signal::ILL | Signal::FPE) => {
            Failure::Module(refused(&format!("the compiler crashed ({}){said}", name(status))))
        }
        Some(Signal::KILL) => Failure::Process(
            "the compiling process was killed from outside (SIGKILL), as the system does when memory runs out".into(),
        ),
        Some(_) => Failure::Process(format!("the compiling process was ended from outside ({})", name(status))),
        None => Failure::Process(format!("the compiling process ended without a result ({}){said}", name(status))),
    })
}

/// Describes an exit status, e.g. `exit code 1` or `SIGSEGV`.
fn name(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(number)) => match Signal::from_named_raw(number) {
            Some(Signal::ABORT) => "SIGABRT".into(),
            Some(Signal::SEGV) => "SIGSEGV".into(),
            Some(Signal::BUS) => "SIGBUS".into(),
            Some(Signal::ILL) => "SIGILL".into(),
            Some(Signal::FPE) => "SIGFPE".into(),
            Some(Signal::TERM) => "SIGTERM".into(),
            Some(Signal::INT) => "SIGINT".into(),
            Some(Signal::HUP) => "SIGHUP".into(),
            _ => format!("signal {number}"),
        },
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::process::test_kill_process;

    use super::*;

    #[test]
    fn no_process_is_killed_by_the_id_of_a_reaped_child() {
        // The child leaves a process in its group. The remaining process plays the role of an unrelated process that reuses the
        // group's id.
        let process = CompilerProcess::new("/bin/sh", ["-c", "exec 3<&0; cat <&3 &"]);
        let mut worker = Worker::start(&process).unwrap();
        let (mut stdin, mut stdout) = (worker.0.stdin.take().unwrap(), worker.0.stdout.take().unwrap());
        worker.0.wait().unwrap();
        drop(worker);
        stdin.write_all(b"alive").unwrap();
        drop(stdin);
        let mut said = String::new();
        stdout.read_to_string(&mut said).unwrap();
        assert_eq!(said, "alive");
    }

    #[test]
    fn a_dropped_child_is_killed_and_reaped() {
        let worker = Worker::start(&CompilerProcess::new("/bin/sh", ["-c", "sleep 60"])).unwrap();
        let pid = worker.pid();
        drop(worker);
        assert_eq!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
    }
}
