use anyhow::Result;
use penstock_pipeline::{Outlets, TriedSource};
use penstock_types::plan::SourcePlan;
use penstock_types::spec::Source;
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::args::CheckArgs;
use crate::input::{Document, faults};
use crate::report::{fields_line, left_out_lines, warning_lines};
use crate::text::{say_as, warn};

/// Result of a check of a document that can run: the output of `--json`.
#[derive(Serialize)]
struct Checked {
    /// Stages of the pipeline, as one line.
    chain: String,
    #[serde(flatten)]
    source: TriedSource,
}

pub(crate) fn check(runtime: &Runtime, args: &CheckArgs) -> Result<()> {
    let (document, prepared) = Document::prepared(&args.pipeline, runtime, Outlets::ALL)?;
    let mut found = if args.init { runtime.block_on(prepared.try_init()) } else { Vec::new() };
    let source = if args.tries_stores {
        runtime.block_on(prepared.try_stores()).unwrap_or_else(|more| {
            found.extend(more);
            TriedSource::default()
        })
    } else {
        runtime.block_on(prepared.look_at_source())
    };
    if !found.is_empty() {
        return Err(faults(&document.origin, &found));
    }
    let SourcePlan { id, spec, traversal, .. } = &prepared.plan.source;
    let is_as_in_run = args.tries_stores || !(traversal.shuffle || matches!(spec, Source::Mix(_)));
    let checked = Checked { chain: prepared.plan.chain(), source };
    say_as(args.json, &checked, |checked| {
        in_words(&document.origin, &id.to_string(), is_as_in_run, checked)
    })?;
    if !args.json {
        warning_lines(&checked.source.warnings).for_each(|line| warn(&line));
    }
    Ok(())
}

/// Formats the result. The source was opened as a run does if `is_as_in_run` is set, and otherwise in order.
fn in_words(origin: &str, id: &str, is_as_in_run: bool, Checked { chain, source }: &Checked) -> String {
    let fields = source.fields.iter().map(|fields| {
        let more = match fields.learnt_from {
            Some(_) if !is_as_in_run => " (a run that shuffles may learn from all, as `--stores` does)",
            _ => "",
        };
        format!("{}{more}", fields_line(id, fields))
    });
    let unknown = source.not_opened.iter().map(|reason| format!("[{id}] fields: not known: {reason}"));
    let lines = std::iter::once(format!("{origin} can run: {chain}")).chain(fields).chain(unknown);
    lines.chain(left_out_lines(&source.left_out)).collect::<Vec<_>>().join("\n")
}
