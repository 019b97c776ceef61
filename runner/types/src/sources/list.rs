use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::form::ColumnType;
use super::labels::{LabelTable, Missing};
use super::rules::SourceRules;
use super::settings::{By, Place, source};
use crate::fault::Pointer;
use crate::plan::{Faults, Fields, LABEL_FIELD};
use crate::spec::{Name, Suffix};
use crate::text::shown;

source! {
    /// Produces one sample for every key of a store, sorted by bytes.
    ListSource {
        /// Store whose keys are listed.
        store: Name,
        /// Prefix of the keys to list; all keys when empty.
        #[serde(default)]
        prefix: String,
        /// Suffix of the keys to list, e.g. `.jpg`; all keys when empty. A list such as `[".jpg", ".png"]` is compared without case;
        /// `{"of": "std/image"}` takes the files that this module reads.
        #[serde(default)]
        suffix: Suffix,
        /// Origin of the field `label`, the number of a class: `folder` numbers the folders below that of `prefix`, sorted by bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<LabelOrigin>,
        /// Names of the classes in the order of their numbers, with `"label": "folder"`; a folder that is none of them is a fault.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        classes: Option<Vec<String>>,
        /// Table whose fields are added to the samples with the same keys.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels: Option<LabelTable>,
    } + listed + missing
}

/// Origin of the field `label`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LabelOrigin {
    /// First folder of the key below the folder of the source's prefix. Keys outside of such folders are left out.
    Folder,
}

impl SourceRules for ListSource {
    fn place(&self) -> Option<Place<'_>> {
        Some(Place::new(&self.store, [Some(By::Prefix(&self.prefix, self.suffix.clone()))]))
    }

    fn lists_keys(&self) -> bool {
        true
    }

    fn labels(&self) -> Option<&LabelTable> {
        self.labels.as_ref()
    }

    fn classes(&self) -> Option<&Vec<String>> {
        self.classes.as_ref()
    }

    fn types(&self) -> Option<&BTreeMap<String, ColumnType>> {
        self.labels.as_ref().map(|labels| &labels.types)
    }

    fn is_counted(&self) -> bool {
        true
    }

    fn fields(&self) -> Fields {
        let fields = if self.labels.is_some() { Fields::UNKNOWN } else { Fields::NONE };
        match self.label {
            Some(LabelOrigin::Folder) => fields.with(LABEL_FIELD),
            None => fields,
        }
    }

    fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        faults.store(&self.store, place.key("store"));
        if let Some(labels) = &self.labels {
            labels.check(faults, &place.key("labels"));
        }
        self.check_classes(faults, &place.key("classes"));
        if matches!(&self.suffix, Suffix::Several(several) if several.is_empty()) {
            faults.fault(place.key("suffix"), "found no ending", "name at least one, or remove `suffix`");
        }
    }

    fn in_words(&self) -> String {
        let prefix = (!self.prefix.is_empty()).then(|| format!(" starting with `{}`", shown(&self.prefix)));
        let suffix = (!self.suffix.is_all()).then(|| format!(" ending with {}", self.suffix));
        let ends: Vec<String> = prefix.into_iter().chain(suffix).collect();
        let label = match (self.label, &self.classes) {
            (Some(LabelOrigin::Folder), None) => {
                ", labelled by folder (a bucket shows no class without keys; `classes` names those, too)"
                    .to_owned()
            }
            (Some(LabelOrigin::Folder), Some(classes)) => {
                let noun = if classes.len() == 1 { "class" } else { "classes" };
                format!(", labelled by folder with {} named {noun}", classes.len())
            }
            (None, _) => String::new(),
        };
        let labels = self.labels.as_ref().map(|labels| {
            let missing = match labels.missing {
                Missing::Fail => "",
                Missing::Skip => ", without the keys that are not in it",
            };
            format!(", with the fields in `{}`{missing}", labels.key)
        });
        let labels = labels.unwrap_or_default();
        format!("one sample for each key of the store `{}`{}{label}{labels}", self.store, ends.join(" and"))
    }
}

impl ListSource {
    /// Checks the names of classes.
    fn check_classes(&self, faults: &mut Faults<'_>, place: &Pointer) {
        let Some(classes) = &self.classes else { return };
        if self.label != Some(LabelOrigin::Folder) {
            let hint = "set `label` to `folder`, or remove `classes`";
            faults.fault(place.clone(), "only samples that are labelled by folder have classes", hint);
        }
        if classes.is_empty() {
            faults.fault(place.clone(), "found no class", "name the class folders, or remove `classes`");
        }
        let mut seen = BTreeSet::new();
        for (index, class) in classes.iter().enumerate() {
            let place = place.index(index);
            let name = shown(class);
            if class.is_empty() || class.contains('/') {
                let found = format!("`{name}` is not the name of a folder");
                faults.fault(place, found, "a class is one folder directly below that of `prefix`");
            } else if !seen.insert(class) {
                faults.fault(place, format!("found the class `{name}` twice"), "remove one of them");
            }
        }
    }
}
