//! Data caches: folders of the operator that keep data between runs.

use std::path::PathBuf;

use serde::Deserialize;

use super::FolderPath;
use crate::spec::{FreeGib, Gib};

/// Folder in which objects of a store are kept between runs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// Path of the folder, relative to the folder of the configuration; created if it is missing. Several stores may share one.
    pub dir: FolderPath,
    /// Most space that the folder takes, in GiB; a quarter of the free space when missing.
    pub gib: Option<Gib>,
    /// Space on the disk that stays free, in GiB.
    #[serde(default)]
    pub keep_free_gib: FreeGib,
    /// Time for which the version of an object is taken for the current one.
    #[serde(default)]
    pub revalidate: Revalidate,
}

/// Time for which the version of an object, once seen, is taken for the current one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Revalidate {
    /// Never: each read, and so each pass over the data, asks for the current one.
    Pass,
    /// Until the run ends.
    #[default]
    Run,
    /// For ever: objects do not change. Only a listing tells of another version.
    Never,
}

impl CacheConfig {
    /// Parses `DIR` or `DIR:GIB`. The error states the expected form.
    pub fn from_flag(text: &str) -> Result<Self, String> {
        let wrong = |reason: &str| {
            let (least, most) = (Gib::LEAST, Gib::MOST);
            Err(format!(
                "{reason}; expected `DIR` or `DIR:GIB`, such as `/cache:50`, with {least} to {most} GiB"
            ))
        };
        let (dir, gib) = match text.rsplit_once(':') {
            Some((dir, gib)) => match gib.parse().ok().and_then(Gib::new) {
                Some(gib) => (dir, Some(gib)),
                None => return wrong("the size is invalid"),
            },
            None => (text, None),
        };
        if dir.is_empty() {
            return wrong("the folder is missing");
        }
        Ok(Self {
            dir: FolderPath(PathBuf::from(dir)),
            gib,
            keep_free_gib: FreeGib::default(),
            revalidate: Revalidate::default(),
        })
    }
}
