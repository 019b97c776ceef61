use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use penstock_formats::{Damage, IndexKind, SampleIndex, Shards};
use penstock_pipeline::Stores;
use penstock_storage::{
    BoundedStore, FolderStore, MAX_INDEX_BYTES, PackedKeys, Store, Wanted, check_key, check_prefix,
    write_index,
};
use penstock_types::fault::listed;
use penstock_types::spec::Suffix;
use tokio::runtime::Runtime;

use crate::args::IndexCreateArgs;
use crate::input::bad;
use crate::progress::spinner;
use crate::stores;
use crate::text::{count, warn};

/// Symbolic link to the file behind standard output, on Linux.
const STANDARD_OUTPUT: &str = "/proc/self/fd/1";

/// Writes the keys of a store as an index, after all of them have been listed.
pub(crate) fn create(runtime: &Runtime, args: &IndexCreateArgs) -> Result<()> {
    check_prefix(&args.prefix).map_err(|reason| bad(format!("`--prefix`: {reason}")))?;
    if let Some(key) = &args.upload {
        check_key(key).map_err(|reason| bad(format!("`--upload`: {reason}")))?;
    }
    let stores = stores::open(&args.stores, &stores::config(args.stores.config.as_deref())?)?;
    let (name, store) = chosen(&stores, args)?;
    let mut wanted = Wanted {
        prefix: args.prefix.clone(),
        suffix: Suffix::One(args.suffix.clone()),
        except: own_key(&stores, &name, args),
        hidden: args.hidden,
        ..Wanted::default()
    };
    let has_suffix = !wanted.suffix.is_all();
    let of_shards = if args.tar {
        if !has_suffix {
            wanted.suffix = Suffix::of_tar();
        }
        Some((IndexKind::Tar, Shards::Listed(wanted.clone()), "samples", "shards"))
    } else {
        let files: fn(Wanted) -> Shards = if has_suffix { Shards::Listed } else { Shards::TfrecordFiles };
        args.tfrecord.then(|| (IndexKind::Tfrecord, files(wanted.clone()), "records", "files"))
    };
    let (index, found) = if let Some((kind, shards, samples, parts)) = of_shards {
        let index = runtime.block_on(scan(kind, store, &shards))?;
        let (all, of) = (count(index.samples()), count(index.shards() as u64));
        (index.to_bytes(), format!("{all} {samples} in {of} {parts}"))
    } else {
        let keys = runtime.block_on(list(store, &wanted))?;
        let mut index = Vec::new();
        write_index(&keys, &mut index)?;
        (index, format!("{} keys", count(keys.len() as u64)))
    };
    let place = write(runtime, store, index, args)?;
    for left_out in wanted.notes.left_out() {
        warn(&format!("left out of the index: {}", left_out.in_words()));
    }
    warn(&format!("{found} of store `{name}` were written to {place}"));
    Ok(())
}

/// Reads the headers in all shards.
async fn scan(kind: IndexKind, store: &BoundedStore, shards: &Shards) -> Result<SampleIndex> {
    let bar = spinner();
    let shown = |done: usize, all: usize| {
        let (done, all) = (count(done as u64), count(all as u64));
        bar.set_message(format!("{done} of {all} {kind} of store `{}` are read", store.name()));
    };
    let index = SampleIndex::build(kind, store, shards, &Damage::default(), shown).await;
    bar.finish_and_clear();
    Ok(index?)
}

/// Returns the store to list: the store that the user named, or else the only store.
fn chosen<'a>(stores: &'a Stores, args: &IndexCreateArgs) -> Result<(String, &'a BoundedStore)> {
    let names = stores.names();
    let listed = || listed(names.iter().map(String::as_str));
    let name = match (&args.store, names.first(), names.len()) {
        (Some(name), ..) => name,
        (None, Some(only), 1) => only,
        (None, None, _) => {
            return Err(bad("no store to list; add one with `--store NAME=LOCATION` or `--config FILE`"));
        }
        (None, ..) => return Err(bad(format!("several stores; name the one to list: {}", listed()))),
    };
    match stores.get(name) {
        Some(store) => Ok((name.clone(), store)),
        None => Err(bad(format!("there is no store `{}`; the stores are {}", name.escape_debug(), listed()))),
    }
}

/// File to which the index is written; `None` for standard output, which `-` names.
fn file_of(args: &IndexCreateArgs) -> Option<&Path> {
    args.output.as_deref().filter(|path| *path != Path::new("-"))
}

/// Returns the key of the index if it is written into the store itself: the index must not contain its own key.
fn own_key(stores: &Stores, name: &str, args: &IndexCreateArgs) -> Option<String> {
    if let Some(key) = &args.upload {
        return Some(key.clone());
    }
    let file = file_of(args).map(Path::to_owned).or_else(|| fs::read_link(STANDARD_OUTPUT).ok())?;
    stores.key_of(name, &file)
}

async fn list(store: &BoundedStore, wanted: &Wanted) -> Result<PackedKeys> {
    let bar = spinner();
    let shown = |found: usize| {
        bar.set_message(format!("{} keys found in store `{}`", count(found as u64), store.name()));
    };
    let keys = wanted.list(MAX_INDEX_BYTES, store, shown).await;
    bar.finish_and_clear();
    Ok(keys?)
}

/// Writes the index to its destination and returns a description of it.
fn write(runtime: &Runtime, store: &BoundedStore, index: Vec<u8>, args: &IndexCreateArgs) -> Result<String> {
    if index.len() as u64 > MAX_INDEX_BYTES {
        anyhow::bail!(
            "the index would have {} bytes, more than the limit of {MAX_INDEX_BYTES}; create several smaller indexes with `--prefix`",
            index.len()
        );
    }
    if let Some(key) = &args.upload {
        runtime.block_on(store.put(Arc::from(key.as_str()), index.into()))?;
        return Ok(format!("its object `{key}`"));
    }
    match file_of(args) {
        Some(path) => {
            write_file(runtime, index, path).with_context(|| format!("cannot write `{}`", path.display()))?;
            Ok(format!("`{}`", path.display()))
        }
        None => {
            let mut out = io::stdout().lock();
            out.write_all(&index)?;
            out.flush()?;
            Ok("standard output".to_owned())
        }
    }
}

/// Writes a file atomically; a link is followed. A path that is not a regular file, such as a pipe, is written directly.
fn write_file(runtime: &Runtime, index: Vec<u8>, path: &Path) -> Result<()> {
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return Ok(File::options().write(true).open(path)?.write_all(&index)?);
    }
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(OsStr::to_str).context("its name is not UTF-8")?;
    let folder = FolderStore::open("its folder", folder).map_err(|fault| fault.source)?;
    Ok(runtime.block_on(folder.put(Arc::from(name), index.into()))?)
}
