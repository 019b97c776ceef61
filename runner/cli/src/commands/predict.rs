use anyhow::Result;
use penstock_pipeline::predict::{Machine, PredictReport, Proposal, SweepBudget, predict_plan, sweep};
use penstock_pipeline::{Outlets, Prepared, Runner, cores};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::args::PredictArgs;
use crate::commands::compare::recording;
use crate::input::{Document, bad};
use crate::report::{queues, stages, table};
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

/// Predicts the rate and the waits of a pipeline without running it.
pub(crate) fn predict(runtime: &Runtime, args: &PredictArgs) -> Result<()> {
    let (document, Prepared { plan, .. }) = Document::prepared(&args.pipeline, runtime, Outlets::ALL)?;
    let recording = args.from.as_deref().map(recording).transpose()?;
    let cores = cores();
    let machine =
        Machine { threads: Runner::threads(&document.spec), cores: args.cores.unwrap_or(f64::from(cores)) };
    let unknown = |error| bad(format!("{error}"));
    let report = predict_plan(&plan, recording.as_ref(), machine, args.time).map_err(unknown)?;
    let budget = SweepBudget {
        threads: args.max_threads.unwrap_or(cores.max(machine.threads)),
        memory_mib: args.max_memory_mib,
    };
    let proposals = args.sweep.then(|| sweep(&plan, recording.as_ref(), machine, budget));
    let proposals = proposals.transpose().map_err(unknown)?;
    say_as(args.json, &Printed { report: &report, proposals: proposals.as_deref() }, in_words)
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
        report.verdict.sentence.clone(),
        stages(&report.stages),
        queues(&report.queues),
    ];
    parts.extend(proposals.map(proposed));
    let assumed: Vec<String> = report.assumptions.iter().map(|assumed| format!("  {assumed}")).collect();
    parts.push(format!("Assumptions:\n{}", assumed.join("\n")));
    paragraphs(parts)
}

fn proposed(proposals: &[Proposal]) -> String {
    if proposals.is_empty() {
        return "No change of concurrency, threads or queues within the budget would raise the rate."
            .to_owned();
    }
    let rows = proposals.iter().map(|proposal| {
        let changes: Vec<String> =
            proposal.changes.iter().map(|change| format!("--set {}={}", change.pointer, change.to)).collect();
        vec![
            changes.join(" "),
            rate(Some(proposal.rate)),
            format!("{:.2} x", proposal.gain),
            proposal.threads.to_string(),
            format!("{} MiB", proposal.memory_mib),
        ]
    });
    table(&["change", "items/s", "gain", "threads", "memory"], rows)
}
