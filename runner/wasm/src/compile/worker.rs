//! The compiling process: reads one request and writes one result.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Read, Write};
use std::process::ExitCode;

use penstock_types::text::{hex, printable};
use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use wasmtime::Engine;

use super::confine::allow_computing_only;
use super::frame::{CompileAnswer, Request, read_bytes, read_document, write_bytes, write_document};
use super::{Apart, apart};
use crate::component::{ModuleKind, component};
use crate::error::ModuleError;
use crate::sandbox::{code_config, digest_of_engine};

/// Maximum number of open files: the pipes, and files that the standard library opens to count the processors.
const OPEN_FILES: u64 = 16;

/// Entry point of the program described by [`crate::CompilerProcess`]: reads a request from standard input, applies the request's
/// limits to this process, compiles, and writes the result to standard output. The kernel prevents the process from opening files
/// and sockets and from starting processes.
pub fn compile_on_request() -> ExitCode {
    match answer(&mut io::stdin().lock(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The parent reads the message; the write fails if the parent has ended.
            writeln!(io::stderr(), "cannot compile: {error}").unwrap_or_default();
            ExitCode::FAILURE
        }
    }
}

fn answer(input: &mut impl Read, out: &mut impl Write) -> io::Result<()> {
    let request: Request = read_document(input)?;
    confine(&request)?;
    let module = read_bytes(input, request.module_bytes)?;
    let (answer, code) = match compiled(&request, &module) {
        Ok(code) if code.len() as u64 > request.code_bytes => (CompileAnswer::TooLong, None),
        Ok(code) => (CompileAnswer::Compiled, Some(code)),
        Err(answer) => (answer, None),
    };
    write_document(out, &answer)?;
    code.map_or(Ok(()), |code| write_bytes(out, &code))
}

fn compiled(request: &Request, module: &[u8]) -> Result<Vec<u8>, CompileAnswer> {
    if request.is_look {
        return answered(|| made_component(request.kind, module).map(|_| Vec::new()));
    }
    let engine = Engine::new(&code_config()).map_err(|error| answer_of(&error))?;
    if request.engine != hex(&digest_of_engine(&engine)) {
        return Err(CompileAnswer::OtherEngine);
    }
    answered(|| {
        let component = made_component(request.kind, module)?;
        engine.precompile_component(&component).map_err(|error| answer_of(&error))
    })
}

fn made_component(kind: ModuleKind, module: &[u8]) -> Result<Cow<'_, [u8]>, CompileAnswer> {
    component(kind, module).map_err(|error| match error {
        ModuleError::Invalid { reason } => CompileAnswer::Invalid(reason),
        other => refused(&other.to_string()),
    })
}

fn answered(work: impl FnOnce() -> Result<Vec<u8>, CompileAnswer> + Send) -> Result<Vec<u8>, CompileAnswer> {
    apart(work).unwrap_or_else(|error| match error {
        // Neither this thread nor the compiler's threads can be started if the address space is exhausted.
        Apart::NoThread(_) => Err(CompileAnswer::OutOfMemory),
        Apart::Panicked(message) if message.contains("thread pool") => Err(CompileAnswer::OutOfMemory),
        panicked => Err(refused(&panicked.to_string())),
    })
}

fn answer_of(error: &wasmtime::Error) -> CompileAnswer {
    let is_out_of_memory = error.is::<wasmtime::OutOfMemory>()
        || error.chain().any(|cause| {
            cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfMemory)
                || cause.downcast_ref::<rustix::io::Errno>() == Some(&rustix::io::Errno::NOMEM)
        });
    if is_out_of_memory { CompileAnswer::OutOfMemory } else { refused(&format!("{error:#}")) }
}

/// Creates a refusal whose reason is cut to the maximum length in an answer.
fn refused(reason: &str) -> CompileAnswer {
    CompileAnswer::Refused(printable(reason, 1000))
}

/// Applies the limits to this process, before it reads a byte of the module.
fn confine(request: &Request) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before this process requested its signal.
    if getppid().map(|parent| parent.as_raw_nonzero().get().cast_unsigned()) != Some(request.parent) {
        return Err(io::Error::other("the parent process has ended"));
    }
    limit(Resource::As, request.memory_bytes, 0)?;
    // At the soft limit, SIGXCPU is sent, which shows the reason for the end; SIGKILL follows a second later.
    limit(Resource::Cpu, request.cpu_s, 1)?;
    limit(Resource::Core, 0, 0)?;
    limit(Resource::Fsize, 0, 0)?;
    limit(Resource::Nofile, OPEN_FILES, 0)?;
    allow_computing_only()
}

/// Lowers a limit to `requested`, with `spare` added to the hard limit; never raises the current limit.
fn limit(resource: Resource, requested: u64, spare: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let maximum = most.min(requested.saturating_add(spare));
    let limit = Rlimit { current: Some(requested.min(maximum)), maximum: Some(maximum) };
    Ok(setrlimit(resource, limit)?)
}
