//! Prediction of a run with changed settings.

use std::collections::BTreeMap;
use std::thread::available_parallelism;
use std::time::Duration;

use penstock_types::figures::{FigureWindow, RunFigures};
use penstock_types::policy::{Capacity, Concurrency};
use penstock_types::run::{RunId, RunSnapshot};
use penstock_types::spec;
use penstock_types::tune::last_change;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admission::Budget;
use crate::error::RunsError;
use crate::figures::grid;
use crate::runs::{Runs, apart, turn};
use crate::wire::FiguresQuery;
use penstock_pipeline::memory::settings_mib;
use penstock_pipeline::predict::{
    Baseline, MOST_CORES, Machine, PredictReport, Proposal, Recording, SweepBudget, predict_plan, sweep,
};

/// Maximum duration of a run that is predicted from its start, in seconds.
const MAX_SECONDS: f64 = 3600.0;

/// Changes to a run, and options of its prediction.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PredictRequest {
    /// New values by JSON Pointer into the document, e.g. `{"/stages/1/wasm/concurrency": 4}`.
    pub set: BTreeMap<String, Value>,
    /// Number of cores that computing stages share; the cores of the server's machine if missing.
    pub cores: Option<f64>,
    /// Number of cores that other work would use if it had them; as in the window if missing.
    pub foreign_cores: Option<f64>,
    /// Duration of the predicted run, in seconds, at most 3600, with the start-up of the pipeline; if missing, the prediction is
    /// for a pipeline that has warmed up.
    pub for_s: Option<f64>,
    /// Start of the window on which the prediction is based, in seconds since the run's start, as in `/figures`; without a window, and if
    /// settings changed while the run went on, the time of the last change. The prediction is also compared with this window.
    pub from_s: Option<f64>,
    /// End of the window on which the prediction is based, in seconds since the run's start.
    pub to_s: Option<f64>,
    /// Length of a window that ends with the run, or now if the run continues, in seconds; cannot be combined with `from_s` or
    /// `to_s`.
    pub last_s: Option<f64>,
    /// Bounds of a search for changes that would make the run faster; no search if missing.
    pub sweep: Option<PredictSweep>,
}

/// Resources that proposed changes may use.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PredictSweep {
    /// Maximum number of worker threads; at most the server's budget, which is also the default.
    pub max_threads: Option<u32>,
    /// Maximum memory of all instances of modules, one on each thread, and of 1 MiB for each concurrent fetch, in MiB; at most
    /// the server's budget, which is also the default.
    pub max_memory_mib: Option<u64>,
}

/// Predicted figures of a run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Predicted {
    /// Figures of the predicted run.
    #[serde(flatten)]
    pub report: PredictReport,
    /// Changes that would make the run faster, cheapest first; `null` without `sweep`.
    pub proposals: Option<Vec<Proposal>>,
}

impl Runs {
    /// Predicts a run of the same document with some settings changed, from the times measured in the run so far.
    pub async fn predict(&self, id: &RunId, request: PredictRequest) -> Result<Predicted, RunsError> {
        let is_known = request.for_s.is_none_or(|for_s| for_s > 0.0 && for_s <= MAX_SECONDS);
        let why = || format!("`for_s` must be a number above 0 and at most {MAX_SECONDS}");
        RunsError::refuse_unless(is_known, why)?;
        let span = request.for_s.map(Duration::from_secs_f64);
        let is_known = request.cores.is_none_or(|cores| cores > 0.0 && cores <= MOST_CORES);
        let why = || format!("`cores` must be a number above 0 and at most {MOST_CORES}");
        RunsError::refuse_unless(is_known, why)?;
        let is_known = request.foreign_cores.is_none_or(|cores| (0.0..=MOST_CORES).contains(&cores));
        let why = || format!("`foreign_cores` must be a number from 0 to {MOST_CORES}");
        RunsError::refuse_unless(is_known, why)?;
        // The permit is taken before the documents are read, because they may need much memory.
        let turn = turn(&self.0.permits.trials, self.client(), "trials and predictions").await?;
        let not_started = || RunsError::Refused("the run has not started yet".to_owned());
        let snapshot = self.detail(id).await?.snapshot.ok_or_else(not_started)?;
        let PredictRequest { from_s, to_s, last_s, .. } = request;
        let window = self.settled_figures(id, FiguresQuery { from_s, to_s, last_s }, &snapshot).await?;
        let FigureWindow { from_s, to_s, .. } = window.window;
        RunsError::refuse_unless(delivered(&window) > 0, || {
            "the consumer took nothing in this window; choose a longer one".to_owned()
        })?;
        let snapshot = window.measured_in(snapshot);
        let mut times = BTreeMap::new();
        for stage in &snapshot.stages {
            times.insert(stage.id.clone(), self.times(id, &stage.id).await?);
        }
        let submitted = self.spec(id).await?.document;
        let as_is = self.check(submitted.to_string().into()).await?.prepared.plan;
        let recording = Recording::new(snapshot, submitted, &times);
        // Settings that are not asked for stay as they were in the window.
        let mut document = recording.document.clone();
        for (setting, value) in recording.held(&as_is) {
            let place = setting.pointer(&as_is);
            RunsError::refuse_faults(
                spec::set(&mut document, place.as_str(), value.into()).err().into_iter().collect(),
            )?;
        }
        let set = request.set.into_iter().map(|(place, value)| spec::set(&mut document, &place, value));
        RunsError::refuse_faults(set.filter_map(Result::err).collect())?;
        let checked = self.check(document.to_string().into()).await?;
        let own_cores = available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        let machine = Machine {
            threads: checked.cost.threads,
            cores: request.cores.unwrap_or(own_cores),
            foreign_cores: request.foreign_cores,
        };
        // The memory that does not depend on the settings is subtracted from the budget of the search.
        let fixed = checked.cost.memory_mib - settings_mib(&checked.prepared.plan, checked.cost.threads);
        let Budget { threads, memory_mib, .. } = self.settings().budget;
        let memory_mib = memory_mib.saturating_sub(fixed);
        let budget = request.sweep.map(|sweep| SweepBudget {
            threads: sweep.max_threads.map_or(threads, |most| most.min(threads)),
            memory_mib: sweep.max_memory_mib.map_or(memory_mib, |most| most.min(memory_mib)),
            concurrency: Concurrency::MOST,
            queue: Capacity::MOST,
        });
        let profile = self.0.profiles.of(id);
        apart(self, move || {
            // The permit is held until the work has ended, even if the future is dropped.
            let _turn = turn;
            let plan = &checked.prepared.plan;
            let recording = match &profile {
                Some(profile) => recording.with_profile(profile, plan, own_cores as u32),
                None => recording,
            };
            let as_is = recording.settled(as_is, from_s, to_s);
            let baseline = Baseline::new(recording, as_is, own_cores);
            let refused = |error| RunsError::Refused(format!("{error}"));
            let report = predict_plan(plan, Some(&baseline), machine, span).map_err(refused)?;
            let sweep = |budget| sweep(plan, Some(&baseline), machine, budget);
            Ok(Predicted { report, proposals: budget.map(sweep).transpose().map_err(refused)? })
        })
        .await
    }

    /// Figures of the window that is asked for; if none is, and settings changed in the usual one, those since the last change.
    async fn settled_figures(
        &self,
        id: &RunId,
        query: FiguresQuery,
        snapshot: &RunSnapshot,
    ) -> Result<RunFigures, RunsError> {
        let is_usual = query.from_s.or(query.to_s).or(query.last_s).is_none();
        let usual = self.figures(id, query).await?;
        let FigureWindow { from_s, to_s, .. } = usual.window;
        let Some(changed_s) = last_change(&snapshot.changes, from_s, to_s).filter(|_| is_usual) else {
            return Ok(usual);
        };
        let [since, end] = [changed_s, to_s].map(|seconds| (seconds * 1e9) as u64);
        let since = since.next_multiple_of(grid(end.saturating_sub(since)));
        if since >= end {
            return Ok(usual);
        }
        let query = FiguresQuery { from_s: Some(since as f64 / 1e9), to_s: None, last_s: None };
        let settled = self.figures(id, query).await?;
        Ok(if delivered(&settled) > 0 { settled } else { usual })
    }
}

/// Number of items that the consumer took in a window.
fn delivered(figures: &RunFigures) -> u64 {
    figures.queues.last().map_or(0, |sink| sink.figures.num_items)
}
