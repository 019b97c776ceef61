//! Replays the dead letters of a run, each in the stage in which it failed and no other.

mod lines;
mod source;
mod survey;

use std::num::NonZeroU32;
use std::sync::Arc;

use penstock_types::fault::{self, SpecFault};
use penstock_types::plan::{Batching, Fields, StageId};
use penstock_types::policy::OnError;
use penstock_types::run::{FailureGroup, RunSnapshot};
use penstock_types::spec::{Consumer, RangeSource, Source, Spec, Stage};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

pub use self::lines::MAX_LETTER_BYTES;
use self::source::LetterSource;
pub use self::survey::{Letters, ReplayFault, StageLetters, Unreadable, UnreadableLetter};
use crate::output::OutputFolder;
use crate::prepare::{Outlets, Prepared};
use crate::run::Run;
use crate::runner::{RunEnds, Runner, StartError};

/// Result of a replay: `replay.json`, and the output of `--json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReplayReport {
    /// Stages with dead letters, in the order of the pipeline.
    pub stages: Vec<StageReplay>,
    /// Lines of the file that are not dead letters.
    pub unreadable: Unreadable,
}

/// Outcome of the dead letters of one stage.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StageReplay {
    /// Id of the stage.
    pub stage: String,
    /// Number of dead letters of the stage.
    pub letters: u64,
    /// Number of dead letters that succeed now.
    pub mended: u64,
    /// Number of dead letters that fail again.
    pub still_failing: u64,
    /// Number of dead letters not replayed to the end, because the replay was stopped or failed.
    pub left: u64,
    /// Digests of the modules in which the samples had failed.
    pub failed_in: Vec<String>,
    /// Digest of the module that ran in the replay; `null` for stages without one.
    pub ran_in: Option<String>,
    /// Failures of the replay, grouped.
    pub failures: Vec<FailureGroup>,
    /// Snapshot of the replay's run.
    pub snapshot: RunSnapshot,
}

impl StageReplay {
    /// Evaluates the snapshot of a run that replayed `letters`.
    pub fn of(letters: &StageLetters, snapshot: RunSnapshot) -> Self {
        let stage = letters.id.to_string();
        // Only the stage's own entry counts: a sample that fails earlier, where the batches are made, has not been replayed.
        let book = snapshot.ledger.stages.iter().find(|book| book.id == stage).cloned().unwrap_or_default();
        let still_failing = book.skipped + book.dead_lettered;
        // With fan-outs, the number of output samples does not reveal the number of inputs.
        let is_whole = snapshot.ledger.total.left == 0 && snapshot.error.is_none();
        let tried =
            if is_whole { book.taken } else { book.taken.min(still_failing + book.out + book.dropped) };
        let mended = tried.saturating_sub(still_failing);
        Self {
            stage,
            letters: letters.count,
            mended,
            still_failing,
            left: letters.count.saturating_sub(mended + still_failing),
            failed_in: letters.modules.iter().cloned().collect(),
            ran_in: snapshot.modules.get(&letters.id.to_string()).cloned(),
            failures: snapshot.failures.clone(),
            snapshot,
        }
    }
}

impl Runner {
    /// Checks that the stage of these dead letters can run alone, or behind the stages that make its batches.
    pub fn check_replay(
        &self,
        letters: &Letters,
        stage: &StageLetters,
        has_output: bool,
    ) -> Result<Prepared, Vec<SpecFault>> {
        let spec = &letters.spec;
        let makers = makers(spec, stage);
        let alone = replay_spec(spec, &makers, stage, has_output);
        let outlets = Outlets { keeps_letters: has_output, streams: false, ..Outlets::ALL };
        let ids: Vec<StageId> = makers
            .iter()
            .map(|place| id_of(&spec.stages[*place], *place))
            .chain([stage.id.clone()])
            .collect();
        // The fields of the samples are those of the dead letters, so they are not checked in advance.
        let prepared = self.prepare_within(&alone, Some(Fields::UNKNOWN), outlets, &|_| Vec::new());
        let mut prepared = prepared
            .map_err(|faults| fault::with_stages_moved(faults, |place| Some(ids.get(place)?.place())))?;
        let plan = &mut prepared.plan;
        for (plan, id) in plan.stages.iter_mut().zip(ids) {
            plan.place = id.place().key(plan.kind.name().as_str());
            plan.id = id;
        }
        if let Some(last) = plan.stages.last_mut() {
            last.seeded_as.clone_from(&stage.seeded_as);
        }
        Ok(prepared)
    }
}

impl Prepared {
    /// Starts a run of these dead letters, prepared by [`Runner::check_replay`].
    pub async fn start_replay(
        &self,
        letters: &Letters,
        stage: &StageLetters,
        output: Option<Arc<OutputFolder>>,
    ) -> Result<Run, StartError> {
        let source = LetterSource::new(letters.path.clone(), stage);
        let ends = RunEnds { source: Some(Box::new(source)), ..RunEnds::default() };
        self.start(output, ends).await
    }
}

/// Document of a run of the stage of these dead letters behind the stages at `makers`, over as many samples as there are dead letters.
fn replay_spec(spec: &Spec, makers: &[usize], letters: &StageLetters, has_output: bool) -> Spec {
    let store = spec.source.store();
    let makers = makers.iter().map(|place| spec.stages[*place].for_replay(OnError::Skip, store));
    let on_error = if has_output { OnError::DeadLetter } else { OnError::Skip };
    let replayed = spec.stage(&letters.id).map(|stage| stage.for_replay(on_error, store));
    let (count, epochs) = (letters.count, Some(NonZeroU32::MIN));
    Spec {
        source: Source::Range(RangeSource { count, epochs, shuffle: false, shard: None, limit: None }),
        stages: makers.chain(replayed).collect(),
        consumer: Consumer::default(),
        max_failures: None,
        ..spec.clone()
    }
}

/// Positions of the stages that make the batches of a stage with dead letters; none for a stage in a route, which takes samples.
fn makers(spec: &Spec, letters: &StageLetters) -> Vec<usize> {
    let mut makers = Vec::new();
    let before = (letters.id.position() as usize).saturating_sub(1);
    for (place, stage) in spec.stages[..before].iter().enumerate() {
        match stage.batching() {
            Batching::Begins => makers = vec![place],
            Batching::Converts => makers.push(place),
            Batching::Ends => makers.clear(),
            Batching::Keeps => {}
        }
    }
    if matches!(spec.stages.get(before), Some(Stage::Route(_))) {
        makers.clear();
    }
    makers
}

/// Id of a stage that only makes batches: such stages are named by `name` or their kind.
fn id_of(stage: &Stage, place: usize) -> StageId {
    let name = stage.name().map_or(stage.kind(), |name| name.as_str());
    StageId::parse(&format!("{}:{name}", place + 1)).expect("a place and a name are an id")
}

impl Letters {
    /// Document of the original run, serialised again.
    pub fn document(&self) -> Value {
        serde_json::to_value(&self.spec).expect("a document is JSON")
    }
}
