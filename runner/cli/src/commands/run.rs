use std::time::Duration;

use anyhow::{Context, Result};
use penstock_engine::running::StopReason;
use penstock_pipeline::{Ended, Outlets, OutputFolder, Run};
use penstock_types::run::{RunSnapshot, RunState};
use tokio::runtime::Runtime;

use crate::args::RunArgs;
use crate::input::{Document, bad, runtime};
use crate::interrupt::Interrupts;
use crate::progress::Progress;
use crate::report::report;
use crate::text::{count, say, warn};
use crate::{COMPLETED, FAILED, STOPPED};

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Runs a pipeline to its end, to Ctrl-C, or for the time asked for.
pub(crate) fn run(args: &RunArgs) -> Result<u8> {
    let runtime = runtime()?;
    let code = run_on(&runtime, args);
    // A read that hangs in the system must not keep the process.
    runtime.shutdown_background();
    code
}

fn run_on(runtime: &Runtime, args: &RunArgs) -> Result<u8> {
    let document = Document::read(&args.pipeline.document)?;
    let named = (&args.pipeline.stores, &args.pipeline.modules);
    let outlets = Outlets { keeps_letters: args.out.is_some(), streams: false };
    let prepared = document.prepare(named, runtime.handle(), outlets)?;
    let document = serde_json::to_value(&document.spec).context("cannot write the document down")?;
    let output = args
        .out
        .as_deref()
        .map(|folder| OutputFolder::at(folder, document))
        .transpose()
        .map_err(|error| bad(error.to_string()))?;
    let interrupts = Interrupts::listen(runtime)?;
    let run = runtime.block_on(prepared.start(output)).map_err(|error| match error.is_refusal() {
        true => bad(error.to_string()),
        false => error.into(),
    })?;
    interrupts.stop(&run);
    let Ended { snapshot, logs, output } = watch(run, args);
    if args.json {
        say(&serde_json::to_string_pretty(&snapshot)?)?;
    } else if !args.quiet {
        say(&report(&snapshot))?;
    }
    for (stage, logs) in logs.iter().filter(|(_, logs)| logs.dropped > 0) {
        warn(&format!("[{stage}] logged too much at a time: {} lines were left out", count(logs.dropped)));
    }
    output.context("the run's output is not whole")?;
    Ok(exit_code(&snapshot))
}

fn watch(run: Run, args: &RunArgs) -> Ended {
    let mut progress = Progress::new(args.quiet);
    loop {
        let elapsed = Duration::from_secs_f64(run.snapshot().elapsed_s);
        let left = args.time.map(|time| time.saturating_sub(elapsed));
        if left.is_some_and(|left| left.is_zero()) {
            run.stop(StopReason::TimeIsUp);
        }
        if run.wait_for(left.unwrap_or(LOOK).min(LOOK)) {
            break;
        }
        progress.show(&run.snapshot());
    }
    progress.clear();
    run.wait()
}

fn exit_code(snapshot: &RunSnapshot) -> u8 {
    if let Some(error) = &snapshot.error {
        warn(&format!("error: the run failed: {error}"));
    }
    match snapshot.state {
        RunState::Completed => COMPLETED,
        RunState::Stopped => STOPPED,
        _ => FAILED,
    }
}
