//! Modules that are part of the program. They run in the same sandbox as all other modules.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use penstock_types::config::GateBounds;
use penstock_types::spec::{STD_PREFIX, Spec};
use penstock_wasm::ModuleReport;

/// Number of the only version of each std module. It changes with the params and fields that a module understands, so that a
/// document that names the version runs on each program that has it.
pub const STD_VERSION: u32 = 1;

#[derive(Debug)]
pub struct StdModule {
    name: &'static str,
    bytes: &'static [u8],
    report: OnceLock<ModuleReport>,
}

// Defines `MODULES`, by name.
include!(concat!(env!("OUT_DIR"), "/std_modules.rs"));

impl StdModule {
    const fn new(name: &'static str, bytes: &'static [u8]) -> Self {
        Self { name, bytes, report: OnceLock::new() }
    }

    /// Returns the std modules, by name; none if the program was built without them.
    pub fn all() -> &'static [Self] {
        &MODULES
    }

    /// Finds a module by a reference: `std/NAME`, `std/NAME@1` or `std/NAME@latest`.
    pub fn find(written: &str) -> Option<&'static Self> {
        let (name, version) = written.split_once('@').unwrap_or((written, "latest"));
        let is_known = version == "latest" || version == STD_VERSION.to_string();
        MODULES.iter().find(|module| is_known && module.name == name)
    }

    pub fn of_digest(digest: &str) -> Option<&'static Self> {
        MODULES.iter().find(|module| module.report().digest == digest)
    }

    /// Returns the modules that a document names, each once.
    pub fn named_in(spec: &Spec) -> Vec<&'static Self> {
        let found = spec.named_modules().into_iter().filter_map(|module| {
            let written = module.as_str();
            Self::find(written)
                .or_else(|| Self::of_digest(written).filter(|_| written.starts_with("sha256:")))
        });
        found.map(|module| (module.name, module)).collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Returns why a module of a user cannot have this name, if the name is one of the program's.
    pub fn refusal(name: &str) -> Option<&'static str> {
        name.starts_with(STD_PREFIX)
            .then_some("names that start with `std/` belong to the modules of the program; use another name")
    }

    /// Name with its prefix: `std/image`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn bytes(&self) -> &'static [u8] {
        self.bytes
    }

    pub fn report(&self) -> &ModuleReport {
        self.report.get_or_init(|| {
            let report = ModuleReport::read(self.bytes, &GateBounds::default());
            report.expect("the default bounds admit the modules of the program, as a test checks")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_module_of_the_program_passes_the_default_bounds_and_is_found_by_name_version_and_digest() {
        for module in StdModule::all() {
            let digest = &module.report().digest;
            assert_eq!(StdModule::of_digest(digest).map(StdModule::name), Some(module.name));
            for written in ["", "@1", "@latest"].map(|version| format!("{}{version}", module.name)) {
                assert_eq!(StdModule::find(&written).map(StdModule::name), Some(module.name));
            }
            assert!(StdModule::find(&format!("{}@2", module.name)).is_none());
        }
    }
}
