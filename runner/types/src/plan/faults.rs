//! Faults of a document, found while it is planned.

use super::known::{Known, ModuleFacts, StoreFacts};
use crate::fault::{FaultKind, Pointer, SpecFault, listed, suggestion};
use crate::spec::{ModuleRef, Name, STD_PREFIX};

/// Faults found so far, and what is known of the names in the document.
#[derive(Debug)]
pub struct Faults<'a> {
    pub(crate) known: Known<'a>,
    pub(crate) found: Vec<SpecFault>,
    /// Store of the source, which a `fetch` without one of its own reads from.
    pub(crate) source_store: Option<&'a Name>,
    /// Kind of the consumer, if it reads batches from host memory.
    pub(crate) host_reader: Option<&'static str>,
}

impl<'a> Faults<'a> {
    pub(crate) fn fault(&mut self, pointer: Pointer, found: impl Into<String>, hint: impl Into<String>) {
        self.push(SpecFault::new(pointer, found).hint(hint));
    }

    pub(crate) fn push(&mut self, fault: SpecFault) {
        self.found.push(fault);
    }

    /// Checks that a store is known.
    pub(crate) fn store(&mut self, store: &Name, place: Pointer) {
        let Some(stores) = self.known.stores else { return };
        if !stores.contains_key(store.as_str()) {
            let names = || stores.keys().map(String::as_str);
            let found = format!(
                "there is no store `{store}`: {}known: {}",
                suggestion(store.as_str(), names()),
                listed(names())
            );
            let kind = FaultKind::UnknownStore(store.to_string());
            self.push(SpecFault::new(place, found).of_kind(kind));
        }
    }

    /// Properties of a store; `None` if it is not known.
    pub(crate) fn facts(&self, store: &Name) -> Option<StoreFacts> {
        self.known.stores?.get(store.as_str()).copied()
    }

    /// Properties of a module; reports it if it is not known.
    pub(crate) fn module(&mut self, module: &ModuleRef, place: Pointer) -> Option<&'a ModuleFacts> {
        let name = module.as_str();
        let facts = self.known.modules.get(name);
        if facts.is_none() {
            let is_std = name.starts_with(STD_PREFIX);
            let all = || self.known.names.iter().map(String::as_str);
            let names = || all().filter(|known| known.starts_with(STD_PREFIX) == is_std);
            let (module, version) = name.split_once('@').unzip();
            let module = module.unwrap_or(name);
            let found = match version {
                Some(version) if names().any(|known| known == module) => {
                    format!("the module `{module}` has no version or alias `{version}`")
                }
                _ if is_std && names().next().is_none() => {
                    format!(
                        "there is no module `{name}`: this program was built without std modules; run `make build`"
                    )
                }
                _ => {
                    let own = all().find(|known| known.strip_prefix(STD_PREFIX) == Some(module));
                    let near = own.map(|own| format!("did you mean `{own}`? "));
                    let near = near.unwrap_or_else(|| suggestion(name, names()));
                    format!("there is no module `{name}`: {near}known: {}", listed(names()))
                }
            };
            let kind = FaultKind::UnknownModule(name.to_owned());
            self.push(SpecFault::new(place, found).of_kind(kind));
        }
        facts
    }
}
