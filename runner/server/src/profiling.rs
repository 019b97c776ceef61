//! Profiles: each stage of a run's document, measured alone on this machine.

use std::sync::Arc;
use std::time::Duration;

use penstock_engine::ports::StopFlag;
use penstock_engine::running::StopReason;
use penstock_pipeline::Run;
use penstock_pipeline::profile::{ProfileError, ProfileSettings, ProfileStep, profile, widest};
use penstock_types::profile::Profile;
use penstock_types::run::RunId;
use penstock_types::text::with_causes;
use tokio::time::Instant;

use crate::admission::{Cost, wasm_stages};
use crate::error::RunsError;
use crate::letters::Waited;
use crate::runs::{Runs, apart, turn};
use crate::submit::Checked;

/// Duration of the run that records inputs.
const RECORD: Duration = Duration::from_secs(3);
/// Duration of the measurement of one point.
const SPAN: Duration = Duration::from_millis(900);
/// Memory for all recorded inputs, in MiB.
const INPUTS_MIB: u64 = 256;
/// Longest time of all measurements together: stages may have any number and ops of any length.
const MOST: Duration = Duration::from_secs(300);
/// Maximum wait for a permit to compile a module.
const COMPILE_TURN: Duration = Duration::from_secs(60);

impl Runs {
    /// Measures each stage of the document of a run alone, with threads and memory from the budget. Ends at the next measurement if the
    /// client disconnects.
    pub async fn profile_run(&self, id: &RunId) -> Result<Arc<Profile>, RunsError> {
        let turn = turn(&self.0.permits.profiles, self.client(), "profiles").await?;
        let document = self.spec(id).await?.document;
        let Checked { prepared, cost: own, .. } = self.check(document.to_string().into()).await?;
        let assets_mib = own.memory_mib - Cost::of(&prepared.plan, 0).memory_mib;
        let cores = penstock_pipeline::cores().min(self.settings().budget.threads);
        let waiting = ProfileSettings::MOST_WAITING.min(self.settings().bounds.concurrency.get());
        let costs = widest(&prepared.plan, cores, waiting).map(|plan| Cost::of(&plan, assets_mib));
        let cost = costs.fold(own, Cost::most);
        let cost = Cost { memory_mib: cost.memory_mib + INPUTS_MIB, ..cost };
        let part = self.take(cost, "the profile").await?;
        let mut places = Vec::new();
        for (_, wasm) in wasm_stages(&prepared.plan) {
            let place = self.0.workshop.compile_place(&wasm.digest, self.client(), COMPILE_TURN).await?;
            places.extend(place);
        }
        let waited = Waited(StopFlag::default());
        let (ending, gone, workshop) = (self.0.ending.clone(), waited.0.clone(), self.0.workshop.clone());
        let measured = apart(self, move || {
            // The permit and the part of the budget are held until the work has ended, even if the future is dropped.
            let _held = (turn, part);
            let refused = |error: &dyn std::error::Error| RunsError::Refused(with_causes(error));
            let prepared =
                prepared.load(|wasm| workshop.load(&wasm.digest)).map_err(|error| refused(&error))?;
            drop(places);
            let settings = ProfileSettings {
                stages: Vec::new(),
                at_a_time: Vec::new(),
                most_threads: cores,
                most_waiting: waiting,
                record: RECORD,
                span: SPAN,
                memory_bytes: INPUTS_MIB << 20,
            };
            let until = Instant::now() + MOST;
            let mut on_start = |_: ProfileStep<'_>, run: &Run| {
                if ending.is_set() || gone.is_set() || Instant::now() >= until {
                    run.handle.stop(StopReason::Asked);
                }
            };
            profile(&prepared, &workshop.runtime, &settings, &mut on_start).map_err(|error| match error {
                ProfileError::Stopped if Instant::now() >= until => RunsError::Refused(format!(
                    "the measurements took longer than {} s, which is the limit; measure single stages with `penstock profile --stage`",
                    MOST.as_secs()
                )),
                ProfileError::Stopped => RunsError::Closed,
                error => refused(&error),
            })
        });
        let measured = Arc::new(measured.await?);
        self.0.profiles.keep(id, measured.clone());
        Ok(measured)
    }

    /// The last profile of a run since the start of the server.
    pub async fn run_profile(&self, id: &RunId) -> Result<Arc<Profile>, RunsError> {
        self.detail(id).await?;
        self.0.profiles.of(id).ok_or_else(|| RunsError::not_found("profile of the run", id))
    }
}
