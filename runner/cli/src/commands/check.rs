use anyhow::Result;
use penstock_pipeline::Runner;

use crate::COMPLETED;
use crate::args::CheckArgs;
use crate::input::{Prepared, faults, runtime};
use crate::text::say;

/// Checks a document with its stores and modules, without running it.
pub(crate) fn check(args: &CheckArgs) -> Result<u8> {
    let runtime = runtime()?;
    let prepared = Prepared::read(&args.pipeline.document)?;
    let runner: Runner = prepared.runner(&args.pipeline.stores, &args.pipeline.modules, runtime.handle())?;
    let plan = runner.check(&prepared.spec).map_err(|found| faults(&prepared.origin, &found))?;
    let stages: Vec<String> = plan.stages.iter().map(|stage| format!("[{}]", stage.label())).collect();
    let chain = std::iter::once(format!("[{}]", plan.source.id))
        .chain(stages)
        .chain([format!("[{}]", plan.sink.id)])
        .collect::<Vec<_>>();
    say(&format!("{} can run: {}", prepared.origin, chain.join(" -> ")))?;
    Ok(COMPLETED)
}
