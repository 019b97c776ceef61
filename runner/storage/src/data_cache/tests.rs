use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::set::NotAdmitted;
use super::*;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self, bytes: u64) -> Arc<DataCache> {
        DataCache::open(self.0.path(), CacheLimits { bytes: Some(bytes), keep_free: 0 }).unwrap()
    }

    fn set(&self, name: &str) -> PathBuf {
        self.0.path().join("data/sets").join(name)
    }
}

fn key(number: u64) -> EntryKey {
    EntryKey(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

fn payload(number: u64, bytes: usize) -> Bytes {
    let mut payload = vec![0; bytes];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut payload);
    payload.into()
}

fn admit(set: &Arc<Set>, number: u64, bytes: usize) -> Result<(), NotAdmitted> {
    let room = Arc::<Room>::default();
    let admitted = set.admit(key(number), 1, payload(number, bytes), None, &room);
    assert_eq!(room.wait(LONG), 0);
    admitted
}

#[test]
fn entries_are_found_by_those_who_open_the_folder_later() {
    let folder = Folder::new();
    let numbers = 0..40;
    {
        let cache = folder.open(64 * MIB);
        let set = cache.set("a", "objects of a").unwrap();
        for number in numbers.clone() {
            admit(&set, number, number as usize * 3001).unwrap();
            assert_eq!(set.read(&key(number)), Found::Entry(payload(number, number as usize * 3001)));
        }
    }
    let cache = folder.open(64 * MIB);
    let set = cache.set("a", "").unwrap();
    for number in numbers {
        assert_eq!(set.read(&key(number)), Found::Entry(payload(number, number as usize * 3001)));
    }
    assert_eq!(set.read(&key(40)), Found::Missing);
    assert_eq!(cache.set("b", "").unwrap().read(&key(1)), Found::Missing);
    assert_eq!(cache.verify("a").unwrap(), (40, 0));
    assert_eq!(cache.sets().unwrap().iter().find(|set| set.name == "a").unwrap().about, "objects of a");
    for path in [folder.0.path().join("data"), folder.set("a")] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn a_full_folder_keeps_what_is_in_use_and_takes_no_more() {
    let folder = Folder::new();
    let cache = folder.open(MIB);
    let set = cache.set("a", "").unwrap();
    let admitted =
        (0..100).take_while(|number| admit(&set, *number, 50_000).is_ok() && set.contains(&key(*number)));
    let admitted = admitted.count() as u64;
    assert!((18..=20).contains(&admitted), "{admitted} entries of 50 kB in 1 MiB");
    assert_eq!(admit(&set, 200, 50_000), Err(NotAdmitted::Stopped(Stopped::Full)));
    (0..admitted).for_each(|number| assert!(set.contains(&key(number))));
    assert!(cache.used().unwrap() <= MIB);
}

#[test]
fn sets_that_nobody_uses_make_room_the_oldest_first() {
    let folder = Folder::new();
    let cache = folder.open(MIB);
    for (name, used) in [("middle", 200), ("oldest", 100), ("newest", 300)] {
        let set = cache.set(name, "").unwrap();
        admit(&set, 0, 300_000).unwrap();
        drop(set);
        let file = fs::File::open(folder.set(name).join(IN_USE)).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(used)).unwrap();
    }
    let names = || -> Vec<String> { cache.sets().unwrap().into_iter().map(|set| set.name).collect() };
    let set = cache.set("new", "").unwrap();
    admit(&set, 1, 300_000).unwrap();
    assert_eq!(names(), ["middle", "newest", "new"]);
    let held = cache.set("middle", "").unwrap();
    admit(&set, 2, 300_000).unwrap();
    assert_eq!(held.read(&key(0)), Found::Entry(payload(0, 300_000)));
    assert_eq!(names().len(), 2, "a set in use stays: {:?}", names());
    assert!(!cache.remove("middle").unwrap() && !cache.remove("new").unwrap());
    drop((held, set));
    assert!(cache.remove("middle").unwrap() && cache.remove("new").unwrap());
    assert!(names().is_empty());
}

#[test]
fn space_that_is_to_stay_free_stays_free() {
    let folder = Folder::new();
    let free = PrivateFolder::open(folder.0.path()).unwrap().free_bytes().unwrap();
    let limits = CacheLimits { bytes: Some(u64::MAX), keep_free: free.saturating_mul(2) };
    let cache = DataCache::open(folder.0.path(), limits).unwrap();
    let set = cache.set("a", "").unwrap();
    admit(&set, 0, 10).unwrap();
    assert_eq!(admit(&set, 1, 10), Err(NotAdmitted::Stopped(Stopped::DiskFull)));
    assert_eq!(set.read(&key(0)), Found::Missing);
}

#[test]
fn no_byte_of_an_entry_can_change_unnoticed() {
    let folder = Folder::new();
    let cache = folder.open(64 * MIB);
    let set = cache.set("a", "").unwrap();
    admit(&set, 0, 100).unwrap();
    admit(&set, 1, 100).unwrap();
    drop((set, cache));
    for (file, bytes) in [("0.data", 132), ("0.rows", 64)] {
        let open = || OpenOptions::new().read(true).write(true).open(folder.set("a").join(file)).unwrap();
        for at in 0..bytes {
            let mut byte = [0];
            open().read_exact_at(&mut byte, at).unwrap();
            open().write_all_at(&[byte[0] ^ 1 << (at % 8)], at).unwrap();
            let cache = folder.open(64 * MIB);
            let set = cache.set("a", "").unwrap();
            assert!(matches!(set.read(&key(0)), Found::Missing | Found::Damaged), "byte {at} of {file}");
            assert_eq!(set.damaged(), 1, "byte {at} of {file}");
            assert_eq!(set.read(&key(1)), Found::Entry(payload(1, 100)));
            assert_eq!(cache.verify("a").unwrap(), (1, 1));
            open().write_all_at(&byte, at).unwrap();
        }
    }
}

#[test]
fn an_entry_replaces_a_damaged_one() {
    let folder = Folder::new();
    let cache = folder.open(64 * MIB);
    let set = cache.set("a", "").unwrap();
    admit(&set, 0, 100).unwrap();
    drop(set);
    OpenOptions::new()
        .write(true)
        .open(folder.set("a").join("0.data"))
        .unwrap()
        .write_all_at(&[0; 50], 0)
        .unwrap();
    let set = cache.set("a", "").unwrap();
    assert_eq!(set.read(&key(0)), Found::Damaged);
    admit(&set, 0, 100).unwrap();
    assert_eq!(set.read(&key(0)), Found::Entry(payload(0, 100)));
    drop((set, cache));
    let cache = folder.open(64 * MIB);
    assert_eq!(cache.set("a", "").unwrap().read(&key(0)), Found::Entry(payload(0, 100)));
}

#[test]
fn files_that_others_planted_are_not_used() {
    let folder = Folder::new();
    let outside = folder.0.path().join("precious");
    fs::write(&outside, [7; 1000]).unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o600)).unwrap();
    let plant: [(&str, &dyn Fn(PathBuf)); 4] = [
        ("a link", &|path| symlink(&outside, path).unwrap()),
        ("another name of a file", &|path| fs::hard_link(&outside, path).unwrap()),
        ("a folder", &|path| fs::create_dir(path).unwrap()),
        ("a file of everyone", &|path| {
            fs::write(&path, [1; 640]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        }),
    ];
    for (what, plant) in plant {
        for file in ["0.data", "0.rows"] {
            let cache = folder.open(64 * MIB);
            drop(cache.set("a", "").unwrap());
            plant(folder.set("a").join(file));
            let set = cache.set("a", "").unwrap();
            admit(&set, 0, 100).unwrap();
            assert_eq!(set.read(&key(0)), Found::Missing, "{what} as {file}");
            let stopped = admit(&set, 1, 100);
            assert!(
                matches!(stopped, Err(NotAdmitted::Stopped(Stopped::Failed(_)))),
                "{what} as {file}: {stopped:?}"
            );
            drop((set, cache));
            fs::remove_dir_all(folder.set("a")).unwrap();
        }
    }
    assert_eq!(fs::read(&outside).unwrap(), [7; 1000]);
}

#[test]
fn entries_that_were_made_with_another_key_are_not_used() {
    let (folder, other) = (Folder::new(), Folder::new());
    for folder in [&folder, &other] {
        let cache = folder.open(64 * MIB);
        let set = cache.set("a", "").unwrap();
        admit(&set, u64::from(folder.0.path() == other.0.path()), 100).unwrap();
    }
    for file in ["0.data", "0.rows"] {
        fs::copy(other.set("a").join(file), folder.set("a").join(file)).unwrap();
    }
    let cache = folder.open(64 * MIB);
    let set = cache.set("a", "").unwrap();
    assert_eq!((set.read(&key(0)), set.read(&key(1)), set.damaged()), (Found::Missing, Found::Missing, 1));
}

#[test]
fn a_second_writer_has_a_segment_of_its_own_until_the_first_ends() {
    let folder = Folder::new();
    let cache = folder.open(64 * MIB);
    // As another process would open it.
    let other = folder.open(65 * MIB);
    let sets = [cache.set("a", "").unwrap(), other.set("a", "").unwrap()];
    for number in 0..20 {
        admit(&sets[number as usize % 2], number, 1000).unwrap();
    }
    for set in &sets {
        set.refresh();
        (0..20).for_each(|number| assert_eq!(set.read(&key(number)), Found::Entry(payload(number, 1000))));
    }
    let segments = || {
        fs::read_dir(folder.set("a"))
            .unwrap()
            .filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|end| end == "data"))
            .count()
    };
    assert_eq!(segments(), 2);
    drop(sets);
    let reserved = fs::metadata(folder.set("a").join("0.data")).unwrap();
    assert_eq!(reserved.size(), 10 * 1032, "what was reserved in vain is freed");
    let set = cache.set("a", "").unwrap();
    admit(&set, 20, 1000).unwrap();
    assert_eq!(segments(), 2);
    assert_eq!(cache.verify("a").unwrap(), (21, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn files_that_end_anywhere_have_whole_entries_only(
        sizes in proptest::collection::vec(0_usize..300, 1..12), data in 0.0..1.0, rows in 0.0..1.0,
    ) {
        let folder = Folder::new();
        {
            let cache = folder.open(64 * MIB);
            let set = cache.set("a", "").unwrap();
            for (number, bytes) in (0..).zip(&sizes) {
                admit(&set, number, *bytes).unwrap();
            }
        }
        for (file, share) in [("0.data", data), ("0.rows", rows)] {
            let file = OpenOptions::new().write(true).open(folder.set("a").join(file)).unwrap();
            let bytes = file.metadata().unwrap().len();
            file.set_len((bytes as f64 * share) as u64).unwrap();
        }
        let cache = folder.open(64 * MIB);
        let set = cache.set("a", "").unwrap();
        for (number, bytes) in (0..).zip(&sizes) {
            let found = set.read(&key(number));
            prop_assert!(found == Found::Entry(payload(number, *bytes)) || !matches!(found, Found::Entry(_)));
            admit(&set, number, *bytes).unwrap();
        }
        for (number, bytes) in (0..).zip(&sizes) {
            prop_assert_eq!(set.read(&key(number)), Found::Entry(payload(number, *bytes)));
        }
    }
}
