use super::rules::SourceRules;
use super::settings::{By, Place, source};
use crate::fault::{FaultKind, Pointer, SpecFault};
use crate::plan::{Faults, Fields};
use crate::spec::{Name, ObjectKey};

source! {
    /// Produces one sample for every key in an index, in the order of the index.
    IndexSource {
        /// Store that holds the objects.
        store: Name,
        /// Key of the index in that store: a JSON array of keys. When missing, the `index` in the configuration of the store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<ObjectKey>,
    }
}

impl SourceRules for IndexSource {
    fn place(&self) -> Option<Place<'_>> {
        Some(Place::new(&self.store, [self.index.as_ref().map(By::Index)]))
    }

    fn is_counted(&self) -> bool {
        true
    }

    fn fields(&self) -> Fields {
        Fields::NONE
    }

    fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        faults.store(&self.store, place.key("store"));
        if self.index.is_none() && faults.facts(&self.store).is_some_and(|store| !store.has_index) {
            let found =
                format!("there is no index to read: the configuration of store `{}` names none", self.store);
            let hint = "set `index` to the key of a JSON array of keys";
            faults.push(SpecFault::new(place.clone(), found).of_kind(FaultKind::NoIndex).hint(hint));
        }
    }

    fn in_words(&self) -> String {
        let named = match &self.index {
            Some(key) => format!("the index `{}`", key.as_str()),
            None => "the configured index".to_owned(),
        };
        format!("one sample for each key in {named} of the store `{}`", self.store)
    }
}
