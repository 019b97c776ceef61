use anyhow::Result;
use penstock_pipeline::Outlets;

use crate::COMPLETED;
use crate::args::CheckArgs;
use crate::input::{Document, runtime};
use crate::text::say;

/// Checks a document with its stores and modules, without running it.
pub(crate) fn check(args: &CheckArgs) -> Result<u8> {
    let runtime = runtime()?;
    let document = Document::read(&args.pipeline.document)?;
    let named = (&args.pipeline.stores, &args.pipeline.modules);
    let plan = document.prepare(named, runtime.handle(), Outlets::ALL)?.plan;
    let stages: Vec<String> = plan.stages.iter().map(|stage| format!("[{}]", stage.label())).collect();
    let chain = std::iter::once(format!("[{}]", plan.source.id))
        .chain(stages)
        .chain([format!("[{}]", plan.sink.id)])
        .collect::<Vec<_>>();
    say(&format!("{} can run: {}", document.origin, chain.join(" -> ")))?;
    Ok(COMPLETED)
}
