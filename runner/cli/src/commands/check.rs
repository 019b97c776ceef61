use anyhow::Result;
use penstock_pipeline::Outlets;
use tokio::runtime::Runtime;

use crate::args::PipelineArgs;
use crate::input::Document;
use crate::text::say;

/// Checks a document with its stores and modules, without running it.
pub(crate) fn check(runtime: &Runtime, args: &PipelineArgs) -> Result<()> {
    let (document, prepared) = Document::prepared(args, runtime, Outlets::ALL)?;
    let plan = prepared.plan;
    Ok(say(&format!("{} can run: {}", document.origin, plan.chain()))?)
}
