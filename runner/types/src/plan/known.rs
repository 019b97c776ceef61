//! What is known of the names in a document before a run.

use std::collections::BTreeMap;

use super::fields::Fields;
use crate::manifest::Manifest;
use crate::spec::STD_PREFIX;

/// Properties of a module that are known before it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleFacts {
    /// Name of the module, without version; the names of the program's modules start with `std/`.
    pub name: String,
    /// Digest of the module: `sha256:` and 64 hex digits.
    pub digest: String,
    /// Self-description of the module.
    pub manifest: Manifest,
}

impl ModuleFacts {
    /// Default name of a stage that runs the module.
    pub(crate) fn short_name(&self) -> &str {
        self.name.strip_prefix(STD_PREFIX).unwrap_or(&self.name)
    }
}

/// Modules and stores that the names in a document refer to.
#[derive(Clone, Debug)]
pub struct Known<'a> {
    /// Modules, by their reference in the document.
    pub modules: &'a BTreeMap<String, ModuleFacts>,
    /// Names of existing modules, to suggest one when a document names an unknown module.
    pub names: &'a [String],
    /// Fields of the source's samples; when missing, the fields follow from the kind of source.
    pub fields: Option<Fields>,
    /// Stores by name; `None` when they are not known yet, so that any name is accepted.
    pub stores: Option<&'a BTreeMap<String, StoreFacts>>,
}

/// Properties of a store that are known before it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFacts {
    /// Set if the configuration of the store names an index.
    pub has_index: bool,
}
