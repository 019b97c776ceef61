//! Modules that are ready to run.

use std::sync::Arc;

use penstock_types::manifest::Manifest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bindings::StagePre;
use crate::bindings::saving::SavingPre;
use crate::cache::Image;
use crate::component::{ModuleKind, Outline};
use crate::linker::Guest;
use crate::sandbox::Sandbox;

/// A stage module, checked and compiled. Cheap to clone; keeps the sandbox alive.
#[derive(Clone)]
pub struct Module(pub(crate) Arc<ModuleParts>);

/// Properties of a module that are known without running it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleReport {
    /// `sha256:` and the hexadecimal digest of the uploaded bytes.
    pub digest: String,
    /// Size of the upload, in bytes.
    pub size_bytes: u64,
    /// Form of the upload.
    pub kind: ModuleKind,
    /// Interfaces that the module imports, sorted.
    pub imports: Vec<String>,
    /// Interfaces that the module exports, sorted.
    pub exports: Vec<String>,
    /// Number of functions that the module defines.
    pub functions: u64,
    /// Size of the function bodies, in bytes.
    pub code_bytes: u64,
    /// Manifest of the module.
    pub manifest: Manifest,
}

/// Origin of a module's machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compilation {
    /// The code was compiled for this load.
    Compiled,
    /// The code was read from the cache.
    Cached,
    /// The code came from a concurrent load of the same module.
    Shared,
}

pub(crate) struct ModuleParts {
    pub(crate) sandbox: Sandbox,
    pub(crate) pre: StagePre<Guest>,
    pub(crate) saving: Option<SavingPre<Guest>>,
    pub(crate) digest: String,
    pub(crate) size: u64,
    pub(crate) outline: Outline,
    pub(crate) compilation: Compilation,
    /// Held so that other sandboxes of this process can map the same code.
    pub(crate) _image: Option<Arc<Image>>,
}

impl Module {
    /// `sha256:` and the hexadecimal digest of the uploaded bytes.
    pub fn digest(&self) -> &str {
        &self.0.digest
    }

    pub fn saves(&self) -> bool {
        self.0.saving.is_some()
    }

    pub fn manifest(&self) -> &Manifest {
        &self.0.outline.manifest
    }

    /// Size of the upload, in bytes.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    pub fn compilation(&self) -> Compilation {
        self.0.compilation
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Module")
            .field("name", &self.manifest().name)
            .field("digest", &self.0.digest)
            .finish_non_exhaustive()
    }
}
