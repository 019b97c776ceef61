use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::SourceRules;
use super::settings::{By, Place, SourceSettings, source};
use super::table::{ColumnType, RecordForm};
use crate::fault::Pointer;
use crate::plan::{Faults, Fields, LABEL_FIELD};
use crate::spec::{
    Name, ObjectKey, Suffix, TableCharacter, TableForm, TextEncoding, double_quote, is_double_quote,
};
use crate::text::{MAX_SHOWN_KEY, printable, shown};

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

/// Table whose fields are added to listed samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelTable {
    /// Store that holds the table; that of the source when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<Name>,
    /// Key of the table. It ends with `.csv`, `.tsv`, `.ndjson` or `.jsonl`.
    pub key: ObjectKey,
    /// Column or member that contains the keys of samples; `key` when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_key: Option<String>,
    /// Part of a sample's key that the table contains: `key` or `stem`.
    #[serde(default, rename = "match")]
    pub matches: KeyPart,
    /// Character between two values, e.g. `;` or a tab. When missing, a comma, or a tab if the key ends with `.tsv`; a table
    /// that seems to have another one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<TableCharacter>,
    /// Character around values that contain delimiters or line ends, written twice within them; `null` for none.
    #[serde(default = "double_quote", skip_serializing_if = "is_double_quote")]
    #[schemars(extend("default" = "\""))]
    pub quote: Option<TableCharacter>,
    /// Encoding of the text.
    #[serde(default, skip_serializing_if = "TextEncoding::is_usual")]
    #[schemars(extend("default" = TextEncoding::default()))]
    pub encoding: TextEncoding,
    /// Types of columns by name; columns without a type are texts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, ColumnType>,
    /// Handling of listed keys that are not in the table: `fail` or `skip`.
    #[serde(default)]
    pub missing: Missing,
}

/// Part of a listed key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyPart {
    /// The whole key.
    #[default]
    Key,
    /// The key without the `prefix` and the `suffix` of the source.
    Stem,
}

/// Handling of listed keys that are not in a table of labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// Fails before the first sample.
    #[default]
    Fail,
    /// Makes no samples of these keys, and reports their number.
    Skip,
}

impl SourceRules for ListSource {
    fn settings(&self) -> SourceSettings<'_> {
        self.all_settings()
    }

    fn place(&self) -> Option<Place<'_>> {
        Some(Place::new(&self.store, [Some(By::Prefix(&self.prefix, self.suffix.clone()))]))
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
            let shown = printable(class, MAX_SHOWN_KEY);
            if class.is_empty() || class.contains('/') {
                let found = format!("`{shown}` is not the name of a folder");
                faults.fault(place, found, "a class is one folder directly below that of `prefix`");
            } else if !seen.insert(class) {
                faults.fault(place, format!("found the class `{shown}` twice"), "remove one of them");
            }
        }
    }
}

impl LabelTable {
    /// Form of the table, which the end of its key names; `None` if it names no form.
    pub fn form(&self) -> Option<RecordForm> {
        let rows = |delimiter| {
            let (own, quote) = (self.delimiter.as_ref(), self.quote.as_ref());
            RecordForm::Rows(TableForm::new(delimiter, own, quote, self.encoding))
        };
        let forms = [
            (".csv", rows(b',')),
            (".tsv", rows(b'\t')),
            (".ndjson", RecordForm::Lines),
            (".jsonl", RecordForm::Lines),
        ];
        let key = self.key.as_str();
        forms.into_iter().find(|(end, _)| key.ends_with(end)).map(|(_, form)| form)
    }

    fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        if let Some(store) = &self.store {
            faults.store(store, place.key("store"));
        }
        match self.form() {
            None => {
                let found = format!("the key `{}` names no form of the table", self.key);
                let hint = match self.key.as_str() {
                    key if key.ends_with(".gz") || key.ends_with(".zst") => {
                        "decompress it: tables of labels are read by the places of their rows"
                    }
                    _ => "its end is `.csv`, `.tsv`, `.ndjson` or `.jsonl`",
                };
                faults.fault(place.key("key"), found, hint);
            }
            Some(RecordForm::Lines) => {
                if !self.types.is_empty() {
                    faults.fault(place.key("types"), "values of NDJSON have their types", "remove `types`");
                }
                let of_tables = [
                    ("delimiter", self.delimiter.is_some()),
                    ("quote", !is_double_quote(&self.quote)),
                    ("encoding", self.encoding != TextEncoding::default()),
                ];
                for (name, _) in of_tables.iter().filter(|(_, is_stated)| *is_stated) {
                    faults.fault(place.key(name), "NDJSON is no table", format!("remove `{name}`"));
                }
            }
            Some(form) => form.check(faults, place),
        }
    }
}
