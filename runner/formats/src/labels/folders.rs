//! Class folders of listed keys.

use std::collections::{BTreeMap, BTreeSet};

use penstock_engine::gathered::Gathered;
use penstock_engine::notes::Notes;
use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, MAX_INDEX_BYTES, PackedKeys, Wanted, is_hidden_folder, shown};
use penstock_types::left_out::{FIRST_LEFT_OUT, LeftOutReason};
use penstock_types::resume::Hash;
use penstock_types::run::LabelsRecord;

const MAX_CLASSES: usize = 1 << 16;

/// Maximum number of classes that a record names, and maximum length of these names, in bytes.
const MOST_NAMED: usize = 1000;
const MOST_NAMED_BYTES: usize = 64 << 10;

/// Rule of [`Notes::rules`]: the numbers of classes differ from those that earlier versions gave.
pub const NEW_CLASSES: &str = "class folders without listed keys, and those of all parts of a mixture, have numbers, too; `classes` with \
                               the names that have keys, beside no other folders, restores those of before";

/// Warning about folders that a prefix takes beside the one that it names.
const LONGER_NAMES: &str = "class folders that begin with the whole `prefix`, beside the one of this name; a slash at the end of the prefix \
                            takes that one alone, in a mixture or with `classes`";

/// Names of classes, in the order of their numbers.
#[derive(Clone, Debug)]
pub enum Classes {
    /// The folders below that of the prefix, sorted by their bytes.
    Found,
    /// These names. A folder that is none of them is a fault.
    Given(Vec<String>),
    /// The folders that all sources with the same `SharedClasses` have, sorted by their bytes.
    Shared(SharedClasses),
}

/// Classes of several sources. Each source adds the names that it finds, and waits for those of the others.
#[derive(Clone, Debug)]
pub struct SharedClasses(Gathered<BTreeSet<String>>);

impl SharedClasses {
    pub fn of(sources: usize) -> Self {
        Self(Gathered::of(sources))
    }

    /// Finds the class folders of a source that makes no samples, and adds them.
    pub async fn add(&self, store: BoundedStore, wanted: Wanted) -> Result<(), SourceFault> {
        // The notes are those of samples.
        let wanted = Wanted { notes: Notes::default(), ..wanted };
        let mut below = Below::of(&store, &wanted, root_of(&wanted.prefix)).await?;
        if !below.are_all || below.folders.is_empty() {
            let keys = wanted.list(MAX_INDEX_BYTES, &store, |_| {}).await?;
            below = Below::of_keys(&store, &wanted, &keys, true).await?;
            let with_keys = keys.iter().filter_map(|key| folder_of(&below.root, &key).map(str::to_owned));
            below.folders.extend(with_keys);
        }
        self.0.add(below.folders);
        Ok(())
    }

    /// Adds names, and waits for those of all sources.
    async fn join(&self, names: &BTreeSet<String>) -> Vec<String> {
        self.0.add(names.clone());
        let all: BTreeSet<String> = self.0.all().await.into_iter().flatten().collect();
        all.into_iter().collect()
    }
}

/// Folders below that of a prefix.
struct Below {
    /// Folder that contains the class folders, with a slash at its end; empty for the whole store.
    root: String,
    folders: BTreeSet<String>,
    /// First links that lead out of the store.
    outside: Vec<String>,
    /// True if the store names its folders, also those without listed keys.
    are_all: bool,
    /// True if a folder without any object is among them.
    has_empty: bool,
}

impl Below {
    /// The class folders of listed keys. If the folder of the prefix holds keys and no folders, it is itself a class where the others are
    /// known from `classes` or from other sources.
    async fn of_keys(
        store: &BoundedStore,
        wanted: &Wanted,
        keys: &PackedKeys,
        may_be_class: bool,
    ) -> Result<Self, SourceFault> {
        let root = root_of(&wanted.prefix);
        let below = Self::of(store, wanted, root).await?;
        let are_classes = || !below.folders.is_empty() || !below.outside.is_empty();
        if !may_be_class || root.is_empty() || wanted.prefix != root || keys.is_empty() || are_classes() {
            return Ok(below);
        }
        match keys.iter().any(|key| folder_of(root, &key).is_some()) {
            true => Ok(below),
            false => Self::of(store, wanted, root_of(&root[..root.len() - 1])).await,
        }
    }

    async fn of(store: &BoundedStore, wanted: &Wanted, root: &str) -> Result<Self, SourceFault> {
        let is_class = |name: &String| wanted.hidden || !is_hidden_folder(name);
        let folders = store.folders(root, wanted.links).await?;
        let are_all = folders.is_some();
        let folders = folders.unwrap_or_default();
        Ok(Self {
            root: root.to_owned(),
            folders: folders.names.into_iter().filter(is_class).collect(),
            outside: folders.outside.into_iter().filter(is_class).collect(),
            are_all,
            has_empty: folders.has_empty,
        })
    }
}

/// The classes of keys: each is a folder.
pub(super) struct Folders {
    /// Folder that contains the class folders, with a slash at its end; empty for the whole store.
    root: String,
    /// Names of the classes: the index is the number of the class.
    names: Vec<String>,
    /// Indexes of the first keys of each run of keys of one class, with the number of the class.
    runs: Vec<(u64, u32)>,
}

impl Folders {
    /// Finds the class folders of the listed keys. Returns them and the keys that lie in them.
    pub(super) async fn find(
        store: &BoundedStore,
        wanted: &Wanted,
        keys: PackedKeys,
        classes: &Classes,
        record: &mut LabelsRecord,
    ) -> Result<(Self, PackedKeys), SourceFault> {
        let is_found = matches!(classes, Classes::Found);
        let below = Below::of_keys(store, wanted, &keys, !is_found).await?;
        let fault = |reason| SourceFault::new(format!("store `{}` {reason}", store.name()), None);
        let (with_keys, keys) = with_keys(&below.root, keys, &wanted.notes, record);
        warn_of_longer_names(wanted, &below.root, &with_keys);
        let found: BTreeSet<String> = with_keys.union(&below.folders).cloned().collect();
        let names = match classes {
            Classes::Found => found.iter().cloned().collect(),
            Classes::Given(given) => given.clone(),
            Classes::Shared(shared) => shared.join(&found).await,
        };
        let is_given = matches!(classes, Classes::Given(_));
        check_links(&below, is_given.then_some(&*names)).map_err(fault)?;
        if is_given {
            check_given(&below.root, &found, &names).map_err(fault)?;
        }
        let folders = Self { root: below.root, names, runs: Vec::new() };
        if keys.is_empty() {
            return Err(fault(folders.without_keys(&wanted.prefix, record.without_class)));
        }
        if folders.names.len() > MAX_CLASSES {
            let place = place(&folders.root);
            return Err(fault(format!("has more than {MAX_CLASSES} folders{place}, too many for classes")));
        }
        if !below.has_empty && !is_given {
            let (store, classes) = (store.name(), folders.names.len());
            tracing::info!(
                %store,
                classes,
                "a class without objects is not seen here; `classes` names all classes"
            );
        }
        if !folders.names.iter().eq(&with_keys) {
            wanted.notes.rule(NEW_CLASSES);
        }
        let named = folders.names.iter().scan(0, |bytes, name| {
            *bytes += name.len();
            (*bytes <= MOST_NAMED_BYTES).then(|| name.clone())
        });
        record.classes = named.take(MOST_NAMED).collect();
        record.class_count = folders.names.len() as u64;
        Ok((folders, keys))
    }

    /// Reason for listed keys of which none lies in a folder; the end of a sentence about the store.
    fn without_keys(&self, prefix: &str, count: u64) -> String {
        let remedy = match prefix.strip_suffix('/') {
            Some(class) => format!(
                "; if {} is itself the folder of one class, omit the slash at the end of the prefix: {}",
                shown(prefix),
                shown(class)
            ),
            None => String::new(),
        };
        format!("has no folder{} that the listed keys, {count}, lie in{remedy}", place(&self.root))
    }

    /// Notes the classes of the keys that become samples.
    pub(super) fn number(&mut self, keys: &PackedKeys) {
        let numbers: BTreeMap<&str, u32> = self.names.iter().map(String::as_str).zip(0..).collect();
        for (index, key) in (0..).zip(keys.iter()) {
            let folder = folder_of(&self.root, &key).and_then(|folder| numbers.get(folder));
            let class = *folder.expect("the folder of each kept key is a class");
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

    /// Digest of what `hash` is the digest of, and the names of the classes.
    pub(super) fn digest(&self, hash: Hash) -> Hash {
        self.names
            .iter()
            .fold(hash, |hash, name| hash.with(&(name.len() as u64).to_le_bytes()).with(name.as_bytes()))
    }

    pub(super) fn bytes(&self) -> u64 {
        let names: usize = self.names.iter().map(|name| size_of::<String>() + name.len()).sum();
        (names + size_of_val(&*self.runs)) as u64
    }
}

/// Folders of sorted keys, and the keys that lie in them.
fn with_keys(
    root: &str,
    keys: PackedKeys,
    notes: &Notes,
    record: &mut LabelsRecord,
) -> (BTreeSet<String>, PackedKeys) {
    let (mut names, mut first): (BTreeSet<String>, Vec<String>) = Default::default();
    for key in keys.iter() {
        match folder_of(root, &key) {
            Some(folder) if names.contains(folder) => {}
            Some(folder) => drop(names.insert(folder.to_owned())),
            None => {
                record.without_class += 1;
                if first.len() < FIRST_LEFT_OUT {
                    first.push(key);
                }
            }
        }
    }
    if record.without_class == 0 {
        return (names, keys);
    }
    let kept: PackedKeys = keys.iter().filter(|key| folder_of(root, key).is_some()).collect();
    if !kept.is_empty() {
        notes.leave_out(LeftOutReason::NoClass, record.without_class, first.iter().map(String::as_str));
    }
    (names, kept)
}

/// Checks that no class may be missing because it is a link that is not followed.
fn check_links(below: &Below, given: Option<&[String]>) -> Result<(), String> {
    let is_class = |name: &&String| given.is_none_or(|given| given.contains(name));
    let Some(link) = below.outside.iter().find(is_class) else { return Ok(()) };
    let remedy = match given {
        Some(_) => "",
        None => "; `classes` names the classes if it is none",
    };
    Err(format!(
        "has the link {} in the folder of its classes, which leads out of the store, so that a class may be missing; `--store-links DIR`, \
         in Python `links`, lets it{remedy}",
        shown(&format!("{}{link}", below.root))
    ))
}

/// Checks that all folders are among the classes of the document.
fn check_given(root: &str, found: &BTreeSet<String>, given: &[String]) -> Result<(), String> {
    let given: BTreeSet<&str> = given.iter().map(String::as_str).collect();
    match found.iter().find(|name| !given.contains(name.as_str())) {
        None => Ok(()),
        Some(name) => Err(format!(
            "has the folder {}, which is none of the {} `classes`; add it to them, or move it",
            shown(&format!("{root}{name}/")),
            given.len()
        )),
    }
}

fn place(root: &str) -> String {
    match root {
        "" => String::new(),
        root => format!(" below {}", shown(root)),
    }
}

/// Warns of folders that a prefix takes beside the one that it names.
fn warn_of_longer_names(wanted: &Wanted, root: &str, with_keys: &BTreeSet<String>) {
    let named = wanted.prefix.strip_prefix(root).unwrap_or_default();
    if with_keys.contains(named) {
        let others = with_keys.iter().filter(|name| *name != named);
        others.for_each(|name| wanted.notes.warn(LONGER_NAMES, &format!("{root}{name}/")));
    }
}

/// Folder of a prefix, with a slash at its end.
fn root_of(prefix: &str) -> &str {
    prefix.rfind('/').map_or("", |slash| &prefix[..=slash])
}

/// First folder of `key` below `root`.
fn folder_of<'a>(root: &str, key: &'a str) -> Option<&'a str> {
    key.strip_prefix(root)?.split_once('/').map(|(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use penstock_storage::MemoryStore;

    use super::*;

    fn keys(keys: &[&str]) -> PackedKeys {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    async fn find(
        prefix: &str,
        keys: PackedKeys,
        classes: &Classes,
    ) -> Result<(Folders, PackedKeys, LabelsRecord), String> {
        let store = BoundedStore::new(Arc::new(MemoryStore::new("data")), NonZeroUsize::MIN);
        let (wanted, mut record) =
            (Wanted { prefix: prefix.to_owned(), ..Wanted::default() }, LabelsRecord::default());
        let found = Folders::find(&store, &wanted, keys, classes, &mut record).await;
        let (mut folders, kept) = found.map_err(|fault| fault.to_string())?;
        folders.number(&kept);
        Ok((folders, kept, record))
    }

    #[tokio::test]
    async fn classes_are_the_first_folders_sorted_by_their_bytes_and_other_keys_are_left_out() {
        // Among keys, `a-b/` comes before `a/`; among names, `a` comes before `a-b`.
        let listed = keys(&["t/A/1", "t/a-b/1", "t/a-b/c/2", "t/a/1", "t/readme", "t/\u{e9}/1"]);
        for prefix in ["t/", "t/x"] {
            let (folders, kept, record) = find(prefix, listed.clone(), &Classes::Found).await.unwrap();
            assert_eq!(record.classes, ["A", "a", "a-b", "\u{e9}"]);
            assert_eq!((record.class_count, record.without_class, kept.len()), (4, 1, 5));
            assert_eq!((0..5).map(|index| folders.class_of(index)).collect::<Vec<_>>(), [0, 2, 2, 1, 3]);
        }
        let (all, kept, _) = find("t", listed.clone(), &Classes::Found).await.unwrap();
        assert_eq!((kept.len(), all.names, all.runs), (6, vec!["t".to_owned()], vec![(0, 0)]));
        let given = Classes::Given(["z", "\u{e9}", "a", "A", "a-b"].map(str::to_owned).to_vec());
        let (folders, ..) = find("t/", listed, &given).await.unwrap();
        assert_eq!((0..5).map(|index| folders.class_of(index)).collect::<Vec<_>>(), [3, 4, 4, 2, 1]);
    }

    #[tokio::test]
    async fn keys_without_folders_and_too_many_folders_are_refused() {
        let fault = |prefix: &'static str, keys: PackedKeys| async move {
            find(prefix, keys, &Classes::Found).await.err().unwrap()
        };
        assert_eq!(
            fault("", keys(&["a", "b"])).await,
            "store `data` has no folder that the listed keys, 2, lie in"
        );
        assert_eq!(
            fault("t/", keys(&["t/a"])).await,
            "store `data` has no folder below `t/` that the listed keys, 1, lie in; if `t/` is itself the folder of one class, omit the \
             slash at the end of the prefix: `t`"
        );
        let (folders, ..) = find("t/", keys(&["t/a"]), &Classes::Shared(SharedClasses::of(1))).await.unwrap();
        assert_eq!(
            (&*folders.names, folders.class_of(0)),
            (&["t".to_owned()][..], 0),
            "the folder of the prefix"
        );
        let many = (0..=MAX_CLASSES).map(|number| format!("t/{number:06}/x")).collect();
        assert_eq!(
            fault("t/", many).await,
            "store `data` has more than 65536 folders below `t/`, too many for classes"
        );
        let given = Classes::Given(vec!["b".to_owned()]);
        assert_eq!(
            find("t/", keys(&["t/a/1", "t/b/1"]), &given).await.err().unwrap(),
            "store `data` has the folder `t/a/`, which is none of the 1 `classes`; add it to them, or move it"
        );
    }
}
