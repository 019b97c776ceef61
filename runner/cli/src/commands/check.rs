use anyhow::Result;
use penstock_pipeline::{Outlets, TriedSource};
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

/// Checks a document with its stores and modules, without running it.
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
    let (id, checked) =
        (prepared.plan.source.id.to_string(), Checked { chain: prepared.plan.chain(), source });
    say_as(args.json, &checked, |checked| in_words(&document.origin, &id, checked))?;
    if !args.json {
        warning_lines(&checked.source.warnings).for_each(|line| warn(&line));
    }
    Ok(())
}

fn in_words(origin: &str, id: &str, Checked { chain, source }: &Checked) -> String {
    let fields = source.fields.iter().map(|fields| fields_line(id, fields));
    let unknown = source.not_opened.iter().map(|reason| format!("[{id}] fields: not known: {reason}"));
    let lines = std::iter::once(format!("{origin} can run: {chain}")).chain(fields).chain(unknown);
    lines.chain(left_out_lines(&source.left_out)).collect::<Vec<_>>().join("\n")
}
