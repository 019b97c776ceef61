//! Tests of the cache of compiled modules.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use penstock_wasm::{Compilation, Sandbox, SandboxError, SandboxSettings};
use serde_json::json;

use crate::support::{apply, build, guest, sample, samples, settings};

fn sandbox(cache: &Path) -> Sandbox {
    Sandbox::new(settings_of(Some(cache), 4)).unwrap()
}

fn settings_of(cache: Option<&Path>, instances: u32) -> SandboxSettings {
    SandboxSettings { cache_dir: cache.map(Into::into), instances, ..SandboxSettings::default() }
}

/// Lists the compiled modules in a cache.
fn entries(folder: &Path) -> Vec<PathBuf> {
    files(folder, "code")
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.join("compiled")).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|found| found == extension)).collect()
}

/// Puts another file that only this user may access in the place of a file of the cache.
fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("replacement");
    fs::write(&new, bytes).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn a_module_is_compiled_once_and_then_read_from_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("new/cache");
    let bytes = guest("misbehaving");
    assert_eq!(sandbox(&cache).load(&bytes).unwrap().compilation(), Compilation::Compiled);
    assert_eq!(mode(&cache.join("compiled")), 0o700);
    assert_eq!(entries(&cache).len(), 1);
    let sandbox = sandbox(&cache);
    let again = sandbox.load(&bytes).unwrap();
    assert_eq!(again.compilation(), Compilation::Cached);
    let other = format!("sha256:{}", "0".repeat(64));
    let known = [again.digest(), &other, "sha256:0", ""].map(|digest| sandbox.is_compiled(digest));
    assert_eq!(known, [true, false, false, false]);
    let mut op = build(&again.stage(settings(json!({ "how": "good" }))));
    assert_eq!(samples(apply(&mut *op, sample("a", 0))), [sample("a", 0)]);
}

#[test]
fn the_size_of_the_cache_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    let entry_bytes = |name: &str| {
        let (own, bytes) = (tempfile::tempdir().unwrap(), guest(name));
        sandbox(own.path()).load(&bytes).unwrap();
        fs::metadata(&entries(own.path())[0]).unwrap().len()
    };
    let cache_bytes = entry_bytes("batch").max(entry_bytes("misbehaving"));
    let small = Sandbox::new(SandboxSettings { cache_bytes, ..settings_of(Some(folder.path()), 4) }).unwrap();
    for name in ["batch", "misbehaving", "batch"] {
        let module = small.load(&guest(name)).unwrap();
        assert_eq!(module.compilation(), Compilation::Compiled, "{name}");
        assert!(entries(folder.path()).len() == 1 && small.is_compiled(module.digest()));
    }
}

#[test]
fn an_unusable_entry_is_compiled_again_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = guest("batch");
    sandbox(folder.path()).load(&bytes).unwrap();
    let entry = entries(folder.path()).remove(0);
    let whole = fs::read(&entry).unwrap();
    for broken in [&b""[..], b"not code", &whole[..whole.len() / 2]] {
        replace(&entry, broken);
        let sandbox = sandbox(folder.path());
        assert_eq!(sandbox.load(&bytes).unwrap().compilation(), Compilation::Compiled);
        assert_eq!(sandbox.load(&bytes).unwrap().compilation(), Compilation::Cached);
        assert_eq!(entries(folder.path()), [entry.as_path()]);
    }
}

#[test]
fn a_missing_or_unusable_digest_is_computed_and_stored_again() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = guest("batch");
    let digest = sandbox(folder.path()).load(&bytes).unwrap().digest().to_owned();
    let file = files(folder.path(), "digest").remove(0);
    let whole = fs::read(&file).unwrap();
    for broken in [None, Some(vec![0; whole.len()])] {
        match broken {
            None => fs::remove_file(&file).unwrap(),
            Some(bytes) => replace(&file, &bytes),
        }
        let again = sandbox(folder.path()).load(&bytes).unwrap();
        assert_eq!((again.compilation(), again.digest()), (Compilation::Cached, &*digest));
        assert_eq!(fs::read(&file).unwrap(), whole);
    }
    assert_eq!(files(folder.path(), "digest"), [file]);
}

#[test]
fn a_replaced_entry_is_compiled_again_while_the_code_in_use_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = guest("misbehaving");
    sandbox(folder.path()).load(&bytes).unwrap();
    let used = sandbox(folder.path()).load(&bytes).unwrap();
    assert_eq!(used.compilation(), Compilation::Cached);
    let entry = entries(folder.path()).remove(0);
    let broken = vec![0; fs::metadata(&entry).unwrap().len() as usize / 2];
    replace(&entry, &broken);
    assert_eq!(sandbox(folder.path()).load(&bytes).unwrap().compilation(), Compilation::Compiled);
    let mut op = build(&used.stage(settings(json!({ "how": "good" }))));
    assert_eq!(samples(apply(&mut *op, sample("a", 0))), [sample("a", 0)]);
}

#[test]
fn a_cache_is_closed_to_other_users_without_changing_its_parent_folder() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("compiled");
    fs::create_dir(&own).unwrap();
    for open in [folder.path(), &own] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
    }
    sandbox(folder.path());
    assert_eq!((mode(folder.path()), mode(&own)), (0o777, 0o700));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_file_or_a_link_is_refused_as_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let [link_within, file_within] = ["a", "b"].map(|name| folder.path().join(name));
    for outer in [&link_within, &file_within] {
        fs::create_dir(outer).unwrap();
    }
    std::os::unix::fs::symlink(folder.path(), link_within.join("compiled")).unwrap();
    fs::write(file_within.join("compiled"), "").unwrap();
    for cache in [file, link_within, file_within] {
        let refused = Sandbox::new(settings_of(Some(&cache), 1));
        assert!(matches!(refused, Err(SandboxError::Cache { .. })), "{refused:?}");
    }
}

#[test]
fn more_instances_than_the_address_space_holds_are_refused_with_the_arithmetic() {
    let refused = Sandbox::new(settings_of(None, 100_000));
    insta::assert_snapshot!(refused.unwrap_err(), @"cannot reserve memory for 100000 instances: 100000 x 12 GiB = 1200000 GiB of address space are needed; allow fewer instances, or raise the address space limit (`ulimit -v`)");
}

#[test]
fn an_exhausted_pool_is_reported_and_recovers() {
    let module = Sandbox::new(settings_of(None, 1)).unwrap().load(&guest("misbehaving")).unwrap();
    let factory = module.stage(settings(json!({ "how": "good" })));
    let first = build(&factory);
    let stop = penstock_engine::ports::StopFlag::default();
    let Err(fault) = penstock_engine::ports::ThreadOpFactory::build(&factory, &stop) else {
        panic!("two instances in a pool of one")
    };
    insta::assert_snapshot!(fault, @"could not start: no room for another instance: all 1 of this process are in use; run fewer threads or stages, or allow more instances");
    drop(first);
    build(&factory);
}
