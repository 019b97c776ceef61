use std::fs::{self, Permissions};
use std::io::{Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use tempfile::TempDir;
use wasmtime::{Config, ModuleVersionStrategy};

use super::*;
use crate::sandbox::{code_config, digest_of_engine};

const MODULE: [u8; 32] = [1; 32];

/// A cache that contains the compiled code of a small component.
struct Kept {
    folder: TempDir,
    own: PathBuf,
    engine: Engine,
    digest: [u8; 32],
    code: Vec<u8>,
    entry: PathBuf,
}

fn engine(change: impl FnOnce(&mut Config)) -> Engine {
    let mut config = code_config();
    change(&mut config);
    Engine::new(&config).unwrap()
}

/// Writes into a file of the cache, which is read-only until its owner changes that.
fn overwrite(path: &Path, bytes: &[u8]) {
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
}

fn kept() -> Kept {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(|_| ());
    let digest = digest_of_engine(&engine);
    let code = engine.precompile_component(&wat::parse_str("(component)").unwrap()).unwrap();
    let purpose = Purpose { module: &MODULE, made_for: &digest };
    let cache = Cache::open(folder.path(), 4 << 30).unwrap().unwrap();
    cache.store(purpose, &code);
    assert!(cache.load(&engine, purpose).is_some());
    let own = folder.path().join(DIRECTORY);
    let entry = own.join(purpose.file_name());
    Kept { folder, own, engine, digest, code, entry }
}

impl Kept {
    fn open(&self) -> Cache {
        Cache::open(self.folder.path(), 4 << 30).unwrap().unwrap()
    }

    fn purpose(&self) -> Purpose<'_> {
        Purpose { module: &MODULE, made_for: &self.digest }
    }

    /// Returns true if these bytes are a valid entry.
    fn is_signed(&self, entry: &[u8]) -> bool {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(entry).unwrap();
        file.rewind().unwrap();
        Image::verified(file, &self.open().entry_key(self.purpose())).is_ok()
    }

    /// Returns true if a newly opened cache accepts the entry.
    fn is_accepted(&self) -> bool {
        self.open().load(&self.engine, self.purpose()).is_some()
    }

    /// Asserts that the current entry is refused, and that a new one can replace it.
    fn assert_refused_and_replaced(&self) {
        assert!(!self.is_accepted());
        self.open().store(self.purpose(), &self.code);
        assert!(self.is_accepted());
    }
}

#[test]
fn an_entry_with_any_bit_changed_is_refused() {
    let kept = kept();
    let whole = fs::read(&kept.entry).unwrap();
    assert_eq!(whole.len(), kept.code.len() + SIGNATURE_BYTES);
    assert!(kept.is_signed(&whole));
    // Changes a bit in some bytes of the code, and in each byte of the signature.
    for at in (0..kept.code.len()).step_by(331).chain(kept.code.len() - 1..whole.len()) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(!kept.is_signed(&damaged), "byte {at}");
    }
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    overwrite(&kept.entry, &damaged);
    kept.assert_refused_and_replaced();
}

#[test]
fn an_entry_of_another_length_is_refused() {
    let kept = kept();
    let whole = fs::read(&kept.entry).unwrap();
    for length in (0..64).chain([whole.len() / 2, whole.len() - 1]) {
        assert!(!kept.is_signed(&whole[..length]), "{length} bytes");
    }
    let mut longer = whole.clone();
    longer.push(0);
    assert!(!kept.is_signed(&longer));
    for there in [&whole[..0], &whole[..whole.len() / 2], &longer] {
        overwrite(&kept.entry, there);
        kept.assert_refused_and_replaced();
    }
}

#[test]
fn an_entry_for_another_module_or_engine_is_refused_under_this_name() {
    let kept = kept();
    let cache = kept.open();
    let other = Purpose { module: &[2; 32], ..kept.purpose() };
    cache.store(other, &kept.code);
    fs::rename(kept.own.join(other.file_name()), &kept.entry).unwrap();
    kept.assert_refused_and_replaced();

    let settings: [fn(&mut Config); 3] = [
        |config| _ = config.module_version(ModuleVersionStrategy::Custom("48.0.7".into())).unwrap(),
        |config| _ = config.cranelift_opt_level(wasmtime::OptLevel::None),
        |config| _ = config.epoch_interruption(false),
    ];
    for change in settings {
        let digest = digest_of_engine(&engine(change));
        assert_ne!(digest, kept.digest);
        let other = Purpose { made_for: &digest, ..kept.purpose() };
        assert_ne!(other.file_name(), kept.purpose().file_name());
        cache.store(other, &kept.code);
        fs::rename(kept.own.join(other.file_name()), &kept.entry).unwrap();
        kept.assert_refused_and_replaced();
    }
}

#[test]
fn later_loads_of_an_unchanged_file_map_the_code_that_was_read_first() {
    let kept = kept();
    let (_first, image) = kept.open().load(&kept.engine, kept.purpose()).unwrap();
    let used = |kept: &Kept| fs::metadata(&kept.entry).unwrap().mtime_nsec();
    let first_use = used(&kept);
    // The second engine stands for another sandbox of this process.
    for engine in [&kept.engine, &engine(|_| ())] {
        let (_second, again) = kept.open().load(engine, kept.purpose()).unwrap();
        assert!(Arc::ptr_eq(&image, &again));
    }
    assert_eq!(used(&kept), first_use, "only a load that reads the file records its use");
}

#[test]
fn a_file_that_is_changed_while_its_code_is_held_is_refused() {
    let kept = kept();
    let whole = fs::read(&kept.entry).unwrap();
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    let write: [fn(&Kept, &[u8]); 3] = [
        |kept, bytes| {
            // File systems may count time in ticks of some milliseconds; the last write is in another tick.
            let before = fs::metadata(&kept.entry).unwrap();
            let is_same = |found: &fs::Metadata| {
                (found.ctime(), found.ctime_nsec()) == (before.ctime(), before.ctime_nsec())
            };
            while is_same(&fs::metadata(&kept.entry).unwrap()) {
                overwrite(&kept.entry, bytes);
            }
            fs::File::open(&kept.entry).unwrap().set_modified(before.modified().unwrap()).unwrap();
        },
        |kept, bytes| overwrite(&kept.entry, &[bytes, b"longer"].concat()),
        |kept, bytes| {
            let other = kept.entry.with_extension("other");
            fs::write(&other, bytes).unwrap();
            fs::set_permissions(&other, Permissions::from_mode(0o600)).unwrap();
            fs::rename(other, &kept.entry).unwrap();
        },
    ];
    for change in write {
        let _held = kept.open().load(&kept.engine, kept.purpose()).unwrap();
        change(&kept, &damaged);
        assert!(!kept.is_accepted());
        kept.open().store(kept.purpose(), &kept.code);
        assert!(kept.is_accepted());
    }
}

#[test]
fn held_code_is_not_used_for_another_key_module_or_engine() {
    let (kept, theirs) = (kept(), kept());
    let cache = kept.open();
    let (_held, image) = cache.load(&kept.engine, kept.purpose()).unwrap();
    let (_, file) = cache.folder.file(&kept.purpose().file_name(), MAX_ENTRY_BYTES).unwrap().unwrap();
    let held = |cache: &Cache, purpose| image::held(file, &cache.entry_key(purpose));
    assert!(Arc::ptr_eq(&held(&cache, kept.purpose()).unwrap(), &image));
    assert!(held(&theirs.open(), kept.purpose()).is_none());
    for changed in
        [Purpose { module: &[2; 32], ..kept.purpose() }, Purpose { made_for: &[2; 32], ..kept.purpose() }]
    {
        assert!(held(&cache, changed).is_none());
    }
}

#[test]
fn mapped_code_stays_the_same_when_its_entry_is_replaced() {
    let kept = kept();
    let whole = fs::read(&kept.entry).unwrap();
    let (_held, image) = kept.open().load(&kept.engine, kept.purpose()).unwrap();
    kept.open().store(kept.purpose(), b"other code");
    assert_ne!(fs::read(&kept.entry).unwrap(), whole);
    assert_eq!(fs::read(image.path()).unwrap(), whole);
}

#[test]
fn entries_are_read_only() {
    let kept = kept();
    assert_eq!(fs::metadata(&kept.entry).unwrap().mode() & 0o777, 0o400);
}

#[test]
fn an_entry_signed_with_another_key_is_refused() {
    let (kept, theirs) = (kept(), kept());
    let planted = fs::read(&theirs.entry).unwrap();
    assert_ne!(planted, fs::read(&kept.entry).unwrap());
    overwrite(&kept.entry, &planted);
    kept.assert_refused_and_replaced();
}

#[test]
fn a_digest_is_remembered_only_for_its_upload_and_by_its_cache() {
    let (kept, theirs) = (kept(), kept());
    let (digest, other) = ([3; 32], [4; 32]);
    let mark = kept.open().mark(b"upload");
    assert_eq!(kept.open().digest(&mark), None);
    kept.open().remember(&mark, &digest);
    assert_eq!(kept.open().digest(&kept.open().mark(b"upload")), Some(digest));
    assert_eq!(kept.open().digest(&kept.open().mark(b"upload.")), None);

    let file = kept.own.join(mark.file_name());
    let whole = fs::read(&file).unwrap();
    let their_mark = theirs.open().mark(b"upload");
    assert_ne!(their_mark.file_name(), mark.file_name());
    theirs.open().remember(&their_mark, &other);
    kept.open().remember(&kept.open().mark(b"another upload"), &other);
    let planted = [
        theirs.own.join(their_mark.file_name()),
        kept.own.join(kept.open().mark(b"another upload").file_name()),
    ];
    for planted in planted {
        overwrite(&file, &fs::read(planted).unwrap());
        assert_eq!(kept.open().digest(&mark), None);
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        overwrite(&file, &damaged);
        assert_eq!(kept.open().digest(&mark), None, "byte {at}");
    }
    for length in [0, 31, 32, 63] {
        overwrite(&file, &whole[..length]);
        assert_eq!(kept.open().digest(&mark), None, "{length} bytes");
    }
    overwrite(&file, &whole);
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(kept.open().digest(&mark), None, "others may have written it");
    kept.open().remember(&mark, &digest);
    assert_eq!(kept.open().digest(&mark), Some(digest));
}

#[test]
fn the_oldest_digests_beyond_the_limit_are_removed() {
    let kept = kept();
    let path = |number: usize| kept.own.join(format!("{number}{DIGEST}"));
    for number in 0..=MAX_DIGESTS {
        fs::write(path(number), "").unwrap();
    }
    aged(&path(7), 60);
    kept.open().tidy(4 << 30).unwrap();
    assert!((0..=MAX_DIGESTS).all(|number| path(number).exists() == (number != 7)));
    assert!(kept.is_accepted(), "digests do not count towards the size of the code");
}

#[test]
fn compiled_code_without_a_signature_is_refused() {
    let kept = kept();
    overwrite(&kept.entry, &kept.code);
    kept.assert_refused_and_replaced();
}

#[test]
fn files_that_are_not_regular_files_of_this_user_are_neither_read_nor_waited_for() {
    let kept = kept();
    let whole = fs::read(&kept.entry).unwrap();
    let elsewhere = kept.own.join("elsewhere");
    fs::write(&elsewhere, &whole).unwrap();
    fs::set_permissions(&elsewhere, Permissions::from_mode(0o600)).unwrap();
    let reason = |kept: &Kept| {
        let name = kept.purpose().file_name();
        kept.open().folder.file(&name, MAX_ENTRY_BYTES).unwrap_err().to_string()
    };

    fs::remove_file(&kept.entry).unwrap();
    symlink(&elsewhere, &kept.entry).unwrap();
    assert_eq!(reason(&kept), "it is a link, not a plain file");
    kept.assert_refused_and_replaced();
    assert_eq!(fs::read(&elsewhere).unwrap(), whole, "the target of a link is not changed");

    fs::remove_file(&kept.entry).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &kept.entry,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    assert_eq!(reason(&kept), "it is a pipe, not a plain file");
    kept.assert_refused_and_replaced();

    fs::remove_file(&kept.entry).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(&kept.entry).unwrap();
    assert_eq!(reason(&kept), "it is a socket or a device, not a plain file");
    kept.assert_refused_and_replaced();
    drop(socket);

    fs::set_permissions(&kept.entry, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(reason(&kept), "other users may read or change it (mode 644)");
    kept.assert_refused_and_replaced();

    fs::set_permissions(&kept.entry, Permissions::from_mode(0o600)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&kept.entry).unwrap();
    file.set_len(MAX_ENTRY_BYTES + 1).unwrap(); // a sparse file takes no disk space
    assert_eq!(reason(&kept), "it has 1073741825 bytes, at most 1073741824 are expected");
    kept.assert_refused_and_replaced();
}

#[test]
fn a_directory_in_place_of_an_entry_is_not_changed_and_modules_are_compiled() {
    let kept = kept();
    fs::remove_file(&kept.entry).unwrap();
    fs::create_dir(&kept.entry).unwrap();
    assert!(!kept.is_accepted());
    kept.open().store(kept.purpose(), &kept.code);
    assert!(!kept.is_accepted() && kept.entry.is_dir());
    let temporary = fs::read_dir(&kept.own)
        .unwrap()
        .filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().ends_with(".new"));
    assert_eq!(temporary.count(), 0, "the temporary file is removed");
}

#[test]
fn a_key_that_other_users_could_know_is_replaced_with_all_entries() {
    let kept = kept();
    let key = kept.own.join("key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o400);
    let first = fs::read(&key).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o640)).unwrap();
    kept.assert_refused_and_replaced();
    let second = fs::read(&key).unwrap();
    assert_ne!(first, second);
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o400);

    overwrite(&key, &second[..31]);
    kept.assert_refused_and_replaced();

    fs::remove_file(&key).unwrap();
    symlink("/dev/zero", &key).unwrap();
    kept.assert_refused_and_replaced();
    assert!(fs::symlink_metadata(&key).unwrap().is_file());
}

#[test]
fn processes_that_start_at_once_use_the_same_key() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("new/cache");
    let keys: Vec<[u8; 32]> = std::thread::scope(|scope| {
        let begin = || Cache::open(&cache, 4 << 30).unwrap().unwrap().folder.key(KEY_FILE).unwrap();
        let all: Vec<_> = (0..16).map(|_| scope.spawn(begin)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(keys.iter().all(|key| *key == keys[0]));
    assert_eq!(
        fs::read_dir(cache.join(DIRECTORY)).unwrap().count(),
        1,
        "the directory contains only the key"
    );
}

/// Sets the time of a file's last write to `seconds` ago.
fn aged(path: &Path, seconds: u64) {
    let written = std::time::SystemTime::now() - Duration::from_secs(seconds);
    fs::File::open(path).unwrap().set_modified(written).unwrap();
}

#[test]
fn the_least_recently_used_entries_are_evicted_beyond_the_limit() {
    let kept = kept();
    let cache = kept.open();
    let purpose = |module: &'static [u8; 32]| Purpose { module, ..kept.purpose() };
    let purposes = [kept.purpose(), purpose(&[2; 32]), purpose(&[3; 32])];
    let paths = purposes.map(|purpose| kept.own.join(purpose.file_name()));
    for (purpose, path) in purposes.iter().zip(&paths) {
        cache.store(*purpose, &kept.code);
        aged(path, 7200);
    }
    aged(&paths[1], 9000);
    aged(&kept.own.join("key"), 99_999);
    fs::write(kept.own.join("notes"), "not ours").unwrap();
    let bytes = fs::metadata(&paths[0]).unwrap().len();
    let are_there = || [0, 1, 2].map(|number: usize| paths[number].exists());

    cache.tidy(3 * bytes).unwrap();
    assert_eq!(are_there(), [true, true, true], "all entries fit");
    // Loading makes the entry with the oldest write time the most recently used one.
    assert!(cache.load(&kept.engine, purposes[1]).is_some());
    aged(&paths[0], 8000);
    cache.tidy(3 * bytes - 1).unwrap();
    assert_eq!(are_there(), [false, true, true]);
    cache.tidy(bytes).unwrap();
    assert_eq!(are_there(), [false, true, false]);
    cache.tidy(0).unwrap();
    assert_eq!(are_there(), [false, false, false]);
    assert!(kept.own.join("key").exists() && kept.own.join("notes").exists());
}

#[test]
fn unfinished_files_of_dead_writers_are_removed_by_the_next_write() {
    let kept = kept();
    let [dead, writing] = [".0123456789abcdef.new", ".fedcba9876543210.new"].map(|name| kept.own.join(name));
    fs::write(&dead, "half").unwrap();
    fs::write(&writing, "half").unwrap();
    aged(&dead, 3700);
    aged(&writing, 3500);
    kept.open().store(kept.purpose(), &kept.code);
    assert!(!dead.exists() && writing.exists());
    assert!(kept.is_accepted());
}

#[test]
fn a_directory_that_cannot_be_written_disables_the_cache_without_an_error() {
    // No user, not even root, can create files in `/proc/self/fd`.
    assert!(Cache::open(Path::new("/proc/self/fd"), 4 << 30).unwrap().is_none());
}
