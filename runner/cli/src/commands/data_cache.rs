//! Data caches on this machine.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use penstock_storage::{CacheLimits, DataCache, SetFacts};
use penstock_types::amount::{mib, plural};
use serde::Serialize;

use crate::FAILED;
use crate::args::{DataCacheArgs, DataCacheClearArgs};
use crate::input::bad;
use crate::report::table;
use crate::text::{count, say, say_as};

/// A set of a cache, as the command shows it.
#[derive(Serialize)]
struct SetRow {
    name: String,
    about: String,
    bytes: u64,
    /// Last use, RFC 3339 in UTC.
    used_at: String,
    is_in_use: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    checked: Option<Checked>,
}

/// Entries of a set that were read and checked.
#[derive(Clone, Copy, Serialize)]
struct Checked {
    whole: u64,
    damaged: u64,
}

pub(crate) fn list(args: &DataCacheArgs) -> Result<()> {
    let sets = open(&args.dir)?.sets()?.into_iter().map(|set| SetRow::new(set, None)).collect::<Vec<_>>();
    say_as(args.json, &sets, |sets| in_words(sets))
}

/// Reads and checks all entries. Fails if one is damaged.
pub(crate) fn verify(args: &DataCacheArgs) -> Result<u8> {
    let cache = open(&args.dir)?;
    let mut sets = Vec::new();
    for set in cache.sets()? {
        let (whole, damaged) =
            cache.verify(&set.name).with_context(|| format!("cannot read `{}`", set.name))?;
        sets.push(SetRow::new(set, Some(Checked { whole, damaged })));
    }
    say_as(args.json, &sets, |sets| in_words(sets))?;
    let is_damaged = sets.iter().any(|set| set.checked.is_some_and(|checked| checked.damaged > 0));
    Ok(if is_damaged { FAILED } else { 0 })
}

/// Removes the sets that no process uses.
pub(crate) fn clear(args: &DataCacheClearArgs) -> Result<u8> {
    let cache = open(&args.dir)?;
    let sets = cache.sets()?;
    if let Some(missing) = args.sets.iter().find(|name| !sets.iter().any(|set| set.name.starts_with(&**name)))
    {
        let dir = args.dir.display();
        return Err(bad(format!("there is no set `{missing}`; see `penstock data-cache list {dir}`")));
    }
    let is_meant =
        |set: &SetFacts| args.sets.is_empty() || args.sets.iter().any(|name| set.name.starts_with(&**name));
    let (mut removed, mut bytes, mut kept) = (0, 0, 0);
    for set in sets.into_iter().filter(is_meant) {
        if cache.remove(&set.name).with_context(|| format!("cannot remove `{}`", set.name))? {
            (removed, bytes) = (removed + 1, bytes + set.bytes);
        } else {
            kept += 1;
        }
    }
    let in_use = if kept > 0 { format!("; {kept} in use") } else { String::new() };
    say(&format!("removed {}, {}{in_use}", plural(removed, "set"), plural(bytes, "byte")))?;
    Ok(if kept > 0 { FAILED } else { 0 })
}

fn open(folder: &Path) -> Result<Arc<DataCache>> {
    let dir = folder.display();
    if !DataCache::is_in(folder) {
        return Err(bad(format!(
            "`{dir}` has no data cache; name the folder of `--store-cache`, or of `cache` in the configuration"
        )));
    }
    let limits = CacheLimits { bytes: None, keep_free: 0 };
    DataCache::open(folder, limits).with_context(|| format!("cannot open the data cache in `{dir}`"))
}

impl SetRow {
    fn new(set: SetFacts, checked: Option<Checked>) -> Self {
        let used_at = UNIX_EPOCH + Duration::from_secs(set.used.as_secs());
        let SetFacts { name, about, bytes, is_in_use, .. } = set;
        Self {
            name,
            about,
            bytes,
            used_at: humantime::format_rfc3339(used_at).to_string(),
            is_in_use,
            checked,
        }
    }
}

fn in_words(sets: &[SetRow]) -> String {
    if sets.is_empty() {
        return "the cache is empty".to_owned();
    }
    let row = |set: &SetRow| {
        let checked = set.checked.map_or_else(String::new, |Checked { whole, damaged }| {
            format!("{} whole, {} damaged", count(whole), count(damaged))
        });
        let in_use = if set.is_in_use { "in use" } else { "" };
        vec![
            set.name.chars().take(12).collect(),
            mib(set.bytes),
            set.used_at.clone(),
            in_use.to_owned(),
            checked,
            set.about.clone(),
        ]
    };
    table(&["set", "size", "last used", "", "entries", "holds"], sets.iter().map(row))
}
