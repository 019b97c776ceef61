use std::collections::BTreeMap;

use penstock_types::plan::ModuleFacts;
use penstock_types::spec::Spec;
use penstock_wasm::{Module, ModuleError, Sandbox};

use crate::prepare::NamedModules;
use crate::std_modules::StdModule;

#[derive(Clone, Debug)]
pub struct Modules {
    sandbox: Sandbox,
    loaded: BTreeMap<String, Module>,
}

impl Modules {
    pub fn new(sandbox: Sandbox) -> Self {
        Self { sandbox, loaded: BTreeMap::new() }
    }

    /// Checks and compiles a module and registers it as `name`.
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> Result<&Module, ModuleError> {
        let module = self.sandbox.load(bytes)?;
        self.loaded.insert(name.to_owned(), module);
        Ok(&self.loaded[name])
    }

    /// Registers a module loaded in the same sandbox as `name`.
    pub fn insert(&mut self, name: &str, module: Module) {
        self.loaded.insert(name.to_owned(), module);
    }

    /// Adds the modules of the program that a document names. Returns the name of the one that cannot be loaded, and why.
    pub fn add_std(&mut self, spec: &Spec) -> Result<(), (&'static str, ModuleError)> {
        StdModule::named_in(spec).into_iter().try_for_each(|module| {
            self.add(module.name(), module.bytes()).map(drop).map_err(|error| (module.name(), error))
        })
    }

    /// Finds a module by its reference in a document: a name, `name@version`, or a digest.
    pub fn find(&self, written: &str) -> Option<&Module> {
        if let Some(module) = self.loaded.get(written) {
            return Some(module);
        }
        if written.starts_with("sha256:") {
            return self.loaded.values().find(|module| module.digest() == written);
        }
        if let Some(module) = StdModule::find(written) {
            return self.loaded.get(module.name());
        }
        let (name, version) = written.split_once('@')?;
        self.loaded.get(name).filter(|module| is_version(&module.manifest().version, version))
    }

    pub(crate) fn named(&self, spec: &Spec) -> NamedModules<Module> {
        let found = spec.named_modules().into_iter().filter_map(|module| {
            let written = module.as_str();
            let module = self.find(written)?;
            let name = written.split('@').next().filter(|name| self.loaded.contains_key(*name));
            let facts = ModuleFacts {
                name: name.unwrap_or(&module.manifest().name).to_owned(),
                digest: module.digest().to_owned(),
                manifest: module.manifest().clone(),
            };
            Some((written.to_owned(), (facts, module.clone())))
        });
        let uploaded = self.loaded.keys().filter(|name| StdModule::find(name).is_none()).cloned();
        let names = uploaded.chain(StdModule::all().iter().map(|module| module.name().to_owned()));
        NamedModules { found: found.collect(), names: names.collect() }
    }
}

/// True if `found` is `wanted` or a release of it: `1.2.3` is a release of `1` and of `1.2`.
fn is_version(found: &str, wanted: &str) -> bool {
    found == wanted || found.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::is_version;

    #[test]
    fn a_version_matches_its_releases_but_no_other_versions() {
        assert!(is_version("1.2.3", "1.2.3") && is_version("1.2.3", "1.2") && is_version("1.2.3", "1"));
        assert!(!is_version("1.20.0", "1.2") && !is_version("11.0.0", "1") && !is_version("1.2.3", "2"));
    }
}
