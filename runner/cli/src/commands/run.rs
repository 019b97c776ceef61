use std::sync::Arc;

use anyhow::{Context, Result};
use penstock_pipeline::{Ended, Outlets, OutputFolder, RunEnds, StateFile};
use penstock_types::resume::{Token, TokenFault};
use penstock_types::spec;
use penstock_types::text::with_causes;
use tokio::runtime::Runtime;

use crate::args::RunArgs;
use crate::input::{Document, bad, faults};
use crate::interrupt::Interrupts;
use crate::progress::watch;
use crate::report::{exit_code, losses, report};
use crate::text::{count, say_as, warn};

pub(crate) fn run(runtime: &Runtime, args: &RunArgs) -> Result<u8> {
    let outlets = Outlets { keeps_letters: args.out.is_some(), streams: false, ..Outlets::ALL };
    let (origin, mut document) = Document::document(&args.pipeline.document)?;
    if let Some(tune) = &args.tune {
        spec::set(&mut document, "/tune", tune.as_str().into()).map_err(|fault| faults(&origin, &[fault]))?;
    }
    let (document, mut prepared) = Document::prepare(origin, document, &args.pipeline, runtime, outlets)?;
    let document = serde_json::to_value(&document.spec).context("cannot serialize the document")?;
    let output = args
        .out
        .as_deref()
        .map(|folder| OutputFolder::at(folder, document).map(Arc::new))
        .transpose()
        .map_err(|error| bad(error.to_string()))?;
    let state = args.state.clone().map(StateFile::at).transpose();
    let mut file = state.map_err(|error| bad(with_causes(&error)))?.or_else(|| prepared.state_of_files());
    let earlier = match &args.resume {
        Some(path) => Some((StateFile::of_earlier_run(path.clone()), path.display().to_string())),
        None if args.resume_files => match prepared.state_of_files() {
            Some(file) => Some((file, "the folder of the batches".to_owned())),
            None => return Err(bad("`--resume-files` needs a document with the consumer `files`")),
        },
        None => None,
    };
    if let Some((file, shown)) = earlier {
        let refuse = |reason: String| bad(format!("cannot resume from {shown}: {reason}"));
        let text = file.read().map_err(|error| refuse(with_causes(&error)))?;
        Token::read(&text)
            .and_then(|state| prepared.resume(state, args.force))
            .map_err(|fault| refuse(in_words(&fault)))?;
    }
    let interrupts = Interrupts::listen(runtime)?;
    let run = runtime.block_on(prepared.start(output, RunEnds::default())).map_err(|error| {
        match error.is_refusal() {
            true => bad(error.to_string()),
            false => error.into(),
        }
    })?;
    interrupts.stop(&run);
    let Ended { snapshot, logs, output, state } = watch(run, args.time, args.quiet, file.as_mut());
    let kept = file.map_or(Ok(()), |file| file.write(state?));
    if args.json || !args.quiet {
        say_as(args.json, &snapshot, report)?;
    }
    if args.quiet {
        Some(losses(&snapshot)).filter(|losses| !losses.is_empty()).iter().for_each(|losses| warn(losses));
    }
    for (stage, logs) in logs.iter().filter(|(_, logs)| logs.dropped > 0) {
        warn(&format!("[{stage}] logged too much: {} lines were dropped", count(logs.dropped)));
    }
    output.context("the run's output is incomplete")?;
    kept.context("the state of the run is not kept")?;
    Ok(exit_code(snapshot.state, snapshot.error.as_deref()))
}

fn in_words(fault: &TokenFault) -> String {
    match fault {
        TokenFault::Differs(_) => format!("{fault}; pass `--force` to resume nevertheless"),
        _ => fault.to_string(),
    }
}
