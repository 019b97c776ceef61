use anyhow::Result;
use penstock_pipeline::predict::{
    Baseline, Machine, PredictError, PredictReport, Proposal, Recording, SweepBudget, predict_plan, sweep,
};
use penstock_pipeline::{Outlets, Prepared, Runner, cores};
use penstock_types::policy::{Capacity, Concurrency};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::args::PredictArgs;
use crate::commands::compare::recording;
use crate::commands::profile::read_profile;
use crate::input::{Document, bad};
use crate::report::{columns, queues, stages};
use crate::text::{paragraphs, rate, say_as};

/// Value that `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    report: &'a PredictReport,
    /// Changes found by `--sweep`; absent without the flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    proposals: Option<&'a [Proposal]>,
}

pub(crate) fn predict(runtime: &Runtime, args: &PredictArgs) -> Result<()> {
    let (document, Prepared { plan, .. }) = Document::prepared(&args.pipeline, runtime, Outlets::ALL)?;
    let cores = cores();
    let profile = args.profile.as_deref().map(read_profile).transpose()?;
    let recording = args.from.as_deref().map(recording).transpose()?;
    let recording = recording.map(|recording| match &profile {
        Some(profile) => recording.with_profile(profile, &plan, cores),
        None => recording,
    });
    let baseline = recording.map(|recording| baseline(recording, args, runtime, cores));
    let machine = Machine {
        threads: Runner::threads(&document.spec),
        cores: args.cores.unwrap_or(f64::from(cores)),
        foreign_cores: args.foreign_cores,
    };
    let unknown = |error| bad(format!("{error}"));
    let report = predict_plan(&plan, baseline.as_ref(), machine, args.time).map_err(unknown)?;
    let budget = SweepBudget {
        threads: args.max_threads.unwrap_or(cores.max(machine.threads)),
        memory_mib: args.max_memory_mib,
        concurrency: Concurrency::MOST,
        queue: Capacity::MOST,
    };
    let proposals = args.sweep.then(|| sweep(&plan, baseline.as_ref(), machine, budget));
    let proposals = proposals.transpose().map_err(unknown)?;
    say_as(args.json, &Printed { report: &report, proposals: proposals.as_deref() }, in_words)
}

/// The recorded run as predicted, with the stores and modules of the command line.
fn baseline(recording: Recording, args: &PredictArgs, runtime: &Runtime, cores: u32) -> Baseline {
    let (origin, document) = ("the document of the recorded run".to_owned(), recording.document.clone());
    let prepared = Document::prepare(origin, document, &args.pipeline, runtime, Outlets::ALL);
    let plan = prepared.map(|(_, prepared)| prepared.plan);
    let plan = plan.map_err(|error| PredictError::NoPlan(format!("{error:#}")));
    let plan = plan.and_then(|plan| recording.settled(plan, 0.0, recording.snapshot.elapsed_s));
    Baseline::new(recording, plan, f64::from(cores))
}

fn in_words(&Printed { report, proposals }: &Printed<'_>) -> String {
    let recorded = report.recorded.map_or_else(String::new, |recorded| {
        format!(" (recorded: {}/s on {} threads)", rate(recorded.rate), recorded.threads)
    });
    let mut parts = vec![
        format!(
            "Predicted: {} items/s, {} samples/s, on {} threads and {} cores{recorded}",
            rate(report.rate),
            rate(report.samples_per_s),
            report.threads,
            report.cores
        ),
        effect(report),
        report.verdict.sentence.clone(),
        stages(&report.stages),
        queues(&report.queues),
    ];
    parts.extend(proposals.map(proposed));
    let assumed: Vec<String> = report.assumptions.iter().map(|assumed| format!("  {assumed}")).collect();
    parts.push(format!("Assumptions:\n{}", assumed.join("\n")));
    paragraphs(parts)
}

/// Compares the prediction with the recorded run, and with a machine without other work.
fn effect(report: &PredictReport) -> String {
    let error = report.model_error.map(|error| {
        format!(
            "The model predicts {:+.1} % of the rate of the recorded run with its settings.",
            error * 100.0
        )
    });
    let gain =
        report.gain.map(|gain| format!("These settings: {gain:.2} times the rate of the recorded run."));
    let free = report
        .rate_on_free_cores
        .map(|free| format!("On cores that no other work uses: {} items/s.", rate(Some(free))));
    let told = [error, gain.or_else(|| report.no_gain.clone()), free];
    told.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

fn proposed(proposals: &[Proposal]) -> String {
    if proposals.is_empty() {
        return "No change of concurrency, threads or queues within the budget would raise the rate by more than the error of predictions."
            .to_owned();
    }
    let changes = |proposal: &Proposal| {
        let changes = proposal.changes.iter();
        let flags = changes.map(|change| format!("--set {}={}", change.pointer, change.to));
        flags.collect::<Vec<_>>().join(" ")
    };
    columns(
        proposals,
        &[
            ("change", &changes),
            ("items/s", &|proposal| rate(Some(proposal.rate))),
            ("gain", &|proposal| format!("{:.2} x", proposal.gain)),
            ("threads", &|proposal| proposal.threads.to_string()),
            ("memory", &|proposal| format!("{} MiB", proposal.memory_mib)),
        ],
    )
}
