//! Class folders of listed keys.

use penstock_storage::{PackedKeys, shown};
use penstock_types::run::LabelsRecord;

/// Maximum number of classes.
const MAX_CLASSES: usize = 1 << 16;

/// Maximum number of classes that a record names, and maximum length of these names, in bytes.
const MOST_NAMED: usize = 1000;
const MOST_NAMED_BYTES: usize = 64 << 10;

/// The classes of keys: each is a folder.
pub(super) struct Folders {
    /// Folder that contains the class folders, with a slash at its end; empty for the whole store.
    root: String,
    /// Names of the classes, sorted by their bytes: the index is the number of the class.
    names: Vec<String>,
    /// Indexes of the first keys of each run of keys of one class, with the number of the class.
    runs: Vec<(u64, u32)>,
}

impl Folders {
    /// Finds the class folders of sorted keys that start with `prefix`. Returns them and the keys that lie in them. The error is the
    /// end of a sentence about the store.
    pub(super) fn below(
        prefix: &str,
        keys: PackedKeys,
        record: &mut LabelsRecord,
    ) -> Result<(Self, PackedKeys), String> {
        let root = prefix.rfind('/').map_or("", |slash| &prefix[..=slash]).to_owned();
        let mut folders = Self { root, names: Vec::new(), runs: Vec::new() };
        let is_in_folder = |key: &String| folder_of(&folders.root, key).is_some();
        record.without_class = keys.iter().filter(|key| !is_in_folder(key)).count() as u64;
        let count = keys.len();
        let keys = match record.without_class {
            0 => keys,
            _ => keys.iter().filter(is_in_folder).collect(),
        };
        for key in keys.iter() {
            // The keys of a folder are neighbours.
            let folder = folder_of(&folders.root, &key).unwrap_or_default();
            if folders.names.last().is_none_or(|last| last != folder) {
                folders.names.push(folder.to_owned());
            }
            if folders.names.len() > MAX_CLASSES {
                return Err(format!(
                    "has more than {MAX_CLASSES} folders{}, too many for classes",
                    folders.place()
                ));
            }
        }
        if folders.names.is_empty() {
            return Err(format!("has no folder{} that the listed keys, {count}, lie in", folders.place()));
        }
        folders.names.sort_unstable();
        folders.names.dedup();
        let named = folders.names.iter().scan(0, |bytes, name| {
            *bytes += name.len();
            (*bytes <= MOST_NAMED_BYTES).then(|| name.clone())
        });
        record.classes = named.take(MOST_NAMED).collect();
        record.class_count = folders.names.len() as u64;
        Ok((folders, keys))
    }

    fn place(&self) -> String {
        match self.root.as_str() {
            "" => String::new(),
            root => format!(" below {}", shown(root)),
        }
    }

    /// Notes the classes of the keys that become samples.
    pub(super) fn number(&mut self, keys: &PackedKeys) {
        for (index, key) in (0..).zip(keys.iter()) {
            let folder = folder_of(&self.root, &key).unwrap_or_default();
            let class = self.names.partition_point(|name| name.as_str() < folder) as u32;
            if self.runs.last().is_none_or(|(_, last)| *last != class) {
                self.runs.push((index, class));
            }
        }
    }

    /// Number of the class of the key at `index`.
    pub(super) fn class_of(&self, index: u64) -> i64 {
        let behind = self.runs.partition_point(|(first, _)| *first <= index);
        behind.checked_sub(1).map_or(0, |run| i64::from(self.runs[run].1))
    }

    pub(super) fn bytes(&self) -> u64 {
        let names: usize = self.names.iter().map(|name| size_of::<String>() + name.len()).sum();
        (names + size_of_val(&*self.runs)) as u64
    }
}

/// First folder of `key` below `root`.
fn folder_of<'a>(root: &str, key: &'a str) -> Option<&'a str> {
    key.strip_prefix(root)?.split_once('/').map(|(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(keys: &[&str]) -> PackedKeys {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    #[test]
    fn classes_are_the_first_folders_sorted_by_their_bytes_and_other_keys_are_left_out() {
        // Among keys, `a-b/` comes before `a/`; among names, `a` comes before `a-b`.
        let listed = keys(&["t/A/1", "t/a-b/1", "t/a-b/c/2", "t/a/1", "t/readme", "t/\u{e9}/1"]);
        for prefix in ["t/", "t/x"] {
            let mut record = LabelsRecord::default();
            let (mut folders, kept) = Folders::below(prefix, listed.clone(), &mut record).unwrap();
            folders.number(&kept);
            assert_eq!(record.classes, ["A", "a", "a-b", "\u{e9}"]);
            assert_eq!((record.class_count, record.without_class, kept.len()), (4, 1, 5));
            assert_eq!((0..5).map(|index| folders.class_of(index)).collect::<Vec<_>>(), [0, 2, 2, 1, 3]);
        }
        let (mut all, kept) = Folders::below("t", listed, &mut LabelsRecord::default()).unwrap();
        all.number(&kept);
        assert_eq!((kept.len(), all.names, all.runs), (6, vec!["t".to_owned()], vec![(0, 0)]));
    }

    #[test]
    fn keys_without_folders_and_too_many_folders_are_refused() {
        let fault = |prefix, keys: PackedKeys| {
            Folders::below(prefix, keys, &mut LabelsRecord::default()).err().unwrap()
        };
        assert_eq!(fault("", keys(&["a", "b"])), "has no folder that the listed keys, 2, lie in");
        assert_eq!(fault("t/", keys(&["t/a"])), "has no folder below `t/` that the listed keys, 1, lie in");
        let many = (0..=MAX_CLASSES).map(|number| format!("t/{number:06}/x")).collect();
        assert_eq!(fault("t/", many), "has more than 65536 folders below `t/`, too many for classes");
    }
}
