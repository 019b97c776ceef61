use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use penstock_pipeline::tune::{TuneReport, tuned};
use penstock_pipeline::{Ended, Outlets, RunEnds, cores};
use penstock_types::plan::LiveSetting;
use penstock_types::run::RunState;
use penstock_types::spec::{self, Consumer};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::FAILED;
use crate::args::TuneArgs;
use crate::commands::profile::read_profile;
use crate::input::{Document, bad, faults};
use crate::interrupt::Interrupts;
use crate::progress::watch;
use crate::report::{changes, exit_code};
use crate::text::{paragraphs, rate, say, say_as, warn};

pub(crate) fn tune(runtime: &Runtime, args: &TuneArgs) -> Result<u8> {
    let (origin, written) = Document::document(&args.pipeline.document)?;
    let set = |document: &mut Value, pointer: &str, value: Value| {
        spec::set(document, pointer, value).map_err(|fault| faults(&origin, &[fault]))
    };
    let mut document = written.clone();
    set(&mut document, "/tune", "apply".into())?;
    let prepare =
        |document| Document::prepare(origin.clone(), document, &args.pipeline, runtime, Outlets::ALL);
    let (_, mut prepared) = prepare(document.clone())?;
    if let Consumer::Files(_) = prepared.plan.consumer {
        return Err(bad(
            "the consumer `files` would write the batches of a run that only measures; tune with `--set '/consumer={\"discard\": {}}'`",
        ));
    }
    if !args.from_document {
        let settings = LiveSetting::all(&prepared.plan).filter(|setting| *setting != LiveSetting::Threads);
        let places: Vec<_> = settings.map(|setting| setting.pointer(&prepared.plan).to_string()).collect();
        places.iter().try_for_each(|place| set(&mut document, place, 1.into()))?;
        prepared = prepare(document)?.1;
    }
    // A tuner needs time, not new data.
    prepared.plan.source.traversal.epochs = None;
    let interrupts = Interrupts::listen(runtime)?;
    let profile = args.profile.as_deref().map(read_profile).transpose()?;
    let doubts = profile.as_ref().map_or_else(Vec::new, |profile| profile.doubts(&prepared.plan, cores()));
    doubts.iter().for_each(|doubt| warn(&format!("warning: {doubt}")));
    let ends = RunEnds { profile, ..RunEnds::default() };
    let run = runtime.block_on(prepared.start(None, ends)).map_err(|error| match error.is_refusal() {
        true => bad(error.to_string()),
        false => error.into(),
    })?;
    interrupts.stop(&run);
    let facts = run.facts().clone();
    let Ended { snapshot, .. } = watch(run, Some(args.time), args.quiet, None);
    let code = exit_code(snapshot.state, snapshot.error.as_deref());
    if snapshot.state == RunState::Failed {
        return Ok(code);
    }
    let report = tuned(&facts, &snapshot);
    if !report.is_judged {
        warn(&format!(
            "error: the pipeline was not tuned in {:.1} s, and nothing was written: settings are judged when two measurements in a row, \
             of 2 s to 10 s each, name the same limit; take a longer `--for`",
            snapshot.elapsed_s
        ));
        return Ok(code.max(FAILED));
    }
    let mut document = written;
    for (pointer, value) in facts.settings.values() {
        set(&mut document, &pointer, value.into())?;
    }
    match &args.output {
        Some(path) if path == Path::new("-") => say(&serde_json::to_string_pretty(&document)?)?,
        Some(path) => write(path, &document)?,
        None => {}
    }
    if args.output.as_deref() != Some(Path::new("-")) {
        say_as(args.json, &report, in_words)?;
    }
    Ok(code)
}

fn write(path: &Path, document: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(document)?;
    fs::write(path, text + "\n").with_context(|| format!("cannot write `{}`", path.display()))
}

fn in_words(report: &TuneReport) -> String {
    let made = match report.changes.is_empty() {
        true => "No change of concurrency or queues was predicted to help.".to_owned(),
        false => changes(&report.changes),
    };
    let optimum = match (report.rate, report.predicted_best) {
        (Some(measured), Some(best)) if best > 0.0 => format!(
            "The best that the prediction finds on {} threads: {} items/s, so the run is at {:.0} %.",
            report.threads,
            rate(Some(best)),
            measured / best * 100.0
        ),
        _ => String::new(),
    };
    let others: Vec<String> = report
        .what_would_help
        .iter()
        .map(|what| format!("  {}: {} items/s", what.change, rate(Some(what.rate))))
        .collect();
    let others = match others.is_empty() {
        true => String::new(),
        false => format!("What else would help, as predicted:\n{}", others.join("\n")),
    };
    paragraphs([
        format!("From {} to {} items/s.", rate(report.rate_before), rate(report.rate)),
        made,
        optimum,
        report.limit.clone(),
        others,
    ])
}
