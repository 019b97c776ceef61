//! The command `penstock` as a library: the binary, and whatever else carries the command, calls [`main`].

mod args;
mod client;
mod commands;
mod files;
mod heaps;
mod input;
mod interrupt;
mod progress;
mod report;
mod stores;
mod text;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;

use crate::args::{Args, BenchCommand, Command, IndexCommand, ModuleCommand};
use crate::commands::{
    bench, check, compare, compile_module, headspace, index, list, module, new, predict, push, replay, run,
    schema, serve, submit, test_stage,
};
use crate::input::BadInput;
use crate::text::warn;

/// Ended as wanted; samples that were skipped included, and said.
const COMPLETED: u8 = 0;
/// The run failed, or something around it.
const FAILED: u8 = 1;
/// The command line or the document cannot be used.
const BAD_INPUT: u8 = 2;
/// Stopped by Ctrl-C.
const STOPPED: u8 = 130;

/// Reads the command line of this process, does what it says, and returns the exit code.
pub fn main() -> ExitCode {
    heaps::bound();
    files::allow_many();
    let args = Args::read();
    let _logs = start_logs(args.log_json, &args.command);
    let outcome = match &args.command {
        Command::Run(args) => run::run(args),
        Command::Bench(BenchCommand::Storage(args)) => bench::storage(args),
        Command::Bench(BenchCommand::Compare(args)) => bench::compare(args),
        Command::Bench(BenchCommand::Schema) => bench::schema(),
        Command::Check(args) => check::check(args),
        Command::Compare(args) => compare::compare(args),
        Command::Headspace(args) => headspace::headspace(args),
        Command::Predict(args) => predict::predict(args),
        Command::Replay(args) => replay::replay(args),
        Command::Schema => schema::print(),
        Command::New(args) => new::new(args),
        Command::TestStage(args) => test_stage::test_stage(args),
        Command::Module(ModuleCommand::Inspect(args)) => module::inspect(args),
        Command::CompileModule => return compile_module::answer(),
        Command::Index(IndexCommand::Create(args)) => index::create(args),
        Command::Serve(args) => serve::serve(args),
        Command::Push(args) => push::push(args),
        Command::Submit(args) => submit::submit(args),
        Command::Runs(args) => list::runs(args),
        Command::Stop(args) => submit::stop(args),
        Command::Modules(args) => list::modules(args),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) if error.is::<BadInput>() => {
            warn(&format!("error: {error}"));
            ExitCode::from(BAD_INPUT)
        }
        Err(error) if is_closed_pipe(&error) => ExitCode::from(FAILED),
        Err(error) => {
            warn(&format!("error: {error:#}"));
            ExitCode::from(FAILED)
        }
    }
}

/// Somebody reads our output no further, as `head` does: nobody is there to tell it to.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// What modules say is shown from `info` on, Penstock itself from `warn` on; `PENSTOCK_LOG` changes that.
/// Lines are written by a thread of their own, so that a terminal that stands still holds nothing up; what it does not take
/// in time is lost. `test-stage` shows what its module says in its report.
fn start_logs(json: bool, command: &Command) -> WorkerGuard {
    let (stderr, guard) = tracing_appender::non_blocking(io::stderr());
    let filter = EnvFilter::try_from_env("PENSTOCK_LOG")
        .unwrap_or_else(|_| EnvFilter::new(format!("warn,penstock_wasm::log={}", modules_from(command))));
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

/// The least level at which what modules say is logged.
fn modules_from(command: &Command) -> &'static str {
    match command {
        Command::TestStage(_) => "off",
        _ => "info",
    }
}
