use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use penstock_engine::ports::SampleFailure;
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
/// How many letters there was no room for, when there are any.
pub(crate) const LEFT_OUT: &str = "dead_letters_left_out.json";

/// Bytes of a letter beside its fields, about.
const LETTER_BYTES: u64 = 512;

/// Where a run is written down: the document that ran, every window, every failed sample, and the last snapshot.
#[derive(Debug)]
pub struct OutputFolder {
    folder: PathBuf,
    document: serde_json::Value,
    /// `None` for a replay, which is several runs and written down as a whole.
    windows: Option<Lines>,
    /// `None` where failures are kept elsewhere.
    errors: Option<Lines>,
    dead_letters: Lines,
    /// Bytes of dead letters that are kept.
    letter_bytes: u64,
    /// What they share with others, if they do.
    room: Option<Arc<DiskRoom>>,
    /// Set once that had no more for a letter.
    is_room_full: AtomicBool,
    /// Letters there was no room for.
    left_out: AtomicU64,
    /// How many of them the folder tells of.
    left_out_told: AtomicU64,
    /// Whether the folder could be made, once that was tried; where only dead letters are kept, that waits for the first one.
    made: OnceLock<Result<(), OutputError>>,
    /// The first thing that could not be written.
    broken: OnceLock<OutputError>,
}

/// Reasons why a run cannot be written down.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OutputError {
    #[error("`{}` already holds a run; choose another folder or remove it", .0.display())]
    Taken(PathBuf),
    #[error("`{}` is a file, and the run needs a folder; choose another name", .0.display())]
    File(PathBuf),
    #[error("cannot write `{}`", .path.display())]
    Write { path: PathBuf, source: Arc<io::Error> },
    /// There were more dead letters than are kept.
    #[error("{left_out} were left out, as {} MiB of them are kept (`limits.runs.dead_letters_mib`)", .most_bytes >> 20)]
    Full { left_out: u64, most_bytes: u64 },
    /// There were more dead letters than the disk has room for.
    #[error("{0} were left out, as the data directory has no more room (`limits.disk_mib`)")]
    NoRoom(u64),
}

/// A file of JSON lines, made when the first one is written.
#[derive(Debug)]
struct Lines {
    path: PathBuf,
    file: Mutex<Option<BufWriter<File>>>,
    bytes: AtomicU64,
}

impl OutputFolder {
    /// A place for a run of `document`; fails if it is taken. Nothing is made before the run starts.
    pub fn at(folder: &Path, document: serde_json::Value) -> Result<Self, OutputError> {
        if let Some(file) = folder.ancestors().find(|path| path.exists()).filter(|path| !path.is_dir()) {
            return Err(OutputError::File(file.to_owned()));
        }
        let names = [SPEC, WINDOWS, SNAPSHOT, TIMES, ERRORS, DEAD_LETTERS, REPLAY];
        // A link counts, wherever it leads.
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
            left_out_told: AtomicU64::new(0),
            made: OnceLock::new(),
            broken: OnceLock::new(),
        })
    }

    /// A place for a replay of letters of `document`; fails if it is taken. Its runs write one after another, and the whole
    /// is what [`Self::write_replay`] gets.
    pub fn for_replay(folder: &Path, document: serde_json::Value) -> Result<Self, OutputError> {
        Ok(Self { windows: None, ..Self::at(folder, document)? })
    }

    /// A place for the dead letters of a run, which is kept elsewhere; made when the first one is written. So many bytes of
    /// them are kept, as far as the room has them.
    pub fn for_letters(
        folder: &Path,
        document: serde_json::Value,
        letter_bytes: u64,
        room: Arc<DiskRoom>,
    ) -> Result<Self, OutputError> {
        let room = Some(room);
        Ok(Self { windows: None, errors: None, letter_bytes, room, ..Self::at(folder, document)? })
    }

    /// Makes the folder and writes the document into it, once for all runs of a replay. Of several that begin there at once,
    /// one gets it.
    pub(crate) fn begin(&self) -> Result<(), OutputError> {
        if self.windows.is_none() && self.errors.is_none() {
            return Ok(());
        }
        self.make()?;
        self.windows.iter().chain(&self.errors).try_for_each(Lines::open)
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
            // Nobody has it, then.
            fs::remove_file(&path).ok();
            write_error(&path, error)
        })
    }

    /// Writes a window, and before it all failures so far: they would be lost with a process that is killed.
    pub(crate) fn write_window(&self, window: &Window) {
        self.flush();
        self.note(self.tell_left_out());
        if let Some(windows) = &self.windows {
            // Somebody may follow the file, and there are few of them.
            self.note(windows.write(window).and_then(|()| windows.flush()));
        }
    }

    pub(crate) fn write_failure(&self, failure: &SampleFailure, stage: Option<&LetterStage>) {
        if let Some(errors) = &self.errors {
            self.note(errors.write(&failure.record));
        }
        if let (Some(sample), Some(stage)) = (failure.dead_letter(), stage) {
            // About its size: bytes become base64. One that turns out longer is still whole, and the next one sees it.
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

    /// Writes the last snapshot, how long the ops of each stage took, and everything still in buffers.
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
        self.note(self.tell_left_out());
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

    /// Writes what a replay came to.
    pub fn write_replay(&self, report: &impl Serialize) -> Result<(), OutputError> {
        self.write_whole(REPLAY, report)
    }

    /// Writes how many letters there was no room for, if they have become more.
    fn tell_left_out(&self) -> Result<(), OutputError> {
        let left_out = self.left_out.load(Ordering::Relaxed);
        if self.left_out_told.swap(left_out, Ordering::Relaxed) == left_out {
            return Ok(());
        }
        self.make()?;
        self.write_whole(LEFT_OUT, &left_out)
    }

    fn note(&self, written: Result<(), OutputError>) {
        if let Err(error) = written {
            self.broken.get_or_init(|| {
                tracing::error!(error = with_causes(&error), "the run's output is not whole");
                error
            });
        }
    }

    /// Writes a file whole or not at all.
    fn write_whole(&self, name: &str, content: &impl Serialize) -> Result<(), OutputError> {
        let (path, part) = (self.folder.join(name), self.folder.join(format!("{name}.part")));
        let write = || -> io::Result<()> {
            let mut file = File::create(&part)?;
            file.write_all(&pretty(content)?)?;
            file.sync_all()?;
            fs::rename(&part, &path)
        };
        write().map_err(|error| {
            // What made the write fail is what the caller has to hear.
            fs::remove_file(&part).ok();
            write_error(&path, error)
        })
    }
}

fn pretty(content: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(content)?;
    text.push(b'\n');
    Ok(text)
}

/// How many letters of the run in `folder` there was no room for.
pub fn letters_left_out(folder: &Path) -> u64 {
    let told = fs::read(folder.join(LEFT_OUT)).ok();
    told.and_then(|told| serde_json::from_slice(&told).ok()).unwrap_or(0)
}

impl Lines {
    fn write(&self, line: &impl Serialize) -> Result<(), OutputError> {
        self.with_file(|file| {
            // Whole: what is in the file while the run goes on ends with a line.
            let mut text = serde_json::to_vec(line)?;
            text.push(b'\n');
            file.write_all(&text)?;
            self.bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
            Ok(())
        })
    }

    fn open(&self) -> Result<(), OutputError> {
        self.with_file(|_| Ok(()))
    }

    fn flush(&self) -> Result<(), OutputError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.as_mut().map_or(Ok(()), |file| file.flush()).map_err(|error| write_error(&self.path, error))
    }

    fn with_file(
        &self,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), OutputError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || -> io::Result<()> {
            if file.is_none() {
                *file = Some(BufWriter::new(File::create(&self.path)?));
            }
            file.as_mut().map_or(Ok(()), write)
        };
        open().map_err(|error| write_error(&self.path, error))
    }
}

fn write_error(path: &Path, error: io::Error) -> OutputError {
    OutputError::Write { path: path.to_owned(), source: Arc::new(error) }
}
