//! Generation of a folder of photos.

use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Builder};

use crate::fault::WriteFault;
use crate::photo::{PhotoSettings, note, photo};

/// Maximum number of photos in one set: more would need longer names, which sort differently.
pub const MOST_PHOTOS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Number of photos written.
    pub written: u64,
    /// Number of existing photos, made from the same seed with the same settings.
    pub kept: u64,
}

/// Path of the photo number `index` in its folder: 1,000 photos to a subfolder, sorted by name.
pub fn photo_path(index: u64) -> PathBuf {
    PathBuf::from(format!("{:03}/{index:06}.jpg", index / 1000))
}

/// Creates the photos `0..count` of the set with this `seed`, on all cores. A photo whose embedded note has the same seed and
/// settings is kept, so a second call is quick; other files are not touched. Each file is written atomically.
pub fn write_photos(
    folder: &Path,
    seed: u64,
    count: u64,
    settings: &PhotoSettings,
) -> Result<Made, WriteFault> {
    let next = AtomicU64::new(0);
    let work = || -> Result<Made, WriteFault> {
        let mut made = Made { written: 0, kept: 0 };
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(made);
            }
            let path = folder.join(photo_path(index));
            if is_made_so(&path, &note(seed, index, settings)) {
                made.kept += 1;
                continue;
            }
            let jpeg = photo(seed, index, settings)?;
            write_whole(&path, &jpeg)?;
            made.written += 1;
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|number| Builder::new().name(format!("photos/{number}")).spawn_scoped(scope, work))
            .collect::<io::Result<_>>()
            .map_err(|error| WriteFault::Thread { reason: error.to_string() })?;
        let mut made = Made { written: 0, kept: 0 };
        for thread in threads {
            let reason = "it panicked, which is a bug of make-data".to_owned();
            let share = thread.join().map_err(|_| WriteFault::Thread { reason })??;
            made.written += share.written;
            made.kept += share.kept;
        }
        Ok(made)
    })
}

/// True if the file exists and contains `note` in its first segments.
fn is_made_so(path: &Path, note: &[u8]) -> bool {
    /// Number of bytes to read, enough for the note: it follows the first segment, which ends at byte 20.
    const LOOKED_AT: u64 = 256;
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut start));
    read.is_ok() && start.windows(note.len()).any(|found| found == note)
}

/// Writes a temporary file and renames it, so that a concurrent listing of the folder shows no incomplete photo. Creates the folder.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), WriteFault> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(WriteFault::at(folder))?;
    }
    let beside = path.with_added_extension("part");
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    written.map_err(WriteFault::at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: PhotoSettings = PhotoSettings { width: 40, height: 30, quality: 50 };

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_second_call_keeps_photos_with_the_same_settings() {
        let folder = tempfile::tempdir().unwrap();
        let write = |seed, count, settings| write_photos(folder.path(), seed, count, &settings).unwrap();
        assert_eq!(write(1, 5, SMALL), Made { written: 5, kept: 0 });
        assert_eq!(names(&folder.path().join("000"))[..2], ["000000.jpg", "000001.jpg"]);
        assert_eq!(write(1, 7, SMALL), Made { written: 2, kept: 5 });
        assert_eq!(names(&folder.path().join("000")).len(), 7, "nothing but photos is left");
        fs::write(folder.path().join(photo_path(3)), b"").unwrap();
        assert_eq!(write(1, 7, SMALL), Made { written: 1, kept: 6 });
        assert_eq!(fs::read(folder.path().join(photo_path(3))).unwrap(), photo(1, 3, &SMALL).unwrap());
        assert_eq!(write(2, 7, SMALL).written, 7);
        assert_eq!(write(2, 7, PhotoSettings { quality: 51, ..SMALL }).written, 7);
    }

    #[test]
    fn names_sort_as_numbers_do() {
        assert_eq!(photo_path(123), Path::new("000/000123.jpg"));
        assert_eq!(photo_path(MOST_PHOTOS - 1), Path::new("999/999999.jpg"));
    }
}
