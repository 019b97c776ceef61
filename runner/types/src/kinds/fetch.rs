use super::rules::{Memory, Rules, Work, Written};
use super::settings::{Settings, tasked_stage};
use crate::fault::{FaultKind, Pointer, SpecFault};
use crate::manifest::Manifest;
use crate::plan::{BYTES_FIELD, Faults, Fields, Unit};
use crate::policy::OnError;
use crate::spec::Name;
use crate::text::shown;

/// Memory assumed for each object in flight, in MiB: its connection with buffers. The object itself counts against `buffer_mib`.
const OBJECT_MIB: u64 = 1;

tasked_stage! {
    /// Reads the object that each sample's key, or one of its fields, names. The objects of a batch are read concurrently; each read may fail alone.
    Fetch {
        /// Store to read from; the store of the source when missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store: Option<Name>,
        /// Field whose text is the key of the object; the key of the sample when missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        object: Option<String>,
    }
}

/// Objects that `fetch` reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchPlan {
    /// Name of the store to read from.
    pub store: String,
    /// Field that contains the key of the object; `None` for the key of the sample.
    pub object: Option<String>,
}

impl Fetch {
    pub(super) fn plan(&self, faults: &mut Faults<'_>, place: &Pointer) -> FetchPlan {
        if let Some(store) = &self.store {
            faults.store(store, place.key("store"));
        }
        let store = self.store.as_ref().or(faults.source_store);
        if store.is_none() {
            let found = "there is no store to read from: the source has none";
            faults.fault(place.clone(), found, "set `store` of the `fetch`");
        }
        FetchPlan { store: store.map(ToString::to_string).unwrap_or_default(), object: self.object.clone() }
    }
}

impl Written for Fetch {
    fn settings(&self) -> Settings<'_> {
        self.all_settings()
    }

    fn stores(&self) -> Vec<&Name> {
        self.store.iter().collect()
    }

    fn prepare_for_replay(&mut self, on_error: OnError, store: Option<&Name>) {
        self.fail_by(on_error);
        // Without `store`, it reads from that of the source, which is replaced.
        self.store = self.store.take().or_else(|| store.cloned());
    }

    fn fields(&self, faults: &mut Faults<'_>, place: &Pointer, before: Fields) -> Fields {
        if let Some(field) = self.object.as_ref().filter(|field| before.lacks(field)) {
            let found = format!(
                "`fetch` reads the objects that the field `{field}` names, but {}",
                before.in_words()
            );
            let hint =
                "put a stage before it that makes the field, or read it with the source `records` or `csv`";
            let kind = FaultKind::MissingField(field.clone());
            faults.push(SpecFault::new(place.key("object"), found).of_kind(kind).hint(hint));
        }
        before.with(BYTES_FIELD)
    }
}

impl Rules for FetchPlan {
    fn work(&self) -> Work {
        Work::Storage
    }

    fn takes(&self) -> &'static [Unit] {
        &[Unit::Samples, Unit::Batches]
    }

    fn changes(&self, _module: Option<&Manifest>) -> Option<Vec<String>> {
        Some(vec![BYTES_FIELD.to_owned()])
    }

    fn in_words(&self) -> String {
        let named =
            self.object.as_ref().map_or("key".to_owned(), |field| format!("field `{}`", shown(field)));
        format!("reads the object of each sample's {named} from the store `{}`", self.store)
    }

    fn store(&self) -> Option<&str> {
        Some(&self.store)
    }

    fn object(&self) -> Option<&str> {
        self.object.as_deref()
    }

    fn tasks_in_words(&self) -> &'static str {
        "fetches"
    }

    fn memory(&self) -> Memory {
        Memory { instance: None, task: OBJECT_MIB }
    }

    fn keeps_size(&self) -> bool {
        false
    }
}
