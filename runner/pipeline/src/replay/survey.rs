use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_types::fault::SpecFault;
use penstock_types::kinds::Fails;
use penstock_types::plan::StageId;
use penstock_types::spec::{MAX_DOCUMENT_BYTES, Spec};
use penstock_types::text::{MAX_SHOWN_KEY, printable, without_place};
use schemars::JsonSchema;
use serde::Serialize;

use super::lines::{LetterLine, LetterLines, MAX_LETTER_BYTES};
use crate::dead_letter::ReadLetter;
use crate::output::{DEAD_LETTERS, SPEC, read_within};

/// Maximum number of unreadable lines that are reported one by one.
const MAX_TOLD: usize = 20;

/// Maximum number of different modules of one stage in a report.
const MAX_MODULES: usize = 10;

/// Maximum length of a reason in a report, in bytes.
const MAX_REASON: usize = 300;

/// Dead letters of a run, counted by stage. They stay on disk.
#[derive(Debug)]
pub struct Letters {
    pub spec: Spec,
    pub(super) path: PathBuf,
    /// Stages with dead letters, in the order of the pipeline.
    pub stages: Vec<StageLetters>,
    pub unreadable: Unreadable,
}

/// Dead letters of one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageLetters {
    pub id: StageId,
    /// Name of the stage from which its random numbers are seeded.
    pub(super) seeded_as: String,
    pub count: u64,
    /// Digests of the modules in which the samples failed.
    pub modules: BTreeSet<String>,
}

/// Lines that are not dead letters of this run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Unreadable {
    /// Number of unreadable lines.
    pub count: u64,
    /// First unreadable lines, with reasons.
    pub first: Vec<UnreadableLetter>,
}

/// A line that is not a dead letter of this run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UnreadableLetter {
    /// Line number, from 1.
    pub line: u64,
    /// Reason why the line cannot be replayed.
    pub reason: String,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ReplayFault {
    #[error("`{}` contains no run (no `{SPEC}`); pass a folder written by `penstock run --out`", .0.display())]
    NoRun(PathBuf),
    /// The run's document is not valid in this version.
    #[error("`{}` cannot run as written", path.display())]
    Document { path: PathBuf, faults: Vec<SpecFault> },
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: Arc<io::Error> },
}

impl Letters {
    /// Reads the document of the run in `folder` and scans all of its dead letters once.
    pub fn open(folder: &Path) -> Result<Self, ReplayFault> {
        let spec = read_spec(&folder.join(SPEC), folder)?;
        let path = folder.join(DEAD_LETTERS);
        let mut letters = Self { spec, path, stages: Vec::new(), unreadable: Unreadable::default() };
        letters.survey().map_err(|error| read_error(&letters.path, error))?;
        Ok(letters)
    }

    fn survey(&mut self) -> io::Result<()> {
        let mut lines = match LetterLines::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            lines => lines?,
        };
        let mut stages = BTreeMap::new();
        while let Some(line) = lines.next()? {
            let number = line.number;
            if let Err(fault) = count(&self.spec, &line, &mut stages) {
                self.unreadable.count += 1;
                if self.unreadable.first.len() < MAX_TOLD {
                    let reason = printable(&fault, MAX_REASON);
                    self.unreadable.first.push(UnreadableLetter { line: number, reason });
                }
            }
        }
        self.stages = stages.into_values().collect();
        Ok(())
    }
}

/// Counts the dead letter on a line for its stage. The error is the predicate of a sentence about the line.
fn count(
    spec: &Spec,
    line: &LetterLine<'_>,
    stages: &mut BTreeMap<StageId, StageLetters>,
) -> Result<(), String> {
    let Some(letter) = letter(line)? else { return Ok(()) };
    let id = stage_of(spec, &letter.stage)?;
    let (seeded_as, module) = (letter.seeded_as.clone(), letter.module.clone());
    letter.into_sample()?;
    let stage = stages.entry(id.clone()).or_insert_with(|| StageLetters {
        id,
        seeded_as: seeded_as.clone(),
        count: 0,
        modules: BTreeSet::new(),
    });
    if stage.seeded_as != seeded_as {
        return Err(format!(
            "derives the seeds of `{}` from the name `{}`, but an earlier line derives them from `{}`",
            stage.id,
            printable(&seeded_as, MAX_SHOWN_KEY),
            stage.seeded_as
        ));
    }
    stage.count += 1;
    if stage.modules.len() < MAX_MODULES {
        stage.modules.extend(module.map(|module| printable(&module, MAX_SHOWN_KEY)));
    }
    Ok(())
}

/// Parses the dead letter on a line; `None` for a blank line.
pub(super) fn letter(line: &LetterLine<'_>) -> Result<Option<ReadLetter>, String> {
    let text = line.text.ok_or_else(|| format!("is longer than {} MiB", MAX_LETTER_BYTES >> 20))?;
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(text).map(Some).map_err(|error| match line.has_end {
        true => format!("is not a dead letter: {}, at column {}", without_place(&error), error.column()),
        false => "is cut off: the run ended while it was written".to_owned(),
    })
}

/// Parses a stage's id; fails unless the document has the stage and samples can fail in it.
fn stage_of(spec: &Spec, written: &str) -> Result<StageId, String> {
    let id = StageId::parse(written);
    if let Some(source) = id.as_ref().filter(|id| id.position() == 0) {
        return Err(format!(
            "failed in the source, `{source}`, and cannot be replayed without its object; mend the data, or set `types`, and run the \
             pipeline again"
        ));
    }
    let stage = id.as_ref().and_then(|id| spec.stage(id).filter(|stage| stage.may_be_called(id.name())));
    let (Some(id), Some(stage)) = (id, stage) else {
        let shown = printable(written, MAX_SHOWN_KEY);
        return Err(format!("names the stage `{shown}`, which the document does not have"));
    };
    match stage.fails() {
        Fails::Samples => Ok(id),
        Fails::OfABatch => Err(format!(
            "failed in `{written}` because it differs from the rest of its batch, and cannot be replayed without the batch; fix a \
             stage before it and run the pipeline again"
        )),
        Fails::OfARoute => Err(format!(
            "had no path in `{written}`: change the route or the sample, and run the pipeline again"
        )),
        Fails::Nothing => Err(format!("names the stage `{written}`, in which samples cannot fail")),
    }
}

fn read_spec(path: &Path, folder: &Path) -> Result<Spec, ReplayFault> {
    let bytes = read_within(path, MAX_DOCUMENT_BYTES as u64 + 1).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ReplayFault::NoRun(folder.to_owned()),
        _ => read_error(path, error),
    })?;
    Spec::read(&bytes).map_err(|faults| ReplayFault::Document { path: path.to_owned(), faults })
}

fn read_error(path: &Path, error: io::Error) -> ReplayFault {
    ReplayFault::Read { path: path.to_owned(), source: Arc::new(error) }
}
