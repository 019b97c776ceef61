//! The command `penstock` as a library. Its entry point is [`main`], for the binary and for other programs that include the
//! command.

mod announced;
mod args;
mod client;
mod commands;
mod files;
mod heaps;
mod input;
mod interrupt;
mod oci;
mod progress;
mod report;
mod stores;
mod text;

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use penstock_wasm::CompilerProcess;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;

use crate::args::{Args, BenchCommand, Command, DataCacheCommand, IndexCommand, ModuleCommand, TokenCommand};
use crate::commands::{
    bench, check, compare, compile_module, data_cache, headspace, index, list, module, new, predict, profile,
    pull, push, replay, run, serve, submit, test_stage, token, tune,
};
use crate::input::{BadInput, with_runtime};
use crate::text::{say_json, warn};

/// The run completed. Skipped samples are reported, but do not count as a failure.
const COMPLETED: u8 = 0;
/// A run failed, or an operation before or after the run failed.
const FAILED: u8 = 1;
/// The command line or the document is invalid.
const BAD_INPUT: u8 = 2;
/// The run was stopped by Ctrl-C.
const STOPPED: u8 = 130;

/// Prevents this process, its children and code that escapes a sandbox from gaining privileges through setuid programs. Called
/// before other threads start, so that they inherit the setting.
fn give_up_privileges() {
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        warn(&format!("the kernel does not let this process give up privileges: {error}"));
    }
}

/// Executes the command line, whose first argument is the command's name, and returns the exit code. Called once in a process,
/// before it starts other threads. `compiler` is the program that compiles modules; `None` uses this program.
pub fn main(arguments: impl IntoIterator<Item = OsString>, compiler: Option<CompilerProcess>) -> u8 {
    heaps::bound();
    files::allow_many();
    give_up_privileges();
    compile_module::start_with(compiler);
    let args = match Args::read(arguments) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let _logs = start_logs(args.log_json, &args.command);
    let outcome = match &args.command {
        Command::Run(args) => with_runtime(|runtime| run::run(runtime, args)),
        Command::Bench(BenchCommand::Storage(args)) => with_runtime(|runtime| bench::storage(runtime, args)),
        Command::Bench(BenchCommand::Compare(args)) => bench::compared::compare(args),
        Command::Bench(BenchCommand::Schema) => done(say_json(&penstock_bench::schema())),
        Command::Check(args) => done(with_runtime(|runtime| check::check(runtime, args))),
        Command::Compare(args) => done(compare::compare(args)),
        Command::Tune(args) => with_runtime(|runtime| tune::tune(runtime, args)),
        Command::Profile(args) => with_runtime(|runtime| profile::profile(runtime, args)),
        Command::Headspace(args) => with_runtime(|runtime| headspace::headspace(runtime, args)),
        Command::Predict(args) => done(with_runtime(|runtime| predict::predict(runtime, args))),
        Command::Replay(args) => with_runtime(|runtime| replay::replay(runtime, args)),
        Command::Schema => done(say_json(&penstock_types::spec::schema())),
        Command::New(args) => done(new::new(args)),
        Command::TestStage(args) => test_stage::test_stage(args),
        Command::Module(ModuleCommand::List(args)) => done(module::list(args)),
        Command::Module(ModuleCommand::Inspect(args)) => done(module::inspect(args)),
        Command::Module(ModuleCommand::Manifest(args)) => done(module::manifest(args)),
        Command::CompileModule => {
            return u8::from(penstock_wasm::compile_on_request() != ExitCode::SUCCESS);
        }
        Command::Index(IndexCommand::Create(args)) => {
            done(with_runtime(|runtime| index::create(runtime, args)))
        }
        Command::DataCache(DataCacheCommand::List(args)) => done(data_cache::list(args)),
        Command::DataCache(DataCacheCommand::Verify(args)) => data_cache::verify(args),
        Command::DataCache(DataCacheCommand::Clear(args)) => data_cache::clear(args),
        Command::Serve(args) => done(with_runtime(|runtime| runtime.block_on(serve::serve(args)))),
        Command::Token(TokenCommand::Link(args)) => done(token::link(args)),
        Command::Token(TokenCommand::Add(args)) => done(token::add(args)),
        Command::Token(TokenCommand::Remove(args)) => done(token::remove(args)),
        Command::Token(TokenCommand::List(args)) => done(token::list(args)),
        Command::Push(args) => done(push::push(args)),
        Command::Pull(args) => done(pull::pull(args)),
        Command::Submit(args) => submit::submit(args),
        Command::Runs(args) => done(list::runs(args)),
        Command::Stop(args) => done(submit::stop(args)),
        Command::Set(args) => done(submit::set(args)),
        Command::Resume(args) => done(submit::resume(args)),
        Command::Modules(args) => done(list::modules(args)),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if error.is::<BadInput>() => {
            warn(&format!("error: {error}"));
            BAD_INPUT
        }
        Err(error) if is_closed_pipe(&error) => FAILED,
        Err(error) => {
            warn(&format!("error: {error:#}"));
            FAILED
        }
    }
}

/// Token of the server that this user runs at `url`, if there is one.
pub fn announced_token(url: &str) -> Option<String> {
    let file = announced::token_file(&url.parse().ok()?)?;
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

fn done(outcome: anyhow::Result<()>) -> anyhow::Result<u8> {
    outcome.map(|()| COMPLETED)
}

/// True if the reader of standard output closed it, as `head` does; no message is printed then.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Starts the logs: those of modules from `info` on, those of Penstock from `warn` on; `PENSTOCK_LOG` changes that. A separate
/// thread writes the lines, so that a stalled terminal does not block other threads; lines that the terminal does not accept in
/// time are lost. `test-stage` shows its module's logs in its report.
fn start_logs(json: bool, command: &Command) -> WorkerGuard {
    let (stderr, guard) = tracing_appender::non_blocking(io::stderr());
    let modules = if matches!(command, Command::TestStage(_)) { "off" } else { "info" };
    let filter = EnvFilter::try_from_env("PENSTOCK_LOG").unwrap_or_else(|_| {
        EnvFilter::new(format!("warn,penstock_server::audit=info,penstock_wasm::log={modules}"))
    });
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(io::stderr().is_terminal())
        .log_internal_errors(false)
        .without_time();
    if json {
        logs.json().init()
    } else {
        logs.init()
    }
    guard
}
