use anyhow::{Context, Result};
use penstock_pipeline::{Ended, Outlets, OutputFolder};
use tokio::runtime::Runtime;

use crate::args::RunArgs;
use crate::input::{Document, bad};
use crate::interrupt::Interrupts;
use crate::progress::watch;
use crate::report::{exit_code, report};
use crate::text::{count, say_as, warn};

/// Runs a pipeline until it ends, Ctrl-C stops it, or the time of `--for` has passed.
pub(crate) fn run(runtime: &Runtime, args: &RunArgs) -> Result<u8> {
    let outlets = Outlets { keeps_letters: args.out.is_some(), streams: false, writes_anywhere: true };
    let (document, prepared) = Document::prepared(&args.pipeline, runtime, outlets)?;
    let document = serde_json::to_value(&document.spec).context("cannot serialize the document")?;
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
    let Ended { snapshot, logs, output } = watch(run, args.time, args.quiet);
    if args.json || !args.quiet {
        say_as(args.json, &snapshot, report)?;
    }
    for (stage, logs) in logs.iter().filter(|(_, logs)| logs.dropped > 0) {
        warn(&format!("[{stage}] logged too much: {} lines were dropped", count(logs.dropped)));
    }
    output.context("the run's output is incomplete")?;
    Ok(exit_code(snapshot.state, snapshot.error.as_deref()))
}
