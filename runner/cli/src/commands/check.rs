use anyhow::Result;
use penstock_pipeline::{Outlets, TriedSource};
use tokio::runtime::Runtime;

use crate::args::CheckArgs;
use crate::input::{Document, faults};
use crate::report::{fields_line, left_out_lines, warning_lines};
use crate::text::{say, warn};

/// Checks a document with its stores and modules, without running it.
pub(crate) fn check(runtime: &Runtime, args: &CheckArgs) -> Result<()> {
    let (document, prepared) = Document::prepared(&args.pipeline, runtime, Outlets::ALL)?;
    let mut found = if args.init { runtime.block_on(prepared.try_init()) } else { Vec::new() };
    let tried = args.tries_stores.then(|| runtime.block_on(prepared.try_stores()));
    let tried = tried.and_then(|tried| tried.map_err(|more| found.extend(more)).ok());
    if !found.is_empty() {
        return Err(faults(&document.origin, &found));
    }
    say(&format!("{} can run: {}", document.origin, prepared.plan.chain()))?;
    let Some(TriedSource { fields, left_out, warnings }) = tried else {
        warning_lines(&prepared.warnings()).for_each(|line| warn(&line));
        return Ok(());
    };
    let source = prepared.plan.source.id.to_string();
    let fields = fields.iter().map(|fields| fields_line(&source, fields));
    fields.chain(left_out_lines(&left_out)).try_for_each(|line| say(&line))?;
    warning_lines(&warnings).for_each(|line| warn(&line));
    Ok(())
}
