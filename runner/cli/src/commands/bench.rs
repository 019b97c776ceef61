pub(crate) mod compared;
mod document;
mod kept;
mod words;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::FutureExt;
use penstock_bench::{
    BenchReport, BenchSpec, BenchStep, Benchmark, Cancel, DataSource, StageOp, Subject, SubjectError, Takes,
};
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::ports::{Source, SourceFault, ThreadOpFactory};
use penstock_pipeline::Prepared;
use penstock_types::plan::{StagePlan, Unit};
use tokio::runtime::Runtime;

use crate::args::BenchStorageArgs;
use crate::input::bad;
use crate::interrupt::stopping;
use crate::text::{say, say_as, warn};
use crate::{COMPLETED, FAILED, STOPPED};
use document::Document;
use kept::Kept;

pub(crate) fn storage(runtime: &Runtime, args: &BenchStorageArgs) -> Result<u8> {
    let document = Document::read(args)?;
    let client = args.push.then(|| crate::client::Client::new(&args.server)).transpose()?;
    let mut kept = Kept::new(args)?;
    let cancel = Cancel::default();
    let stop = cancel.clone();
    stopping(runtime, move || stop.cancel(), || {})?;
    let Some(benchmark) = prepare(&document, args, runtime, cancel)? else { return Ok(STOPPED) };
    let report = benchmark.run(concat!("penstock ", env!("CARGO_PKG_VERSION")), &mut kept);
    drop(benchmark);
    // A failure to print, write or upload the report does not prevent the other two.
    let said = say_as(args.json, &report, words::report);
    let written = kept.finish(&report);
    let pushed = client.map(|client| kept::push(&client, &report)).transpose();
    let shown = match &pushed {
        Ok(Some(page)) if args.json => {
            warn(page);
            Ok(())
        }
        Ok(Some(page)) => say(page).map_err(Into::into),
        _ => Ok(()),
    };
    // If several of these steps fail, an error of the write or the upload takes precedence over a closed standard output.
    written?;
    pushed?;
    said.and(shown)?;
    Ok(exit_code(&report))
}

fn exit_code(report: &BenchReport) -> u8 {
    use penstock_bench::report::ReportState;
    match report.state {
        ReportState::Stopped => STOPPED,
        ReportState::Failed => FAILED,
        ReportState::Completed if report.is_sound() => COMPLETED,
        ReportState::Completed => FAILED,
    }
}

/// Opens the objects and creates the stages.
fn prepare(
    document: &Document,
    args: &BenchStorageArgs,
    runtime: &Runtime,
    cancel: Cancel,
) -> Result<Option<Benchmark>> {
    let spec = &document.spec;
    let passes = spec.whole_sets().map(|set| set.repeats).max().unwrap_or(1) as usize;
    let clock = MonotonicClock::start();
    let (subject, source) = match &spec.source {
        DataSource::Memory(memory) => (runtime.block_on(Subject::memory(memory, spec.seed, passes)), None),
        _ => {
            let reading = Reading { spec: spec.clone(), prepared: document.plan(args, passes, runtime)? };
            let opened = cancel.unless(reading.subject(passes));
            let Some(subject) = runtime.block_on(opened) else { return Ok(None) };
            let subject = subject?;
            let again = move || reading.clone().list().boxed();
            (subject, Some(Arc::new(again) as penstock_bench::MakeSource))
        }
    };
    let subject = subject.map_err(|error| match error {
        SubjectError::Empty | SubjectError::TooMany => bad(error.to_string()),
        other => anyhow::Error::new(other),
    })?;
    let index = Duration::from_nanos(clock.now().nanos());
    Ok(Some(Benchmark::new(spec.clone(), subject, index, source, runtime.handle().clone(), cancel)))
}

/// Objects or samples of a benchmark, as a pipeline reads them.
#[derive(Clone)]
struct Reading {
    spec: BenchSpec,
    prepared: Prepared,
}

impl Reading {
    async fn subject(&self, passes: usize) -> Result<Result<Subject, SubjectError>> {
        let (prepared, plan) = (&self.prepared, &self.prepared.plan.source);
        let name = plan.spec.store().map_or("", |name| name.as_str());
        let gone = || bad(format!("there is no store `{name}`"));
        let stores = prepared.stores();
        let (store, kind) = stores.get(name).zip(stores.kind(name)).ok_or_else(gone)?;
        let (store, kind) = (store.clone(), kind.into());
        let stages = prepared.computing().await?.into_iter().map(stage).collect();
        if self.spec.source.format().is_none() {
            return Ok(Subject::open(store, kind, prepared.source(), passes, stages).await);
        }
        Ok(match prepared.samples(self.spec.reads()).await {
            Ok(samples) => Subject::of_samples(store, kind, samples, plan.traversal, passes, stages).await,
            Err(fault) => Err(SubjectError::Samples(fault)),
        })
    }

    /// Lists the objects, or opens the samples.
    async fn list(self) -> Result<Box<dyn Source>, SourceFault> {
        if self.spec.source.format().is_none() {
            return Ok(self.prepared.source());
        }
        let samples = self.prepared.samples(self.spec.reads()).await?;
        penstock_bench::visits(&*samples, self.prepared.plan.source.traversal)
    }
}

fn stage((stage, factory): (StagePlan, Arc<dyn ThreadOpFactory>)) -> StageOp {
    // `flow` is the output of the stage. It shows the input, too: the stages that are allowed here, `wasm` and `collate`, take
    // samples only if they also produce samples.
    let takes = if stage.flow.unit == Unit::Samples { Takes::Sample } else { Takes::Batch };
    StageOp { name: stage.id.name().to_owned(), takes, factory }
}

pub(crate) fn tell(step: &BenchStep) {
    warn(&match step {
        BenchStep::Survey(objects) => format!("reading the sizes of {objects} objects"),
        BenchStep::Warm => "reading everything once, for the page cache".to_owned(),
        BenchStep::Load { number, of, label } => format!("{number} of {of}: {label}"),
        BenchStep::Action(action) => action.clone(),
        BenchStep::Accelerators(number) => format!("feeding {number} accelerators"),
        BenchStep::Without(nothing) if nothing == "nothing" => {
            "repeating the fastest load unchanged".to_owned()
        }
        BenchStep::Without(what) => format!("repeating the fastest load without {what}"),
    });
}
