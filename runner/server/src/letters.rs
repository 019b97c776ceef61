//! Dead letters of runs, and their replay.

use std::collections::BTreeMap;

use penstock_engine::ports::StopFlag;
use penstock_engine::running::StopReason;
use penstock_types::run::RunId;
use penstock_types::spec::Stage;
use penstock_types::text::{shown, with_causes};
use tokio::sync::oneshot;

use crate::admission::{self, Cost};
use crate::error::RunsError;
use crate::history::modules;
use crate::owner::{Message, Part};
use crate::runs::{Runs, apart, turn};
use crate::wire::{DeadLetters, StageDeadLetters};
use crate::work::{CHECK_EVERY, TimeLimit};
use crate::workshop::Workshop;
use penstock_pipeline::{
    Letters, Prepared, ReplayFault, ReplayReport, Runner, StageLetters, StageReplay, Stores, letters_left_out,
};

/// Guard of a future: sets the stop flag on drop, so that the blocking work of a dropped future stops.
pub(crate) struct Waited(pub(crate) StopFlag);

impl Runs {
    pub async fn dead_letters(&self, id: &RunId) -> Result<DeadLetters, RunsError> {
        let summary = self.detail(id).await?.summary;
        let folder = self.0.workshop.run_folder(&summary.id);
        let turn = turn(&self.0.permits.surveys, self.client(), "reading dead letters").await?;
        apart(self, move || {
            // The permit is held until the work has ended, even if the future is dropped.
            let _turn = turn;
            let left_out = letters_left_out(&folder);
            let letters = match Letters::open(&folder) {
                Err(ReplayFault::NoRun(_)) => {
                    return Ok(DeadLetters { stages: Vec::new(), unreadable: 0, left_out });
                }
                opened => opened.map_err(|fault| RunsError::Conflict(conflict_text(&fault)))?,
            };
            let stages = letters.stages.iter().map(|stage| StageDeadLetters {
                stage: stage.id.to_string(),
                letters: stage.count,
                module: stage.modules.first().cloned(),
            });
            Ok(DeadLetters { stages: stages.collect(), unreadable: letters.unreadable.count, left_out })
        })
        .await
    }

    /// Runs the dead letters of a run again, each through the stage in which it failed, and waits for the end. A stage uses the
    /// module that the name in the document refers to now, or the replacement in `by`; the keys of `by` are module names as the
    /// document writes them, with or without a version. Only one replay runs at a time; a replay ends if the future is dropped.
    pub async fn replay(&self, id: &RunId, by: BTreeMap<String, String>) -> Result<ReplayReport, RunsError> {
        let summary = self.detail(id).await?.summary;
        if !summary.state.is_over() {
            return Err(RunsError::Conflict(
                "the run has not ended; its stages may still fail more samples".to_owned(),
            ));
        }
        let busy = || RunsError::Busy("another replay is running; try again when it has ended".to_owned());
        let turn = self.0.permits.replays.try_take(self.client()).map_err(|_| busy())?;
        let (workshop, stores) = (self.0.workshop.clone(), self.allowed_stores().clone());
        let budget = self.settings().budget;
        let folder = workshop.run_folder(&summary.id);
        let own = workshop.clone();
        let prepared = apart(self, move || {
            let letters = Letters::open(&folder).map_err(|fault| match fault {
                ReplayFault::Document { faults, .. } => RunsError::invalid(faults),
                fault => RunsError::Conflict(conflict_text(&fault)),
            })?;
            let plans = plans(&own, stores, &letters, &by)?;
            let faults = plans.iter().flat_map(|(_, prepared)| admission::check(&prepared.plan, 0, &budget));
            RunsError::refuse_faults(faults.collect())?;
            Ok((letters, plans))
        });
        let (letters, plans) = prepared.await?;
        // Dead letters contain samples from the stores of the document, which a replacement module could reveal to a caller
        // without access to these stores.
        self.check_stores(&letters.spec)?;
        let mut report = ReplayReport { stages: Vec::new(), unreadable: letters.unreadable.clone() };
        // The stages run one after another, so the largest of their costs is enough.
        let most = plans.iter().map(|(_, it)| Cost::of(&it.plan, 0)).reduce(Cost::most);
        let Some(most) = most else { return Ok(report) };
        let part = self.take(most, "the replay").await?;
        let waited = Waited(StopFlag::default());
        let (ending, own) = (self.0.ending.clone(), waited.0.clone());
        let replayed = apart(self, move || {
            let (_turn, _part) = (turn, part);
            let limit = TimeLimit::starting_now(&workshop);
            let is_over = || ending.is_set() || own.is_set();
            for (stage, prepared) in &plans {
                let run = workshop
                    .runtime
                    .block_on(prepared.start_replay(&letters, stage, None))
                    .map_err(|error| RunsError::Conflict(with_causes(&error)))?;
                while !run.handle.wait_for(CHECK_EVERY) {
                    if is_over() {
                        run.handle.stop(StopReason::Asked);
                    }
                    if let Some(limit) = limit {
                        limit.enforce(&run);
                    }
                }
                report.stages.push(StageReplay::of(stage, run.wait().snapshot));
                if is_over() {
                    break;
                }
            }
            Ok(report)
        });
        replayed.await
    }

    /// Reserves a part of the budget; fails if it is not free.
    pub(crate) async fn take(&self, cost: Cost, what: &str) -> Result<Part, RunsError> {
        let (reply, answer) = oneshot::channel();
        self.0.messages.try_send(Message::Take(self.client().clone(), cost, reply))?;
        match answer.await {
            Ok(Some(part)) => Ok(part),
            _ => {
                let reason = self.view().why_it_waits(self.client(), cost);
                let reason = reason.unwrap_or_else(|| "the budget is in use".to_owned());
                Err(RunsError::Busy(format!("{what} cannot start now: {reason}")))
            }
        }
    }
}

impl Drop for Waited {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Loads the modules of all stages that have dead letters, and checks that these stages can run.
fn plans(
    workshop: &Workshop,
    stores: Stores,
    letters: &Letters,
    by: &BTreeMap<String, String>,
) -> Result<Vec<(StageLetters, Prepared)>, RunsError> {
    let mut loaded = workshop.modules();
    let stages = &letters.stages;
    for stage in stages {
        let Some(Stage::Wasm(wasm)) = letters.spec.stage(&stage.id) else { continue };
        let written = wasm.module.as_str();
        let name = written.split('@').next().unwrap_or(written);
        let wanted = by.get(written).or_else(|| by.get(name)).map_or(written, String::as_str);
        let found = workshop.history.read_blocking(|connection| modules::resolve(connection, wanted))?;
        let found = found.ok_or_else(|| RunsError::not_found("module", wanted))?;
        let module = workshop.load(&found.report.digest).map_err(|error| {
            let why = with_causes(&error);
            RunsError::Refused(format!("cannot load the module `{}`: {why}", shown(wanted)))
        })?;
        loaded.insert(written, module);
    }
    let runner = Runner::new(workshop.runtime.clone(), stores, loaded);
    let mut plans = Vec::new();
    let mut faults = Vec::new();
    for stage in stages {
        match runner.check_replay(letters, stage, false) {
            Ok(prepared) => plans.push((stage.clone(), prepared)),
            Err(found) => faults.extend(found),
        }
    }
    RunsError::refuse_faults(faults)?;
    Ok(plans)
}

/// Message for dead letters that cannot be read; it does not contain paths.
fn conflict_text(fault: &ReplayFault) -> String {
    match fault {
        ReplayFault::NoRun(_) => "the run has no dead letters".to_owned(),
        ReplayFault::Document { faults, .. } => {
            let first = faults.first().map(|fault| format!(": {fault}")).unwrap_or_default();
            format!("the document stored with the run's dead letters is damaged{first}")
        }
        ReplayFault::Read { source, .. } => {
            format!("the run's dead letters cannot be read: {}", source.kind())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::task::Poll;

    use super::*;
    use crate::settings::RunsSettings;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_part_of_the_budget_for_a_dropped_replay_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let settings = RunsSettings::new(folder.path(), Stores::default());
        let runs = Runs::open(&tokio::runtime::Handle::current(), settings).unwrap();
        let mut view = runs.0.view.clone();
        let cost = Cost { threads: 1, memory_mib: 0, instances: 0 };
        {
            let mut taking = std::pin::pin!(runs.take(cost, "the replay"));
            let is_pending = poll_fn(|context| Poll::Ready(taking.as_mut().poll(context).is_pending())).await;
            // The reply with the part of the budget is never read, even if it has been sent.
            assert!(!is_pending || view.wait_for(|view| view.shares.used() == cost.amounts()).await.is_ok());
        }
        view.wait_for(|view| view.shares.used() == [0; 3]).await.unwrap();
    }
}
