//! Tests of links in folders: those that are followed, those that are left out, and hostile ones.

use std::collections::BTreeMap;
use std::fs::{create_dir_all, write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::TryStreamExt;
use penstock_engine::notes::Notes;
use penstock_engine::ports::Source;
use penstock_storage::{
    BoundedStore, DEFAULT_READS, FolderStore, Folders, Keys, ListSource, MAX_INDEX_BYTES, NEW_HIDDEN,
    NEW_LINKS, Store, StoreError, Wanted,
};
use penstock_types::left_out::LeftOutReason;
use penstock_types::spec::{Links, Suffix};
use penstock_types::traversal::TraversalSettings;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{drain, put, wanted};

const HASH: &str = "0123456789abcdef0123456789abcdef01234567";

/// Keys of a listing, and the counts and first names of what was left out.
type Listed = (Vec<String>, BTreeMap<&'static str, (u64, Vec<String>)>);

async fn listed_with(store: &FolderStore, prefix: &str, links: Links) -> Listed {
    let pages: Vec<Keys> = store.list_all(prefix, links).try_collect().await.unwrap();
    let mut left_out = BTreeMap::new();
    for omitted in pages.iter().flat_map(Keys::left_out) {
        let (count, first): &mut (u64, Vec<String>) = left_out.entry(omitted.reason.name()).or_default();
        *count += omitted.count;
        first.extend(omitted.first.iter().cloned());
        first.sort_unstable();
    }
    (pages.iter().flat_map(Keys::iter).map(str::to_owned).collect(), left_out)
}

async fn listed(store: &FolderStore, prefix: &str) -> Listed {
    listed_with(store, prefix, Links::All).await
}

async fn text(store: &FolderStore, key: &str) -> String {
    String::from_utf8(store.get(Arc::from(key)).await.unwrap().to_vec()).unwrap()
}

async fn assert_refused(store: &FolderStore, key: &str) {
    let found = store.get(Arc::from(key)).await;
    assert!(
        matches!(found, Err(StoreError::Refused { .. } | StoreError::NotFound { .. })),
        "`{key}` gave {found:?}"
    );
}

fn open(root: &Path) -> FolderStore {
    FolderStore::open("d", root).unwrap()
}

fn bounded(store: FolderStore) -> BoundedStore {
    BoundedStore::new(Arc::new(store), DEFAULT_READS)
}

/// A class that is a link to a folder of the store.
#[tokio::test]
async fn linked_folders_are_walked_and_circles_end() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    put(root, "pool/cat/0.jpg", b"c");
    put(root, "train/dog/0.jpg", b"d");
    symlink("../pool/cat", root.join("train/cat")).unwrap();
    symlink("..", root.join("train/dog/up")).unwrap();
    symlink(root.join("pool"), root.join("train/dog/all")).unwrap();
    let store = open(root);
    let keys = ["train/cat/0.jpg", "train/dog/0.jpg", "train/dog/all/cat/0.jpg"];
    assert_eq!(listed(&store, "train/").await, (keys.map(str::to_owned).to_vec(), BTreeMap::new()));
    for (key, content) in keys.into_iter().zip(["c", "d", "c"]) {
        assert_eq!(text(&store, key).await, content);
    }
    // A listing of all keys has those of the prefix, and no others that start with it.
    let all = listed(&store, "").await.0;
    assert_eq!(
        all.iter().filter(|key| key.starts_with("train/")).collect::<Vec<_>>(),
        keys.iter().collect::<Vec<_>>()
    );
    let (before, left_out) = listed_with(&store, "train/", Links::Files).await;
    assert_eq!(before, ["train/dog/0.jpg"]);
    assert_eq!(left_out["link"].0, 3);
    let folders = |links| store.folders("train/", links);
    let of = |names: &[&str]| Folders {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        has_empty: true,
        ..Folders::default()
    };
    assert_eq!(folders(Links::All).await.unwrap(), Some(of(&["cat", "dog"])));
    assert_eq!(folders(Links::Files).await.unwrap(), Some(of(&["dog"])));
    assert_eq!(store.folders("none/", Links::All).await.unwrap(), Some(of(&[])));
}

/// The layout of the cache of Hugging Face, with a hash as the name of the blob.
#[tokio::test]
async fn the_cache_of_hugging_face_is_read_without_a_setting() {
    let cache = tempfile::tempdir().unwrap();
    let repository = cache.path().join("datasets--a--b");
    let long = HASH.repeat(2)[..64].to_owned();
    let snapshot = repository.join("snapshots/abc");
    create_dir_all(snapshot.join("data/deep")).unwrap();
    create_dir_all(repository.join("blobs/folder")).unwrap();
    write(repository.join("blobs").join(HASH), "one").unwrap();
    write(repository.join("blobs").join(&long), "two").unwrap();
    symlink(format!("../../blobs/{HASH}"), snapshot.join("t-0.parquet")).unwrap();
    symlink(format!("../../../../blobs/{long}"), snapshot.join("data/deep/t-1.parquet")).unwrap();
    let store = open(&snapshot);
    let keys = ["data/deep/t-1.parquet", "t-0.parquet"].map(str::to_owned).to_vec();
    assert_eq!(listed(&store, "").await, (keys, BTreeMap::new()));
    assert_eq!(
        (text(&store, "t-0.parquet").await, text(&store, "data/deep/t-1.parquet").await),
        ("one".into(), "two".into())
    );
    let below = open(&snapshot.join("data"));
    assert_eq!(text(&below, "deep/t-1.parquet").await, "two");

    // Anything that is not exactly of this form leads out of the store.
    let secret = "f".repeat(40);
    write(cache.path().join("secret"), "secret").unwrap();
    symlink("../../secret", repository.join("blobs").join(&secret)).unwrap();
    create_dir_all(cache.path().join("blobs")).unwrap();
    write(cache.path().join("blobs").join(HASH), "of no repository").unwrap();
    create_dir_all(cache.path().join("other/blobs")).unwrap();
    write(cache.path().join("other/blobs").join(HASH), "of another").unwrap();
    let wrong = [
        format!("../../../blobs/{HASH}"),
        format!("../blobs/{HASH}"),
        format!("../../blobs/./{HASH}"),
        format!("../../blobs//{HASH}"),
        format!("../../blobs/{HASH}/"),
        format!("./../../blobs/{HASH}"),
        format!("../../blobs/{}", &HASH[1..]),
        format!("../../blobs/{}g", &HASH[1..]),
        format!("../../../other/blobs/{HASH}"),
        format!("../../blobs/{secret}"),
        "../../blobs".to_owned(),
        "../../blobs/folder".to_owned(),
        "../../blobs/../../secret".to_owned(),
        repository.join("blobs").join(HASH).to_str().unwrap().to_owned(),
    ];
    for (number, text) in wrong.iter().enumerate() {
        symlink(text, snapshot.join(format!("wrong-{number:02}"))).unwrap();
    }
    let (keys, left_out) = listed(&store, "wrong").await;
    assert_eq!((keys, left_out["link"].0), (Vec::new(), wrong.len() as u64));
    for number in 0..wrong.len() {
        assert_refused(&store, &format!("wrong-{number:02}")).await;
    }
    // Above the revision, links resolve inside the folder, and the layout is not needed.
    let whole = open(&repository);
    assert_eq!(text(&whole, "snapshots/abc/t-0.parquet").await, "one");
    assert_refused(&open(&repository.join("snapshots")), "abc/t-0.parquet").await;
}

#[tokio::test]
async fn links_enter_the_folders_that_the_operator_names_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let (root, pool, private) = ["root", "pool", "private"].map(|name| folder.path().join(name)).into();
    for (folder, file) in [(&root, "x"), (&pool, "cat/0.jpg"), (&private, "secret")] {
        put(folder, file, file.as_bytes());
    }
    symlink("../pool/cat", root.join("cat")).unwrap();
    symlink(pool.join("cat/0.jpg"), root.join("file")).unwrap();
    symlink("../private", root.join("out")).unwrap();
    symlink(&private, pool.join("cat/out")).unwrap();
    symlink("../../root/x", pool.join("cat/back")).unwrap();
    let closed = open(&root);
    let (keys, left_out) = listed(&closed, "").await;
    assert_eq!(keys, ["x"]);
    assert_eq!(left_out["link"], (3, vec!["cat".to_owned(), "file".to_owned(), "out".to_owned()]));
    assert_eq!(closed.folders("", Links::All).await.unwrap().unwrap().outside.len(), 3);
    assert_refused(&closed, "cat/0.jpg").await;

    let open = FolderStore::open_with("d", &root, std::slice::from_ref(&pool)).unwrap();
    let (keys, left_out) = listed(&open, "").await;
    assert_eq!(keys, ["cat/0.jpg", "cat/back", "file", "x"]);
    assert_eq!(left_out["link"], (2, vec!["cat/out".to_owned(), "out".to_owned()]));
    for (key, content) in [("cat/0.jpg", "cat/0.jpg"), ("cat/back", "x"), ("file", "cat/0.jpg")] {
        assert_eq!(text(&open, key).await, content, "{key}");
    }
    for key in ["out/secret", "cat/out/secret", "cat/out"] {
        assert_refused(&open, key).await;
    }
    assert_eq!(listed(&open, "cat/").await.0, ["cat/0.jpg", "cat/back"]);
    let missing = FolderStore::open_with("d", &root, &[folder.path().join("none")]).unwrap_err();
    assert!(missing.to_string().contains("none"), "{missing}");
}

#[tokio::test]
async fn links_by_another_name_of_the_folder_and_over_its_parents_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("real");
    put(&root, "sub/x", b"x");
    symlink(&root, folder.path().join("name")).unwrap();
    symlink(folder.path().join("name/sub/x"), root.join("by-name")).unwrap();
    symlink("../real/sub/../sub/./x", root.join("over")).unwrap();
    symlink("../../real/sub", root.join("sub/here")).unwrap();
    let store = open(&folder.path().join("name"));
    assert_eq!(listed(&store, "").await.0, ["by-name", "over", "sub/x"]);
    assert_eq!((text(&store, "by-name").await, text(&store, "over").await), ("x".to_owned(), "x".to_owned()));
}

#[tokio::test]
async fn hostile_links_lead_nowhere_and_listings_end() {
    let outside = tempfile::tempdir().unwrap();
    put(outside.path(), "secret", b"secret");
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    put(root, "sub/x", b"x");
    let name = outside.path().file_name().unwrap().to_str().unwrap();
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let links = [
        ("a-parent", "..".to_owned()),
        ("b-via-parent", format!("a-parent/{name}/secret")),
        ("c-absolute", outside.path().join("secret").to_str().unwrap().to_owned()),
        ("d-root", "/".to_owned()),
        ("e-proc", "/proc/self/environ".to_owned()),
        ("f-magic", "/proc/self/root".to_owned()),
        ("g-itself", "g-itself".to_owned()),
        ("h-file-as-folder", "sub/x/..".to_owned()),
        ("i-pipe", root.join("pipe").to_str().unwrap().to_owned()),
        ("j-nothing", String::from("sub/none")),
        ("k-prefix-only", format!("{}-not/x", root.to_str().unwrap())),
        ("l-climbs", format!("{}{}", "../".repeat(60), "etc/passwd")),
    ];
    for (name, to) in &links {
        symlink(to, root.join(name)).unwrap();
    }
    // A chain of 40 links ends, a chain of 41 does not.
    for number in 0..41 {
        let to = if number == 0 { "sub/x".to_owned() } else { format!("z-{:02}", number - 1) };
        symlink(root.join(to), root.join(format!("z-{number:02}"))).unwrap();
    }
    let store = open(root);
    let (keys, left_out) = listed(&store, "").await;
    assert_eq!(
        (keys.len(), keys[0].as_str(), keys[1].as_str(), keys[40].as_str()),
        (41, "sub/x", "z-00", "z-39")
    );
    let total: u64 = left_out.values().map(|(count, _)| *count).sum();
    assert_eq!((total, left_out["link"].0), (links.len() as u64 + 2, 8), "{left_out:?}");
    assert_eq!(text(&store, "z-39").await, "x");
    for key in links.iter().map(|(name, _)| *name).chain(["z-40", "f-magic/etc/passwd", "d-root/etc/passwd"])
    {
        assert_refused(&store, key).await;
    }
}

#[tokio::test]
async fn folders_that_lead_to_each_other_end_within_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for number in 0..6 {
        create_dir_all(root.join(format!("{number}"))).unwrap();
    }
    for (from, to) in (0..6).flat_map(|from| (0..6).map(move |to| (from, to))) {
        symlink(format!("../{to}"), root.join(format!("{from}/{to}"))).unwrap();
    }
    put(root, "5/x", b"x");
    let (keys, left_out) = listed(&open(root), "").await;
    // Each way to the folder that visits no folder twice.
    assert_eq!((keys.len(), left_out.len()), (1 + 5 + 5 * 4 + 5 * 4 * 3 + 5 * 4 * 3 * 2 + 5 * 4 * 3 * 2, 0));
}

fn of_links(prefix: &str, suffix: &str, links: Links) -> (Wanted, Notes) {
    let notes = Notes::default();
    (Wanted { links, notes: notes.clone(), ..wanted(prefix, suffix) }, notes)
}

#[tokio::test]
async fn files_under_two_keys_are_counted_if_both_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for file in ["a/0.jpg", "a/1.jpg", "a/2.txt", "b/3.jpg", "pool/c/4.jpg"] {
        put(root, file, b"");
    }
    symlink("../a/0.jpg", root.join("b/same.jpg")).unwrap();
    symlink("../a/2.txt", root.join("b/text.jpg")).unwrap();
    symlink("a", root.join("c")).unwrap();
    symlink("../pool/c", root.join("a/pool")).unwrap();
    let store = bounded(open(root));
    let (wanted, notes) = of_links("", ".jpg", Links::All);
    let keys: Vec<String> = wanted.list(MAX_INDEX_BYTES, &store, |_| {}).await.unwrap().iter().collect();
    let expected = [
        "a/0.jpg",
        "a/1.jpg",
        "a/pool/4.jpg",
        "b/3.jpg",
        "b/same.jpg",
        "b/text.jpg",
        "c/0.jpg",
        "c/1.jpg",
        "c/pool/4.jpg",
        "pool/c/4.jpg",
    ];
    assert_eq!(keys, expected);
    assert_eq!(
        notes.warnings("s"),
        [
            "the source `s`: files listed under two keys: 5 (`a/pool/4.jpg`, `b/same.jpg`, `c/0.jpg`, `c/1.jpg`, `c/pool/4.jpg`)"
        ]
    );
    assert_eq!(notes.rules(), [NEW_LINKS]);
    let (wanted, notes) = of_links("b/", ".jpg", Links::All);
    assert_eq!(wanted.list(MAX_INDEX_BYTES, &store, |_| {}).await.unwrap().len(), 3);
    assert_eq!((notes.warnings("s").len(), notes.rules().len()), (0, 0));
    let (wanted, notes) = of_links("", ".jpg", Links::Files);
    assert_eq!(wanted.list(MAX_INDEX_BYTES, &store, |_| {}).await.unwrap().len(), 6);
    assert_eq!(notes.rules().len(), 0);
}

#[tokio::test]
async fn a_listing_without_keys_names_the_links_or_hidden_folders_that_explain_it() {
    let folder = tempfile::tempdir().unwrap();
    let (root, cache): (PathBuf, PathBuf) =
        (folder.path().join("h/snapshots/abc"), folder.path().join("h/blobs"));
    create_dir_all(&root).unwrap();
    put(&cache, "77", b"");
    symlink("../../blobs/77", root.join("t-0.parquet")).unwrap();
    let store = bounded(open(&root));
    let fault = |wanted: Wanted| {
        let store = store.clone();
        async move { wanted.list(MAX_INDEX_BYTES, &store, |_| {}).await.unwrap_err().to_string() }
    };
    let expected = "store `d` gives no object whose key starts with `t-`: 1 link leads out of the folder: `t-0.parquet`; \
                    `--store-links DIR`, in Python `links`, lets it";
    assert_eq!(fault(wanted("t-", ".parquet")).await, expected);
    let source = ListSource::new(store.clone(), wanted("t-", ".parquet"), TraversalSettings::IN_ORDER);
    assert_eq!(drain(source).await.fault(), expected);
    put(&root, "u/.cache/1.txt", b"");
    put(&root, "u/__MACOSX/2.txt", b"");
    assert_eq!(
        fault(wanted("u/", "")).await,
        "store `d` gives no object whose key starts with `u/`: 2 hidden files (`u/.cache/1.txt`, `u/__MACOSX/2.txt`); \
         `\"hidden\": true` takes them"
    );
}

#[tokio::test]
async fn hidden_folders_behind_the_prefix_are_left_out_and_matching_files_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for file in [
        "t/.ipynb_checkpoints/0.jpg",
        "t/__MACOSX/a/._1.jpg",
        "t/__MACOSX/x.txt",
        "t/a/.x.jpg",
        "t/a/.y/2.jpg",
        "t/a/3.jpg",
        "t/a/n.txt",
        ".h/4.jpg",
    ] {
        put(root, file, b"");
    }
    let store = bounded(open(root));
    let notes = Notes::default();
    let list = |prefix: &str, hidden| {
        let wanted = Wanted { hidden, notes: notes.clone(), ..wanted(prefix, ".jpg") };
        let store = store.clone();
        async move { wanted.list(MAX_INDEX_BYTES, &store, |_| {}).await.unwrap().iter().collect::<Vec<_>>() }
    };
    assert_eq!(list("t/", false).await, ["t/a/.x.jpg", "t/a/3.jpg"]);
    let left_out = notes.left_out();
    let of = |reason| left_out.iter().find(|left_out| left_out.reason == reason).unwrap();
    assert_eq!(of(LeftOutReason::Hidden).count, 3);
    assert_eq!(of(LeftOutReason::Suffix).in_words(), "1 key with another ending (`.txt` 1)");
    assert_eq!(notes.rules(), [NEW_HIDDEN]);
    assert_eq!(list("t/", true).await.len(), 5);
    // A folder that the prefix names is not hidden, with and without its slash.
    assert_eq!(list(".h/", false).await, [".h/4.jpg"]);
    assert_eq!(list(".h", false).await, [".h/4.jpg"]);
    assert_eq!(list("t/a/.y/", false).await, ["t/a/.y/2.jpg"]);
}

/// Endings in both cases, and what was not taken.
#[tokio::test]
async fn several_endings_are_taken_without_case_and_others_are_counted_by_ending() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.jpg", "b.JPG", "c.jpeg", "d.PNG", "e.webp", "notes.txt", "Thumbs.db"] {
        put(folder.path(), &format!("x/{name}"), b"");
    }
    let store = bounded(open(folder.path()));
    let count = |suffix| {
        let (store, notes) = (store.clone(), Notes::default());
        async move {
            let wanted = Wanted { suffix, notes: notes.clone(), ..wanted("x/", "") };
            let keys = wanted.list(MAX_INDEX_BYTES, &store, |_| {}).await.unwrap().len();
            (keys, notes.left_out()[0].in_words())
        }
    };
    let several = [".jpg", ".jpeg", ".png", ".webp"].map(str::to_owned).to_vec();
    assert_eq!(
        count(Suffix::Several(several)).await,
        (5, "2 keys with other endings (`.db` 1, `.txt` 1)".to_owned())
    );
    let (keys, words) = count(Suffix::One(".jpg".to_owned())).await;
    assert_eq!((keys, words.split_once(" (").unwrap().0), (1, "6 keys with other endings"));
}

#[tokio::test]
async fn a_complete_listing_in_order_has_the_digest_of_its_keys() {
    let folder = tempfile::tempdir().unwrap();
    (0..40).for_each(|number| put(folder.path(), &format!("{number:02}"), b""));
    let store = bounded(open(folder.path()));
    let digest = wanted("", "").list(MAX_INDEX_BYTES, &store, |_| {}).await.unwrap().digest();
    let mut source = ListSource::new(store.clone(), wanted("", ""), TraversalSettings::IN_ORDER);
    assert_eq!(source.data().digest, None);
    while source.next().await.unwrap().is_some() {}
    assert_eq!((source.data().count, source.data().digest), (Some(40), Some(digest)));
    let limited = TraversalSettings { limit: Some(10), ..TraversalSettings::IN_ORDER };
    let mut source = ListSource::new(store, wanted("", ""), limited);
    while source.next().await.unwrap().is_some() {}
    assert_eq!((source.data().count, source.data().digest), (None, None));
}
