//! Dead letters of runs, and their replay.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::ports::StopFlag;
use penstock_engine::running::StopReason;
use penstock_types::run::RunId;
use penstock_types::spec::Stage;
use penstock_types::text::{MAX_SHOWN_KEY, printable, with_causes};
use tokio::sync::oneshot;

use crate::admission::{self, Cost};
use crate::error::RunsError;
use crate::history::modules;
use crate::owner::{Message, Part};
use crate::runs::{Runs, apart, turn};
use crate::wire::{DeadLetters, StageDeadLetters};
use crate::work::TimeLimit;
use crate::workshop::Workshop;
use penstock_pipeline::letters_left_out;
use penstock_pipeline::{
    Letters, Prepared, ReplayFault, ReplayReport, Runner, StageLetters, StageReplay, Stores,
};

/// Interval at which a replay or a trial checks whether it was cancelled.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Stops the work of a future that is dropped.
pub(crate) struct Waited(pub(crate) StopFlag);

impl Runs {
    pub async fn dead_letters(&self, id: &RunId) -> Result<DeadLetters, RunsError> {
        let summary = self.detail(id).await?.summary;
        let folder = self.0.workshop.run_folder(&summary.id);
        let turn = turn(&self.0.surveys, self.client(), "looks at dead letters").await?;
        apart(self, move || {
            // Held to the end, even if the future is dropped.
            let _turn = turn;
            let left_out = letters_left_out(&folder);
            match Letters::open(&folder) {
                Ok(letters) => Ok(DeadLetters {
                    stages: letters.stages().iter().map(in_short).collect(),
                    unreadable: letters.unreadable().count,
                    left_out,
                }),
                Err(ReplayFault::NoRun(_)) => Ok(DeadLetters { stages: Vec::new(), unreadable: 0, left_out }),
                Err(fault) => Err(RunsError::Conflict(conflict_text(&fault))),
            }
        })
        .await
    }

    /// Runs the dead letters of a run again, each through the stage in which it failed, and waits until that is over. A stage
    /// takes the module that its document names now, or what `by` says in its place, by the module's name or as the document
    /// calls it. One replay goes on at a time; when nobody waits for it any more, it ends.
    pub async fn replay(&self, id: &RunId, by: BTreeMap<String, String>) -> Result<ReplayReport, RunsError> {
        let summary = self.detail(id).await?.summary;
        if !summary.state.is_over() {
            return Err(RunsError::Conflict(
                "the run is not over; its dead letters may still become more".to_owned(),
            ));
        }
        let busy = || RunsError::Busy("another replay goes on; try again when it is over".to_owned());
        let turn = self.0.replays.try_take(self.client()).map_err(|_| busy())?;
        let (workshop, stores) = (self.0.workshop.clone(), self.allowed_stores().clone());
        let budget = self.0.budget;
        let folder = workshop.run_folder(&summary.id);
        let own = workshop.clone();
        let prepared = apart(self, move || {
            let letters = Letters::open(&folder).map_err(|fault| match fault {
                ReplayFault::NoRun(_) => RunsError::Conflict("the run has no dead letters".to_owned()),
                ReplayFault::Document { faults, .. } => RunsError::invalid(faults),
                fault @ ReplayFault::Read { .. } => RunsError::Conflict(conflict_text(&fault)),
            })?;
            let plans = plans(&own, stores, &letters, &by)?;
            let faults =
                plans.iter().flat_map(|(_, it)| admission::check(&it.plan, 0, &budget)).collect::<Vec<_>>();
            if faults.is_empty() { Ok((letters, plans)) } else { Err(RunsError::invalid(faults)) }
        });
        let (letters, plans) = prepared.await?;
        // Letters hold samples of these, which a module could tell.
        self.check_stores(letters.spec())?;
        let mut report = ReplayReport { stages: Vec::new(), unreadable: letters.unreadable().clone() };
        // They run one after the other.
        let most = plans.iter().map(|(_, it)| Cost::of(&it.plan, 0)).reduce(Cost::most);
        let Some(most) = most else { return Ok(report) };
        let part = self.take(most, "a replay").await?;
        let waited = Waited(StopFlag::default());
        let (runtime, ending, own) =
            (self.0.workshop.runtime.clone(), self.0.ending.clone(), waited.0.clone());
        let replayed = apart(self, move || {
            let (_turn, _part) = (turn, part);
            let limit = TimeLimit::starting_now(&workshop);
            for (stage, prepared) in &plans {
                let run = runtime
                    .block_on(prepared.start_replay(&letters, stage, None))
                    .map_err(|error| RunsError::Conflict(with_causes(&error)))?;
                while !run.wait_for(LOOK) {
                    if ending.is_set() || own.is_set() {
                        run.stop(StopReason::Asked);
                    }
                    if let Some(limit) = limit {
                        limit.enforce(&run);
                    }
                }
                report.stages.push(StageReplay::of(stage, run.wait().snapshot));
                if ending.is_set() || own.is_set() {
                    break;
                }
            }
            Ok(report)
        });
        replayed.await
    }

    /// Takes a part of the budget, if it is free.
    pub(crate) async fn take(&self, cost: Cost, what: &str) -> Result<Part, RunsError> {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Take(self.client().clone(), cost, reply))?;
        match answer.await {
            Ok(Some(part)) => Ok(part),
            _ => {
                let words = self.view().why_it_waits(self.client(), cost);
                let words = words.unwrap_or_else(|| "others need it".to_owned());
                Err(RunsError::Busy(format!("there is no room for {what} now: {words}")))
            }
        }
    }
}

impl Drop for Waited {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Loads the modules of all stages that have letters, and checks that those can run.
fn plans(
    workshop: &Workshop,
    stores: Stores,
    letters: &Letters,
    by: &BTreeMap<String, String>,
) -> Result<Vec<(StageLetters, Prepared)>, RunsError> {
    let mut loaded = workshop.modules();
    let stages = letters.stages();
    for stage in stages {
        let Some(Stage::Wasm(wasm)) = letters.spec().stages.get(stage.place()) else { continue };
        let written = wasm.module.as_str();
        let name = written.split('@').next().unwrap_or(written);
        let wanted = by.get(written).or_else(|| by.get(name)).map_or(written, String::as_str);
        let found = workshop.history.read_blocking(|connection| modules::resolve(connection, wanted))?;
        let found = found.ok_or_else(|| RunsError::not_found("module", &printable(wanted, MAX_SHOWN_KEY)))?;
        let module = workshop.load(&found.report.digest).map_err(|error| {
            RunsError::Refused(format!(
                "the module `{}`: {}",
                printable(wanted, MAX_SHOWN_KEY),
                with_causes(&error)
            ))
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
    if faults.is_empty() { Ok(plans) } else { Err(RunsError::invalid(faults)) }
}

/// Why letters cannot be read, without the place where they lie.
fn conflict_text(fault: &ReplayFault) -> String {
    match fault {
        ReplayFault::NoRun(_) => "the run has no dead letters".to_owned(),
        ReplayFault::Document { faults, .. } => {
            let first = faults.first().map(|fault| format!(": {fault}")).unwrap_or_default();
            format!("the document beside the run's dead letters is damaged{first}")
        }
        ReplayFault::Read { source, .. } => {
            format!("the run's dead letters cannot be read: {}", source.kind())
        }
    }
}

fn in_short(stage: &StageLetters) -> StageDeadLetters {
    StageDeadLetters {
        stage: stage.id.to_string(),
        letters: stage.count,
        module: stage.modules.first().cloned(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::task::Poll;

    use super::*;
    use crate::runs::RunsSettings;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_part_for_somebody_who_is_gone_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let settings = RunsSettings::new(folder.path(), Stores::default());
        let runs = Runs::open(&tokio::runtime::Handle::current(), settings).unwrap();
        let mut view = runs.0.view.clone();
        let cost = Cost { threads: 1, memory_mib: 0, instances: 0 };
        {
            let mut taking = std::pin::pin!(runs.take(cost, "a replay"));
            let asked = poll_fn(|context| Poll::Ready(taking.as_mut().poll(context).is_pending())).await;
            // Answered or not, nobody looks at the answer.
            assert!(!asked || view.wait_for(|view| view.shares.used() == cost.amounts()).await.is_ok());
        }
        view.wait_for(|view| view.shares.used() == [0; 3]).await.unwrap();
    }
}
