//! `penstock pull`: saves a module of a registry.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use penstock_types::amount::count;
use penstock_types::config::{Config, RegistryHost};
use serde::Serialize;

use crate::args::{PullArgs, RegistryArgs};
use crate::input::bad;
use crate::oci::{Reference, Repository};
use crate::stores;
use crate::text::say_as;

/// A module as it was pushed or pulled.
#[derive(Serialize)]
pub(crate) struct Transferred {
    pub(crate) file: PathBuf,
    /// Digest of the module: `sha256:` and 64 hexadecimal digits.
    pub(crate) digest: String,
    pub(crate) size_bytes: u64,
    /// Reference as given, with its tag.
    pub(crate) reference: String,
    /// Reference by the digest of the manifest, which always means the same bytes.
    pub(crate) pinned: String,
}

impl Transferred {
    pub(crate) fn in_words(&self) -> String {
        let Self { file, digest, size_bytes, reference, pinned } = self;
        let mut told = format!("{} {digest}, {} bytes\n{pinned}", file.display(), count(*size_bytes));
        if reference != pinned {
            told += &format!("\n{reference} is this version");
        }
        told
    }
}

impl RegistryArgs {
    /// Hosts of the configuration and of the command line.
    pub(crate) fn allowed(&self, operator: &Config) -> BTreeSet<RegistryHost> {
        operator.registries.iter().chain(&self.registries).cloned().collect()
    }
}

pub(crate) fn pull(args: &PullArgs) -> Result<()> {
    let reference = Reference::read(&args.reference).map_err(bad)?;
    let operator = stores::config(args.registries.config.as_deref())?;
    let mut repository = Repository::open(&reference, args.registries.allowed(&operator))?;
    let (manifest, manifest_digest) = repository.manifest()?;
    let module = repository.module(&manifest, operator.limits.modules.module_bytes)?;
    let name = reference.name.rsplit('/').next().unwrap_or_default();
    let file = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.wasm")));
    // In a temporary file first, so that a failed write leaves an existing file as it was.
    let part = file.with_added_extension("part");
    let written = fs::write(&part, &module).and_then(|()| fs::rename(&part, &file));
    written.map_err(|error| bad(format!("cannot write `{}`: {error}", file.display())))?;
    let pulled = Transferred {
        file,
        digest: manifest.module()?.digest.clone(),
        size_bytes: module.len() as u64,
        reference: reference.to_string(),
        pinned: reference.pinned(&manifest_digest),
    };
    say_as(args.json, &pulled, Transferred::in_words)
}
