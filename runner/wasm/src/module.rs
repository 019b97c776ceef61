//! A module that is ready to run.

use std::sync::Arc;

use penstock_types::manifest::Manifest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bindings::StagePre;
use crate::component::{ModuleKind, Outline};
use crate::linker::Guest;
use crate::sandbox::Sandbox;

/// A stage module, checked and compiled. Cheap to clone; keeps the sandbox alive.
#[derive(Clone)]
pub struct Module(Arc<ModuleParts>);

/// What is known of a module without running it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleReport {
    /// `sha256:` and the hexadecimal digest of the uploaded bytes.
    pub digest: String,
    /// Size of the upload.
    pub size_bytes: u64,
    /// What was uploaded.
    pub kind: ModuleKind,
    /// Interfaces it imports, sorted.
    pub imports: Vec<String>,
    /// Interfaces it exports, sorted.
    pub exports: Vec<String>,
    /// Functions it defines.
    pub functions: u64,
    /// Size of their bodies.
    pub code_bytes: u64,
    /// What it says of itself.
    pub manifest: Manifest,
}

/// Where a module's machine code came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compilation {
    /// It was compiled for this load.
    Compiled,
    /// It was read from the cache.
    Cached,
    /// Another load of the same module was under way and gave it.
    Shared,
}

pub(crate) struct ModuleParts {
    pub(crate) sandbox: Sandbox,
    pub(crate) pre: StagePre<Guest>,
    pub(crate) digest: String,
    pub(crate) size: u64,
    pub(crate) outline: Outline,
    pub(crate) compilation: Compilation,
}

impl Module {
    pub(crate) fn new(parts: ModuleParts) -> Self {
        Self(Arc::new(parts))
    }

    pub(crate) fn parts(&self) -> &ModuleParts {
        &self.0
    }

    /// `sha256:` and the hexadecimal digest of the uploaded bytes.
    pub fn digest(&self) -> &str {
        &self.0.digest
    }

    pub fn manifest(&self) -> &Manifest {
        &self.0.outline.manifest
    }

    /// In bytes of the upload.
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
