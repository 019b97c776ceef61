//! Reads samples from files in the same form as a run.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::item::{Origin, Sample, Value};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_engine::typed::Typing;
use penstock_formats::{RECORD_CURES, RecordFormat, RecordSource, Shards};
use penstock_storage::{BoundedStore, DEFAULT_READS, FolderStore, ListSource, OpenFault, Wanted};
use penstock_types::traversal::TraversalSettings;

pub const MAX_INPUT_SAMPLES: usize = 10_000;
/// Maximum size of all samples, in bytes.
pub const MAX_INPUT_BYTES: u64 = 1 << 30;

/// Suffixes of files whose lines are samples.
const RECORDS: [&str; 2] = [".ndjson", ".jsonl"];

/// Ends of compressed files behind these.
const COMPRESSED: [&str; 2] = [".gz", ".zst"];

#[derive(Clone, Debug)]
pub struct FileField {
    pub name: String,
    /// Set for text, unset for bytes.
    pub is_text: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("cannot read `{}`", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot read `{}`", .path.display())]
    Open { path: PathBuf, source: OpenFault },
    /// The listing of a folder, or the lines of a file, cannot be read.
    #[error("`{}`", .path.display())]
    Source { path: PathBuf, source: SourceFault },
    #[error("`{}` is not UTF-8 text (invalid byte {byte}); omit `--text` to pass the file as bytes", .path.display())]
    NotText {
        path: PathBuf,
        /// Position of the first invalid byte, from 1.
        byte: usize,
    },
    /// The input is larger than a trial accepts.
    #[error(
        "the input has more than {MAX_INPUT_SAMPLES} samples or {} MiB; pass fewer, and run a pipeline on the rest",
        MAX_INPUT_BYTES >> 20
    )]
    TooMany,
}

/// Reads the samples of files and folders, in order. A line of an NDJSON file (`.ndjson`, `.jsonl`, also with `.gz` or `.zst`) is a sample
/// as from the source `records`; any other file is one sample as from `fetch`, with its content in `field`. A folder means all files in it,
/// sorted by key.
pub async fn read_samples(paths: &[PathBuf], field: &FileField) -> Result<Vec<Sample>, InputError> {
    let mut read = Samples { samples: Vec::new(), bytes: 0, field };
    for path in paths {
        let unreadable = |source| InputError::Read { path: path.clone(), source };
        // A link to a file is resolved first, since a store of the link's folder would not follow the link out of the folder.
        let place = fs::canonicalize(path).map_err(unreadable)?;
        if place.is_dir() {
            read.folder(path, &place).await?;
        } else {
            read.file(path, &path.to_string_lossy(), &place).await?;
        }
    }
    Ok(read.samples)
}

struct Samples<'a> {
    samples: Vec<Sample>,
    bytes: u64,
    field: &'a FileField,
}

impl Samples<'_> {
    async fn folder(&mut self, path: &Path, place: &Path) -> Result<(), InputError> {
        let mut source = ListSource::new(store(path, place)?, Wanted::default(), TraversalSettings::IN_ORDER);
        while let Some(listed) = next(&mut source, path).await? {
            for sample in listed {
                self.file(&path.join(&*sample.key), &sample.key, &place.join(&*sample.key)).await?;
            }
        }
        Ok(())
    }

    /// Reads the file at `place`, the resolved form of the `path` that the user named.
    async fn file(&mut self, path: &Path, key: &str, place: &Path) -> Result<(), InputError> {
        let plain = COMPRESSED.iter().find_map(|end| key.strip_suffix(end)).unwrap_or(key);
        if RECORDS.iter().any(|end| plain.ends_with(end)) {
            return self.records(path, place).await;
        }
        let unreadable = |source| InputError::Read { path: path.to_owned(), source };
        let size = fs::metadata(place).map_err(unreadable)?.len();
        if self.bytes.saturating_add(size) > MAX_INPUT_BYTES {
            return Err(InputError::TooMany);
        }
        let content = fs::read(place).map_err(unreadable)?;
        let value = if self.field.is_text {
            Value::Text(String::from_utf8(content).map_err(|error| InputError::NotText {
                path: path.to_owned(),
                byte: error.utf8_error().valid_up_to() + 1,
            })?)
        } else {
            Value::Blob(Bytes::from(content))
        };
        let mut sample = Sample::new(key, Origin::default());
        sample.set(self.field.name.as_str(), value);
        self.push(sample)
    }

    async fn records(&mut self, path: &Path, place: &Path) -> Result<(), InputError> {
        let (Some(folder), Some(name)) = (place.parent(), place.file_name().and_then(|name| name.to_str()))
        else {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "its name is not UTF-8");
            return Err(InputError::Read { path: path.to_owned(), source });
        };
        let objects = Shards::Keys(vec![Arc::from(name)]);
        let settings = TraversalSettings::IN_ORDER;
        let (format, typing) =
            (RecordFormat::lines(BTreeMap::new()), Typing { cures: RECORD_CURES, ..Typing::default() });
        let mut source = RecordSource::new(store(path, folder)?, objects, format, settings, typing);
        while let Some(records) = next(&mut source, path).await? {
            records.into_iter().try_for_each(|sample| self.push(sample))?;
        }
        Ok(())
    }

    fn push(&mut self, sample: Sample) -> Result<(), InputError> {
        self.bytes = self.bytes.saturating_add(sample.bytes());
        if self.samples.len() == MAX_INPUT_SAMPLES || self.bytes > MAX_INPUT_BYTES {
            return Err(InputError::TooMany);
        }
        self.samples.push(sample);
        Ok(())
    }
}

fn store(path: &Path, folder: &Path) -> Result<BoundedStore, InputError> {
    let open = |source| InputError::Open { path: path.to_owned(), source };
    Ok(BoundedStore::new(Arc::new(FolderStore::open("input", folder).map_err(open)?), DEFAULT_READS))
}

async fn next(source: &mut dyn Source, path: &Path) -> Result<Option<Vec<Sample>>, InputError> {
    match source.next().await {
        Ok(Some(Produced::Samples(samples))) => Ok(Some(samples.into_kept())),
        Ok(Some(Produced::EpochEnd)) => Ok(Some(Vec::new())),
        Ok(None) => Ok(None),
        Err(source) => Err(InputError::Source { path: path.to_owned(), source }),
    }
}
