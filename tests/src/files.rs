//! Files that tests read and write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use crate::programs::{make_data, target};

/// A temporary folder of one test, removed when dropped.
#[derive(Debug)]
pub struct Folder(TempDir);

/// Photos shared by all tests: `count` of the set of seed 1, 500 x 375 pixels, with keys from `000/000000.jpg` on. Created once
/// and kept in the target folder; tests that damage photos copy them first.
pub fn photos() -> &'static Path {
    static PHOTOS: OnceLock<PathBuf> = OnceLock::new();
    PHOTOS.get_or_init(|| {
        let folder = kept("photos-100");
        made(Command::new(make_data()).arg("photos").arg(&folder).args(["--count=100", "--seed=1"]));
        folder
    })
}

/// Reads the lines of an NDJSON file.
pub fn lines<T: DeserializeOwned>(path: &Path) -> Vec<T> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Folder that is kept after the tests; its content is the same in every run.
pub(crate) fn kept(name: &str) -> PathBuf {
    let folder = target().join("tmp/penstock-tests").join(name);
    fs::create_dir_all(&folder).expect("the target folder can be written to");
    folder
}

fn made(command: &mut Command) {
    let output = command.output().expect("make-data runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Folder {
    /// Creates an empty folder.
    pub fn new() -> Self {
        Self(TempDir::new().expect("there is room for temporary files"))
    }

    /// Path of the folder, which is deleted when this value is dropped.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Path of a file in the folder.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file, and creates its parent folders.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(path.parent().unwrap_or(self.path())).expect("folders can be made");
        fs::write(&path, content).expect("files can be written");
        path
    }

    /// Writes a pipeline document.
    pub fn document(&self, document: &Value) -> PathBuf {
        self.write("pipeline.json", document.to_string())
    }

    /// Writes one record per key, with the number of the record in the field `x`, as `records.ndjson`.
    pub fn records<'a>(&self, keys: impl IntoIterator<Item = &'a str>) -> PathBuf {
        let line =
            |(number, key): (usize, &str)| format!("{}\n", serde_json::json!({ "key": key, "x": number }));
        self.write("records.ndjson", keys.into_iter().enumerate().map(line).collect::<String>())
    }

    /// Generates `count` texts in `corpus.ndjson`.
    pub fn texts(&self, count: u64) {
        let file = self.join("corpus.ndjson");
        made(Command::new(make_data()).arg("text").arg(file).args(["--count", &count.to_string()]));
    }

    /// Generates a tokenizer for these texts in `tokenizer.json`.
    pub fn tokenizer(&self) {
        made(Command::new(make_data()).arg("tokenizer").arg(self.join("tokenizer.json")));
    }

    /// Generates `count` sounds of at most three seconds, with keys from `000/000000.wav` on.
    pub fn sounds(&self, count: u64) {
        let count = count.to_string();
        made(Command::new(make_data()).arg("audio").arg(self.path()).args([
            "--most-ms=3000",
            "--count",
            &count,
        ]));
    }

    /// Copies the photos of [`photos`] as new files, so that a test may damage them.
    pub fn copy_photos(&self) {
        for group in fs::read_dir(photos()).expect("the photos were made") {
            let group = group.expect("a folder can be read");
            fs::create_dir_all(self.path().join(group.file_name())).expect("folders can be made");
            for photo in fs::read_dir(group.path()).expect("a folder can be read") {
                let photo = photo.expect("a folder can be read");
                let copy = self.path().join(group.file_name()).join(photo.file_name());
                fs::copy(photo.path(), copy).expect("photos can be copied");
            }
        }
    }
}
