use std::sync::Arc;

use anyhow::{Context, Result};
use penstock_pipeline::{
    Ended, Letters, OutputFolder, Prepared, ReplayFault, ReplayReport, StageLetters, StageReplay, Unreadable,
};
use penstock_types::amount::plural;
use penstock_types::run::RunState;
use tokio::runtime::Runtime;

use crate::args::ReplayArgs;
use crate::input::{Document, bad, faults};
use crate::interrupt::Interrupts;
use crate::progress::watch;
use crate::report::failure_lines;
use crate::text::{count, say, say_as, say_json, warn};
use crate::{COMPLETED, FAILED, STOPPED};

pub(crate) fn replay(runtime: &Runtime, args: &ReplayArgs) -> Result<u8> {
    let letters = Letters::open(&args.run).map_err(|fault| unusable(&fault))?;
    tell_unreadable(&letters.unreadable);
    let mut report = ReplayReport { stages: Vec::new(), unreadable: letters.unreadable.clone() };
    let output = args
        .out
        .as_deref()
        .map(|folder| OutputFolder::for_replay(folder, letters.document()))
        .transpose()
        .map_err(|error| bad(error.to_string()))?
        .map(Arc::new);
    let plans = plans(runtime, args, &letters, output.is_some())?;
    if plans.is_empty() {
        say_as(args.json, &report, |report| match report.unreadable.count {
            0 => format!("nothing to replay: `{}` contains no dead letters", args.run.display()),
            // The unreadable lines have already been reported.
            _ => "nothing to replay".to_owned(),
        })?;
        return Ok(code(&report));
    }
    let interrupts = Interrupts::listen(runtime)?;
    // The report is written even if standard output is closed.
    let mut said = Ok(());
    for (stage, prepared) in &plans {
        let run = runtime.block_on(prepared.start_replay(&letters, stage, output.clone()))?;
        interrupts.stop(&run);
        let Ended { snapshot, output, .. } = watch(run, None, args.json, None);
        output.context("the output of the replay is incomplete")?;
        let replay = StageReplay::of(stage, snapshot);
        if !args.json {
            said = said.and(say(&in_words(&replay)).map_err(Into::into));
        }
        if let Some(error) = &replay.snapshot.error {
            warn(&format!("error: the replay of [{}] failed: {error}", replay.stage));
        }
        let is_stopped = replay.snapshot.state == RunState::Stopped;
        report.stages.push(replay);
        if is_stopped {
            break;
        }
    }
    if args.json {
        said = said.and(say_json(&report));
    }
    if let Some(output) = &output {
        output.write_replay(&report).context("the output of the replay is incomplete")?;
    }
    said?;
    Ok(code(&report))
}

/// Creates a plan for each stage that has dead letters, which runs this stage alone. All plans are checked before the first plan
/// runs.
fn plans<'a>(
    runtime: &Runtime,
    args: &ReplayArgs,
    letters: &'a Letters,
    has_output: bool,
) -> Result<Vec<(&'a StageLetters, Prepared)>> {
    let origin = format!("`{}`", args.run.join("spec.json").display());
    if letters.stages.is_empty() {
        return Ok(Vec::new());
    }
    let document = Document { origin, spec: letters.spec.clone() };
    let runner = document.runner(&args.stores, &args.modules, runtime)?;
    let mut plans = Vec::new();
    let mut found = Vec::new();
    for stage in &letters.stages {
        match runner.check_replay(letters, stage, has_output) {
            Ok(prepared) => plans.push((stage, prepared)),
            Err(faults) => found.extend(faults),
        }
    }
    if found.is_empty() { Ok(plans) } else { Err(faults(&document.origin, &found)) }
}

fn in_words(replay: &StageReplay) -> String {
    let mut lines = vec![format!(
        "[{}] {} of {} dead letters now pass, {} still fail",
        replay.stage,
        count(replay.mended),
        count(replay.letters),
        count(replay.still_failing)
    )];
    if replay.left > 0 {
        lines[0].push_str(&format!(", {} were not completed", count(replay.left)));
    }
    if let Some(ran_in) = &replay.ran_in {
        let others: Vec<&str> =
            replay.failed_in.iter().map(String::as_str).filter(|module| module != ran_in).collect();
        lines.push(if others.is_empty() {
            format!(
                "  replayed with {ran_in}, the module in which the samples had failed; pass another module with `--module`"
            )
        } else {
            format!("  replayed with the module {ran_in}; the samples had failed in {}", others.join(", "))
        });
    }
    lines.extend(failure_lines(&replay.failures));
    lines.join("\n")
}

fn tell_unreadable(unreadable: &Unreadable) {
    if unreadable.count == 0 {
        return;
    }
    let count = plural(unreadable.count, "line");
    let mut lines = vec![format!("{count} of the dead letters cannot be replayed:")];
    lines.extend(unreadable.first.iter().map(|letter| format!("  line {} {}", letter.line, letter.reason)));
    if unreadable.count > unreadable.first.len() as u64 {
        lines.push("  ...".to_owned());
    }
    warn(&lines.join("\n"));
}

/// Converts the fault of an unusable recording into an error, with the exit code of invalid input if the user's files are at
/// fault.
fn unusable(fault: &ReplayFault) -> anyhow::Error {
    match fault {
        ReplayFault::NoRun(_) => bad(fault.to_string()),
        ReplayFault::Document { path, faults: found } => faults(&format!("`{}`", path.display()), found),
        ReplayFault::Read { source, .. } => bad(format!("{fault}: {source}")),
    }
}

fn code(report: &ReplayReport) -> u8 {
    let states = || report.stages.iter().map(|replay| replay.snapshot.state);
    if states().any(|state| state == RunState::Stopped) {
        STOPPED
    } else if report.unreadable.count > 0
        || report.stages.iter().any(|replay| replay.left > 0)
        || states().any(|state| state != RunState::Completed)
    {
        FAILED
    } else {
        COMPLETED
    }
}
