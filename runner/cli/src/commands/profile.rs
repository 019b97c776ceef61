use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use penstock_pipeline::profile::{ProfileError, ProfileSettings, ProfileStep, profile as measure};
use penstock_pipeline::{Outlets, Prepared, Run, Runner, cores};
use penstock_types::amount::plural;
use penstock_types::profile::{Profile, ProfileInputs, StageProfile};
use tokio::runtime::Runtime;

use crate::args::{DocumentArgs, PipelineArgs, ProfileArgs};
use crate::input::{Document, bad};
use crate::interrupt::Interrupts;
use crate::report::table;
use crate::text::{count, dash, duration, paragraphs, rate, say_as, warn};
use crate::{COMPLETED, STOPPED};

const MIB: f64 = (1 << 20) as f64;

pub(crate) fn profile(runtime: &Runtime, args: &ProfileArgs) -> Result<u8> {
    let document = DocumentArgs { file: args.file.clone(), settings: args.settings.clone(), threads: None };
    let pipeline = PipelineArgs { document, stores: args.stores.clone(), modules: args.modules.clone() };
    let prepared = prepared(&pipeline, runtime, args.threads.iter().copied().max().unwrap_or_else(cores))?;
    let settings = ProfileSettings {
        stages: args.stages.clone(),
        at_a_time: args.threads.clone(),
        most_threads: cores(),
        most_waiting: ProfileSettings::MOST_WAITING,
        record: args.record,
        span: args.time,
        memory_bytes: args.memory_mib.saturating_mul(1 << 20),
    };
    let interrupts = Interrupts::listen(runtime)?;
    let mut on_start = |step: ProfileStep<'_>, run: &Run| {
        match step {
            _ if args.quiet => {}
            ProfileStep::Recording => {
                warn(&format!("recording the inputs of the stages, {} s", args.record.as_secs_f64()));
            }
            ProfileStep::Alone { stage, at_a_time, round } => {
                warn(&format!("[{stage}] alone, {at_a_time} at a time, round {round}"));
            }
        }
        interrupts.stop(run);
    };
    let profile = match measure(&prepared, runtime.handle(), &settings, &mut on_start) {
        Err(ProfileError::Stopped) => return Ok(STOPPED),
        Err(error @ (ProfileError::NoSuchStage { .. } | ProfileError::NoOp)) => {
            return Err(bad(error.to_string()));
        }
        measured => measured?,
    };
    if let Some(path) = &args.output {
        let text = serde_json::to_string_pretty(&profile)?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    say_as(args.json, &profile, in_words)?;
    Ok(COMPLETED)
}

/// The pipeline, with room for an instance of each module on each of `most` threads.
fn prepared(pipeline: &PipelineArgs, runtime: &Runtime, most: u32) -> Result<Prepared> {
    let (origin, mut document) = Document::document(&pipeline.document)?;
    let prepare = |document| Document::prepare(origin.clone(), document, pipeline, runtime, Outlets::ALL);
    let (own, prepared) = prepare(document.clone())?;
    let threads = Runner::threads(&own.spec);
    if threads >= most {
        return Ok(prepared);
    }
    document["threads"] = most.into();
    let mut prepared = prepare(document)?.1;
    prepared.plan.threads = Some(threads);
    Ok(prepared)
}

/// Reads a profile.
pub(crate) fn read_profile(path: &Path) -> Result<Profile> {
    let text = fs::read(path).map_err(|error| bad(format!("cannot read `{}`: {error}", path.display())))?;
    serde_json::from_slice(&text).map_err(|error| {
        bad(format!("`{}` is no profile, as `penstock profile -o` writes it: {error}", path.display()))
    })
}

fn in_words(profile: &Profile) -> String {
    let Profile { name, cores, threads, recorded_s, .. } = profile;
    let recorded = format!(
        "{name}: each stage alone on this machine with {}, on inputs that a run on {} has recorded in {recorded_s:.1} s.",
        plural((*cores).into(), "core"),
        plural((*threads).into(), "thread")
    );
    let without = match profile.without_inputs.is_empty() {
        true => String::new(),
        false => format!(
            "Not measured, since no input came while the run recorded (`--record` sets for how long): {}",
            profile.without_inputs.join(", ")
        ),
    };
    paragraphs([recorded].into_iter().chain(profile.stages.iter().map(stage)).chain([without]))
}

fn stage(stage: &StageProfile) -> String {
    let number = |number: Option<f64>, digits: usize| number.map_or_else(dash, |it| format!("{it:.digits$}"));
    let points = stage.points.iter().map(|point| {
        let at_a_time = point.at_a_time.to_string();
        vec![
            if point.at_a_time == stage.knee { format!("{at_a_time} (knee)") } else { at_a_time },
            rate(Some(point.samples_per_s)),
            duration(Some(point.op_s)),
            duration(point.cpu_s),
            number(point.cores, 2),
            format!("{:.2} x", point.slowdown),
            count(point.failed_samples),
        ]
    });
    let company = stage.company.iter().map(|company| {
        vec![
            format!("{:.1}, with the others", company.at_a_time),
            rate(Some(company.samples_per_s)),
            duration(Some(company.op_s)),
            duration(company.cpu_s),
            dash(),
            format!("{:.2} x", company.slowdown),
            dash(),
        ]
    });
    let header = ["at a time", "samples/s", "op", "CPU of an op", "cores", "slowdown", "failed"];
    let table = table(&header, points.chain(company));
    let cpu = stage.cpu_s_per_1000.map(|cpu_s| format!("{cpu_s:.2} CPU-s, "));
    let memory = stage.memory_bytes.map(|bytes| format!("; {:.1} MiB in an instance", bytes as f64 / MIB));
    format!(
        "[{}] {}\n{table}\n1,000 samples: {}{:.1} MiB in, {:.1} MiB out{}",
        stage.id,
        inputs(&stage.inputs),
        cpu.unwrap_or_default(),
        stage.bytes_in_per_1000 / MIB,
        stage.bytes_out_per_1000 / MIB,
        memory.unwrap_or_default()
    )
}

fn inputs(inputs: &ProfileInputs) -> String {
    let ProfileInputs { items, samples, bytes, is_full } = *inputs;
    let items = if items == samples { String::new() } else { format!(" in {}", plural(items, "item")) };
    let first = if is_full { "the first " } else { "" };
    let why = if is_full { "; `--memory-mib` holds no more" } else { "" };
    format!("on {first}{}{items} ({:.1} MiB{why})", plural(samples, "sample"), bytes as f64 / MIB)
}
