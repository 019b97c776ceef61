//! Tests of cases that occur only in folders: links, special files, and names that are not UTF-8.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_storage::{FolderStore, Keys, MAX_GET_BYTES, Store, StoreError, Version};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::conformance::{self, OBJECTS};
use crate::{folder_with, put};

fn open(root: &Path) -> FolderStore {
    FolderStore::open("data", root).unwrap()
}

async fn listed(store: &FolderStore, prefix: &str) -> Vec<String> {
    let pages: Vec<Keys> = store.list(prefix).try_collect().await.unwrap();
    pages.iter().flat_map(Keys::iter).map(str::to_owned).collect()
}

async fn refusal(store: &FolderStore, key: &str) -> String {
    match store.get(Arc::from(key)).await {
        Err(error @ StoreError::Refused { .. }) => error.to_string(),
        other => panic!("`{key}` gave {other:?}"),
    }
}

#[tokio::test]
async fn a_folder_is_a_store() {
    let (folder, _) = folder_with(OBJECTS);
    conformance::check(&open(folder.path())).await;
}

#[tokio::test]
async fn reads_of_any_length_give_the_bytes_of_the_file_and_long_ones_start_at_a_cache_line() {
    let content: Vec<u8> = (0..9_u32 << 20).map(|at| (at % 251) as u8).collect();
    let (folder, _) = folder_with(&[]);
    put(folder.path(), "long", &content);
    let store = open(folder.path());
    for length in [1, 17_000, 64 << 10, 1 << 20, 8 << 20, (8 << 20) + 1, (9 << 20) - 5] {
        let read = store.get_range(Arc::from("long"), None, 5..5 + length).await.unwrap();
        assert!(*read == content[5..5 + length as usize], "{length}");
        assert!(length < 64 << 10 || read.as_ptr().addr().is_multiple_of(64), "{length}");
    }
}

#[tokio::test]
async fn copies_of_a_file_share_a_part_of_their_tags() {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
    let [one, copy, later] = [0, 0, 1].map(|ms| {
        let (folder, _) = folder_with(&[("x", b"content")]);
        let file = File::options().write(true).open(folder.path().join("x")).unwrap();
        file.set_modified(time + Duration::from_millis(ms)).unwrap();
        folder
    });
    let version = async |root: &Path| open(root).version(Arc::from("x")).await.unwrap();
    let (one, copy, later) =
        (version(one.path()).await, version(copy.path()).await, version(later.path()).await);
    assert_ne!(one, copy);
    assert_eq!(one.copied_tag(), Some("1700000000-123000000"));
    assert_eq!(one.copied_tag(), copy.copied_tag());
    assert_ne!(one.copied_tag(), later.copied_tag());
    let tagged = |tag: &str| Version { size: one.size, tag: Some(tag.into()) };
    let (etag, other) = (tagged("\"5d41402a\""), tagged("\"7d793037\""));
    let larger = Version { size: one.size + 1, ..copy.clone() };
    for (one, other, may_be) in [
        (&one, &copy, true),
        (&tagged("7-1-0"), &tagged("7-2-0"), true),
        (&tagged("7-1-0"), &tagged("8-2-0"), true),
        (&one, &larger, false),
        (&one, &etag, true),
        (&etag, &other, false),
    ] {
        assert_eq!(
            (one.may_be_copy_of(other), other.may_be_copy_of(one)),
            (may_be, may_be),
            "{one:?} {other:?}"
        );
    }
    for tag in ["\"9-8-7\"", "d41d8cd98f00b204e9800998ecf8427e-2", "12", "7-1"] {
        let object = Version { size: 1, tag: Some(tag.into()) };
        assert_eq!(object.copied_tag(), Some(tag));
    }
}

#[tokio::test]
async fn a_folder_reached_through_a_link_is_a_store() {
    let (folder, _) = folder_with(OBJECTS);
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(folder.path(), elsewhere.path().join("link")).unwrap();
    conformance::check(&open(&elsewhere.path().join("link"))).await;
}

#[tokio::test]
async fn no_link_leads_outside() {
    let outside = tempfile::tempdir().unwrap();
    put(outside.path(), "secret", b"secret");
    let (folder, _) = folder_with(&[("inside", b"inside"), ("sub/x", b"x")]);
    let root = folder.path();
    symlink(outside.path().join("secret"), root.join("file")).unwrap();
    symlink(outside.path(), root.join("folder")).unwrap();
    symlink("..", root.join("up")).unwrap();
    symlink("../../inside", root.join("sub/over-the-top")).unwrap();
    symlink(root.join("inside"), root.join("absolute")).unwrap();
    symlink("/", root.join("sub/slash")).unwrap();

    let store = open(root);
    let name = outside.path().file_name().unwrap().to_str().unwrap();
    for key in ["file", "folder/secret", "sub/over-the-top", "sub/slash/etc/passwd"] {
        assert!(refusal(&store, key).await.contains("leads out of the store's folder"), "{key}");
    }
    assert!(refusal(&store, &format!("up/{name}/secret")).await.contains("leads out of the store's folder"));
    assert_eq!(store.get(Arc::from("absolute")).await.unwrap(), "inside");
    assert_eq!(listed(&store, "").await, ["absolute", "inside", "sub/x"]);
    let through_the_link: Result<Vec<Keys>, StoreError> = store.list("folder/").try_collect().await;
    assert!(matches!(through_the_link, Err(StoreError::Refused { .. })));
}

#[tokio::test]
async fn links_that_stay_inside_are_followed() {
    let (folder, _) = folder_with(&[("real/x", b"x"), ("y", b"y")]);
    let root = folder.path();
    symlink("../y", root.join("real/to-y")).unwrap();
    symlink("real", root.join("again")).unwrap();
    let store = open(root);
    assert_eq!(store.get(Arc::from("real/to-y")).await.unwrap(), "y");
    assert_eq!(store.get(Arc::from("again/x")).await.unwrap(), "x");
    let again = ["again/to-y", "again/x"];
    assert_eq!(listed(&store, "").await, [&again[..], &["real/to-y", "real/x", "y"]].concat());
    assert_eq!(listed(&store, "again/").await, ["again/to-y", "again/x"]);
}

#[tokio::test]
async fn circular_links_are_refused_and_listings_end() {
    let (folder, _) = folder_with(&[("sub/x", b"x")]);
    let root = folder.path();
    symlink("two", root.join("one")).unwrap();
    symlink("one", root.join("two")).unwrap();
    symlink(".", root.join("sub/here")).unwrap();
    symlink("../sub", root.join("sub/above")).unwrap();
    let store = open(root);
    assert!(refusal(&store, "one").await.contains("circular links"));
    assert_eq!(listed(&store, "").await, ["sub/x"]);
    assert_eq!(store.get(Arc::from("sub/here/here/above/x")).await.unwrap(), "x");
}

#[tokio::test]
async fn special_files_are_not_objects_and_never_block() {
    let (folder, _) = folder_with(&[("x", b"x")]);
    let root = folder.path();
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _listener = UnixListener::bind(root.join("socket")).unwrap();
    let store = open(root);
    for key in ["pipe", "socket"] {
        assert!(refusal(&store, key).await.contains("only regular files are objects"), "{key}");
    }
    assert_eq!(listed(&store, "").await, ["x"]);
}

#[tokio::test]
async fn names_that_are_not_valid_keys_are_left_out_of_a_listing() {
    let (folder, _) = folder_with(&[("x", b"x")]);
    let root = folder.path();
    std::fs::write(root.join(OsStr::from_bytes(b"bad\xff.jpg")), b"").unwrap();
    symlink("nowhere", root.join("broken")).unwrap();
    let deep: String = vec!["d".repeat(250); 4].join("/");
    put(root, &format!("{deep}/short-enough"), b"");
    put(root, &format!("{deep}/{}", "n".repeat(30)), b"");
    assert_eq!(listed(&open(root), "").await, [format!("{deep}/short-enough"), "x".to_owned()]);
}

#[tokio::test]
async fn a_listing_of_several_pages_is_complete_and_sorted() {
    let (folder, _) = folder_with(&[]);
    let mut expected = BTreeSet::new();
    for number in 0..2_500 {
        let key = format!("{}/{number}", number % 7);
        put(folder.path(), &key, b"");
        expected.insert(key);
    }
    assert!(listed(&open(folder.path()), "").await.into_iter().eq(expected));
}

#[tokio::test]
async fn writes_outside_the_folder_or_over_other_files_are_refused() {
    let outside = tempfile::tempdir().unwrap();
    put(outside.path(), "victim", b"as it was");
    let (folder, _) = folder_with(&[("file", b"x"), ("sub/x", b"x")]);
    let root = folder.path();
    symlink(outside.path(), root.join("out")).unwrap();
    symlink("nowhere", root.join("broken")).unwrap();
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let store = open(root);
    let mut refusals = Vec::new();
    for key in
        ["out/victim", "out/new/x", "broken/x", "file/x", "sub", "pipe", &format!("{}/x", "n".repeat(300))]
    {
        match store.put(Arc::from(key), Bytes::from_static(b"!")).await {
            Err(error @ StoreError::Refused { .. }) => refusals.push(error.to_string()),
            other => panic!("`{key}` gave {other:?}"),
        }
        let new = store.put_new(Arc::from(key), Bytes::from_static(b"!")).await.unwrap_err().to_string();
        assert_eq!(Some(&new), refusals.last());
    }
    let reasons: Vec<&str> = refusals.iter().map(|text| text.split_once(": ").unwrap().1).collect();
    let leads_outside = "it leads out of the store's folder; links on the way to a written object must be relative and stay inside";
    assert_eq!(
        reasons,
        [
            leads_outside,
            leads_outside,
            "a part of it before a `/` is a broken link",
            "a part of it before a `/` names a file, not a folder",
            "a folder with that name exists; only files are objects",
            "it names a pipe, a socket or a device; only regular files are objects",
            "a part of it is longer than the folder's file system allows",
        ]
    );
    assert_eq!(std::fs::read(outside.path().join("victim")).unwrap(), b"as it was");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_link_is_replaced_and_its_target_is_unchanged() {
    let outside = tempfile::tempdir().unwrap();
    put(outside.path(), "victim", b"as it was");
    let (folder, _) = folder_with(&[("real/x", b"x")]);
    let root = folder.path();
    symlink(outside.path().join("victim"), root.join("link")).unwrap();
    symlink("real", root.join("linked")).unwrap();
    let store = open(root);
    for key in ["link", "linked/y"] {
        store.put(Arc::from(key), Bytes::from_static(b"new")).await.unwrap();
        assert_eq!(store.get(Arc::from(key)).await.unwrap(), "new");
    }
    assert_eq!(std::fs::read(outside.path().join("victim")).unwrap(), b"as it was");
    assert_eq!(listed(&store, "").await, ["link", "linked/x", "linked/y", "real/x", "real/y"]);
}

#[tokio::test]
async fn a_write_leaves_no_file_but_its_object() {
    let (folder, _) = folder_with(&[]);
    let root = folder.path();
    // The name of a draft that a process left behind when it died during a write.
    let draft = ".penstock-draft-0123456789abcdef";
    std::fs::write(root.join(draft), b"half").unwrap();
    let store = open(root);
    assert_eq!(listed(&store, "").await, [""; 0]);
    assert!(
        refusal(&store, draft).await.ends_with("the name of an unfinished write, which is not an object")
    );
    store.put(Arc::from("x"), Bytes::from_static(b"whole")).await.unwrap();
    assert!(!store.put_new(Arc::from("x"), Bytes::from_static(b"other")).await.unwrap());
    // This name is too long for a file, so the write fails when the draft is renamed.
    store.put(Arc::from(&*"n".repeat(300)), Bytes::from_static(b"!")).await.unwrap_err();
    assert_eq!(listed(&store, "").await, ["x"]);
    assert_eq!(std::fs::read_dir(root).unwrap().count(), 2);
}

#[tokio::test]
async fn an_object_over_the_limit_of_one_read_is_refused_whole_but_read_in_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let size = MAX_GET_BYTES + 5;
    // Has no blocks on the disk.
    File::create(folder.path().join("huge")).unwrap().set_len(size).unwrap();
    let store = open(folder.path());
    let huge: Arc<str> = Arc::from("huge");
    let whole = store.get(huge.clone()).await.unwrap_err();
    assert_eq!(
        whole.to_string(),
        "object `huge` of store `data` has 2147483653 bytes, but at most 2147483648 are read at once; split it up"
    );
    let range = store.get_range(huge.clone(), None, 0..size).await.unwrap_err();
    assert!(matches!(range, StoreError::TooLarge { .. }), "{range:?}");
    assert_eq!(store.get_range(huge, None, size - 3..size).await.unwrap(), [0; 3][..]);
}

#[test]
fn a_store_opens_existing_folders_only() {
    let (folder, _) = folder_with(&[("x", b"x")]);
    for path in [folder.path().join("x"), folder.path().join("missing")] {
        let fault = FolderStore::open("data", &path).unwrap_err();
        let expected = format!(
            "store `data` cannot open its folder `{}`; check that it exists and is readable",
            path.display()
        );
        assert_eq!(fault.to_string(), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn listings_are_sorted_like_those_of_a_bucket(
        // File names end in `f` and folder names do not, so a folder and a file never have the same path.
        keys in proptest::collection::btree_set("([a0.\u{e4}-]{1,2}[a0-]/){0,3}[aA0.-]{0,2}f", 0..40),
        prefix in "([a0.-]{1,2}[a0-]/)?[a0.-]{0,1}",
    ) {
        let files: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), b"".as_slice())).collect();
        let (folder, _) = folder_with(&files);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let found = runtime.block_on(listed(&open(folder.path()), &prefix));
        let expected: Vec<String> = keys.iter().filter(|key| key.starts_with(&prefix)).cloned().collect();
        prop_assert_eq!(found, expected);
    }
}
