use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use penstock_engine::lock::locked;
use penstock_engine::ports::SampleFailure;
use penstock_storage::StoreError;
use penstock_types::resume::StateTooLarge;
use penstock_types::run::{RunSnapshot, Window};
use penstock_types::series::TaskTimes;
use penstock_types::text::with_causes;
use serde::Serialize;

use crate::dead_letter::{DeadLetter, LetterStage};
use crate::room::DiskRoom;

pub(crate) const SPEC: &str = "spec.json";
const WINDOWS: &str = "windows.ndjson";
pub(crate) const SNAPSHOT: &str = "snapshot.json";
pub(crate) const TIMES: &str = "times.json";
const ERRORS: &str = "errors.ndjson";
pub(crate) const DEAD_LETTERS: &str = "dead_letters.ndjson";
const REPLAY: &str = "replay.json";
/// File with the number of dead letters that did not fit into the limits; missing if there were none.
pub(crate) const LEFT_OUT: &str = "dead_letters_left_out.json";

/// Approximate size of a dead letter without its fields, in bytes.
const LETTER_BYTES: u64 = 512;

/// Output folder of a run: the document that ran, every window, every failed sample, and the last snapshot.
#[derive(Debug)]
pub struct OutputFolder {
    folder: PathBuf,
    document: serde_json::Value,
    /// `None` for a replay, which consists of several runs and is written as one report.
    windows: Option<Lines>,
    /// `None` where failures are stored elsewhere.
    errors: Option<Lines>,
    dead_letters: Lines,
    /// Maximum size of the dead letters, in bytes.
    letter_bytes: u64,
    /// Disk space shared with other runs, if it is limited.
    room: Option<Arc<DiskRoom>>,
    /// Set once the disk space did not suffice for a dead letter.
    is_room_full: AtomicBool,
    left_out: AtomicU64,
    /// Value of `left_out` last written to the folder.
    left_out_written: AtomicU64,
    /// Result of creating the folder, once attempted; a folder that is only for dead letters is created with the first one.
    made: OnceLock<Result<(), OutputError>>,
    /// First error of a write.
    broken: OnceLock<OutputError>,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum OutputError {
    #[error("`{}` already holds a run; choose another folder or remove it", .0.display())]
    Taken(PathBuf),
    #[error("`{}` is a file, and the run needs a folder; choose another name", .0.display())]
    File(PathBuf),
    #[error("cannot write `{}`", .path.display())]
    Write { path: PathBuf, source: Arc<io::Error> },
    #[error("cannot read `{}`", .path.display())]
    Read { path: PathBuf, source: Arc<io::Error> },
    /// The store of the batches does not answer, or has no state.
    #[error(transparent)]
    State(Arc<StoreError>),
    #[error(transparent)]
    StateTooLarge(#[from] StateTooLarge),
    #[error("{left_out} dead letters were left out, since at most {} MiB are kept (`limits.runs.dead_letters_mib`)", .most_bytes >> 20)]
    Full { left_out: u64, most_bytes: u64 },
    #[error("{0} dead letters were left out, since the data directory is full (`limits.disk_mib`)")]
    NoRoom(u64),
}

/// A file of JSON lines, created with the first line.
#[derive(Debug)]
struct Lines {
    path: PathBuf,
    file: Mutex<Option<BufWriter<File>>>,
    bytes: AtomicU64,
}

impl OutputFolder {
    /// Output of a run of `document` in `folder`; fails if the folder already holds a run. Creates no file before the run starts.
    pub fn at(folder: &Path, document: serde_json::Value) -> Result<Self, OutputError> {
        if let Some(file) = folder.ancestors().find(|path| path.exists()).filter(|path| !path.is_dir()) {
            return Err(OutputError::File(file.to_owned()));
        }
        let names = [SPEC, WINDOWS, SNAPSHOT, TIMES, ERRORS, DEAD_LETTERS, REPLAY];
        // A symbolic link counts as a run's file even if its target does not exist.
        if names.iter().any(|name| folder.join(name).symlink_metadata().is_ok()) {
            return Err(OutputError::Taken(folder.to_owned()));
        }
        let lines =
            |name: &str| Lines { path: folder.join(name), file: Mutex::default(), bytes: AtomicU64::new(0) };
        Ok(Self {
            folder: folder.to_owned(),
            document,
            windows: Some(lines(WINDOWS)),
            errors: Some(lines(ERRORS)),
            dead_letters: lines(DEAD_LETTERS),
            letter_bytes: u64::MAX,
            room: None,
            is_room_full: AtomicBool::new(false),
            left_out: AtomicU64::new(0),
            left_out_written: AtomicU64::new(0),
            made: OnceLock::new(),
            broken: OnceLock::new(),
        })
    }

    /// Output of a replay of dead letters of `document`; fails if the folder already holds a run. The runs of the replay write
    /// one after another, and [`Self::write_replay`] writes the overall report.
    pub fn for_replay(folder: &Path, document: serde_json::Value) -> Result<Self, OutputError> {
        Ok(Self { windows: None, ..Self::at(folder, document)? })
    }

    /// Output for the dead letters of a run that is stored elsewhere; the folder is created with the first dead letter. Keeps at
    /// most `letter_bytes` bytes of dead letters, and no more than `room` has space for.
    pub fn for_letters(
        folder: &Path,
        document: serde_json::Value,
        letter_bytes: u64,
        room: Arc<DiskRoom>,
    ) -> Result<Self, OutputError> {
        let room = Some(room);
        Ok(Self { windows: None, errors: None, letter_bytes, room, ..Self::at(folder, document)? })
    }

    /// Creates the folder and writes the document into it, once for all runs of a replay. If several runs begin in the same
    /// folder at once, only one succeeds.
    pub(crate) fn begin(&self) -> Result<(), OutputError> {
        if self.windows.is_none() && self.errors.is_none() {
            return Ok(());
        }
        self.make()?;
        self.windows.iter().chain(&self.errors).try_for_each(|lines| lines.with_file(|_| Ok(())))
    }

    fn make(&self) -> Result<(), OutputError> {
        self.made.get_or_init(|| self.write_spec()).clone()
    }

    fn write_spec(&self) -> Result<(), OutputError> {
        fs::create_dir_all(&self.folder).map_err(|error| write_error(&self.folder, error))?;
        let path = self.folder.join(SPEC);
        let mut file = File::create_new(&path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => OutputError::Taken(self.folder.clone()),
            _ => write_error(&path, error),
        })?;
        pretty(&self.document).and_then(|text| file.write_all(&text)).map_err(|error| {
            // Without the file, another run can use the folder.
            fs::remove_file(&path).ok();
            write_error(&path, error)
        })
    }

    /// Writes a window, and flushes all failures before it, which would otherwise be lost if the process were killed.
    pub(crate) fn write_window(&self, window: &Window) {
        self.flush();
        self.note(self.write_left_out());
        if let Some(windows) = &self.windows {
            // Flushed at once, since users follow the file, and windows are few.
            self.note(windows.write(window).and_then(|()| windows.flush()));
        }
    }

    pub(crate) fn write_failure(&self, failure: &SampleFailure, stage: Option<&LetterStage>) {
        if let Some(errors) = &self.errors {
            self.note(errors.write(&failure.record));
        }
        if let (Some(sample), Some(stage)) = (failure.dead_letter(), stage) {
            // Estimate: base64 makes bytes longer. A dead letter that turns out longer is still written; the next one counts its
            // real size.
            let about = (sample.bytes() / 3 * 4).saturating_add(LETTER_BYTES);
            let is_full =
                self.dead_letters.bytes.load(Ordering::Relaxed).saturating_add(about) > self.letter_bytes;
            if is_full || self.room.as_ref().is_some_and(|room| !room.take(about)) {
                self.is_room_full.fetch_or(!is_full, Ordering::Relaxed);
                self.left_out.fetch_add(1, Ordering::Relaxed);
                return;
            }
            let letter = DeadLetter::new(&failure.record, stage, sample);
            self.note(self.make().and_then(|()| self.dead_letters.write(&letter)));
        }
    }

    /// Writes the last snapshot, the times of each stage's ops, and all buffered lines.
    pub(crate) fn finish(
        &self,
        snapshot: &RunSnapshot,
        times: &BTreeMap<String, TaskTimes>,
    ) -> Result<(), OutputError> {
        if self.windows.is_some() {
            self.note(self.write_whole(TIMES, times));
            self.note(self.write_whole(SNAPSHOT, snapshot));
        }
        self.flush();
        self.note(self.write_left_out());
        let left_out = self.left_out.load(Ordering::Relaxed);
        match self.broken.get() {
            Some(broken) => Err(broken.clone()),
            None if self.is_room_full.load(Ordering::Relaxed) => Err(OutputError::NoRoom(left_out)),
            None if left_out > 0 => Err(OutputError::Full { left_out, most_bytes: self.letter_bytes }),
            None => Ok(()),
        }
    }

    pub fn flush(&self) {
        for lines in self.windows.iter().chain(&self.errors).chain([&self.dead_letters]) {
            self.note(lines.flush());
        }
    }

    pub fn write_replay(&self, report: &impl Serialize) -> Result<(), OutputError> {
        self.write_whole(REPLAY, report)
    }

    /// Writes the number of dead letters left out, if it has changed.
    fn write_left_out(&self) -> Result<(), OutputError> {
        let left_out = self.left_out.load(Ordering::Relaxed);
        if self.left_out_written.swap(left_out, Ordering::Relaxed) == left_out {
            return Ok(());
        }
        self.make()?;
        self.write_whole(LEFT_OUT, &left_out)
    }

    fn note(&self, written: Result<(), OutputError>) {
        if let Err(error) = written {
            self.broken.get_or_init(|| {
                tracing::error!(error = with_causes(&error), "the run's output is incomplete");
                error
            });
        }
    }

    fn write_whole(&self, name: &str, content: &impl Serialize) -> Result<(), OutputError> {
        let path = self.folder.join(name);
        let text = pretty(content).map_err(|error| write_error(&path, error))?;
        write_whole(&path, &text)
    }
}

/// Writes a file atomically: complete or not at all.
pub(crate) fn write_whole(path: &Path, text: &[u8]) -> Result<(), OutputError> {
    let part = path.with_added_extension("part");
    let write = || -> io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    write().map_err(|error| {
        // The caller gets the error of the write, not that of the removal.
        fs::remove_file(&part).ok();
        write_error(path, error)
    })
}

/// Reads a file, at most `most` bytes of it.
pub(crate) fn read_within(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn pretty(content: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(content)?;
    text.push(b'\n');
    Ok(text)
}

/// Number of dead letters left out of the run in `folder`.
pub fn letters_left_out(folder: &Path) -> u64 {
    let told = fs::read(folder.join(LEFT_OUT)).ok();
    told.and_then(|told| serde_json::from_slice(&told).ok()).unwrap_or(0)
}

impl Lines {
    fn write(&self, line: &impl Serialize) -> Result<(), OutputError> {
        self.with_file(|file| {
            // One write per line, so that the file ends with a complete line during the run.
            let mut text = serde_json::to_vec(line)?;
            text.push(b'\n');
            file.write_all(&text)?;
            self.bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
            Ok(())
        })
    }

    fn flush(&self) -> Result<(), OutputError> {
        let mut file = locked(&self.file);
        file.as_mut().map_or(Ok(()), |file| file.flush()).map_err(|error| write_error(&self.path, error))
    }

    fn with_file(
        &self,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), OutputError> {
        let mut file = locked(&self.file);
        let open = || -> io::Result<()> {
            if file.is_none() {
                *file = Some(BufWriter::new(File::create(&self.path)?));
            }
            file.as_mut().map_or(Ok(()), write)
        };
        open().map_err(|error| write_error(&self.path, error))
    }
}

pub(crate) fn write_error(path: &Path, error: io::Error) -> OutputError {
    OutputError::Write { path: path.to_owned(), source: Arc::new(error) }
}
