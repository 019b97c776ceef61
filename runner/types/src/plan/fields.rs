//! Fields of the samples between two stages, to the extent known before a run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::fault::{listed, suggestion};
use crate::manifest::{MAX_NAMED_FIELDS, Manifest, Mode, NamedFields, WantedField};
use crate::spec::{MixPart, Name};

/// Name of the field that `fetch` reads objects into.
pub const BYTES_FIELD: &str = "bytes";

/// Name of the field that numbers the class folders of listed samples.
pub const LABEL_FIELD: &str = "label";

/// Maximum number of fields in a message.
const SHOWN_FIELDS: usize = 20;

/// Fields of the samples at one point of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    named: BTreeMap<String, Presence>,
    /// Presence of every field that `named` does not contain.
    others: Presence,
}

/// Knowledge about one field.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Presence {
    Present,
    /// Absent; contains the name of the module that removed the field, if a module did.
    Absent(Option<String>),
    Unknown,
}

impl Fields {
    /// Samples whose fields are all unknown.
    pub const UNKNOWN: Self = Self { named: BTreeMap::new(), others: Presence::Unknown };
    /// Samples without fields.
    pub(crate) const NONE: Self = Self { named: BTreeMap::new(), others: Presence::Absent(None) };

    /// Fields that a source with chosen fields may have, and no others; all are unknown if none is chosen.
    pub(crate) fn chosen<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let named: BTreeMap<_, _> =
            names.into_iter().map(|name| (name.to_owned(), Presence::Unknown)).collect();
        if named.is_empty() { Self::UNKNOWN } else { Self { named, ..Self::NONE } }
    }

    /// Names of the fields that samples may have, as far as they are known.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let named = self.named.iter().filter(|(_, presence)| !matches!(presence, Presence::Absent(_)));
        named.map(|(name, _)| name.as_str())
    }

    /// Fields that samples of some sources of a mixture may have and those of others certainly lack, with the sources that may have it.
    pub(super) fn partial(sources: &BTreeMap<Name, MixPart>) -> Vec<(String, Vec<&Name>)> {
        let drawn = sources.iter().filter(|(_, part)| part.weight > 0);
        let parts: Vec<(&Name, Self)> =
            drawn.map(|(name, part)| (name, part.source.rules().fields())).collect();
        let all: BTreeSet<&String> = parts.iter().flat_map(|(_, fields)| fields.named.keys()).collect();
        let having = |field: &String| {
            let having = parts.iter().filter(|(_, fields)| !fields.lacks(field));
            (field.clone(), having.map(|(name, _)| *name).collect::<Vec<_>>())
        };
        all.into_iter().map(having).filter(|(_, having)| having.len() < parts.len()).collect()
    }

    /// Fields of samples that have the fields of one or of the other.
    pub(crate) fn of_either(self, other: Self) -> Self {
        let either =
            |one: &Presence, other: &Presence| if one == other { one.clone() } else { Presence::Unknown };
        let names: BTreeSet<&String> = self.named.keys().chain(other.named.keys()).collect();
        let of = |fields: &Self, name: &str| fields.named.get(name).unwrap_or(&fields.others).clone();
        let named = names.into_iter().map(|name| (name.clone(), either(&of(&self, name), &of(&other, name))));
        Self { named: named.collect(), others: either(&self.others, &other.others) }
    }

    /// These fields and `name`.
    #[must_use]
    pub(crate) fn with(mut self, name: &str) -> Self {
        self.named.insert(name.to_owned(), Presence::Present);
        self
    }

    /// These fields and possibly others.
    #[must_use]
    pub(crate) fn with_unknown(self) -> Self {
        Self { others: Presence::Unknown, ..self }
    }

    /// Fields after a module. Without `removes` in its manifest, the module may remove any field that is copied into it; without
    /// `makes`, it may make any field.
    #[must_use]
    pub(crate) fn after_module(mut self, manifest: &Manifest, params: &Map<String, Value>) -> Self {
        let NamedFields { wants, makes, removes } = manifest.fields(params);
        let wants: Option<BTreeSet<&str>> =
            wants.as_ref().map(|wants| wants.iter().map(|want| want.field.as_str()).collect());
        let is_given = |name: &str| wants.as_ref().is_none_or(|wants| wants.contains(name));
        // The samples that a stateful module returns at an epoch's end derive from no particular input, so they may lack any
        // field.
        let may_lose = |name: &str| manifest.mode == Mode::Stateful || (removes.is_none() && is_given(name));
        for (name, presence) in &mut self.named {
            if *presence == Presence::Present && may_lose(name) {
                *presence = Presence::Unknown;
            }
        }
        // A manifest without `removes` is taken as incomplete: its `makes` may also lack fields.
        if makes.is_none() || removes.is_none() {
            self.named.retain(|_, presence| *presence == Presence::Present);
            self.others = Presence::Unknown;
        }
        // Fields that are not passed to a module bypass it, even those in `removes`.
        for name in removes.into_iter().flatten().filter(|name| is_given(name)) {
            self.named.insert(name, Presence::Absent(Some(manifest.name.clone())));
        }
        for name in makes.into_iter().flatten() {
            self.named.insert(name, Presence::Present);
        }
        // Real samples never have this many fields; tracking them would only take memory.
        if self.named.len() > 4 * MAX_NAMED_FIELDS { Self::UNKNOWN } else { self }
    }

    /// True if no sample has the field `name`.
    pub(crate) fn lacks(&self, name: &str) -> bool {
        matches!(self.named.get(name).unwrap_or(&self.others), Presence::Absent(_))
    }

    /// Fields that a module wants and that are absent, each with a hint; at most `most` fields.
    pub(crate) fn missing(
        &self,
        manifest: &Manifest,
        params: &Map<String, Value>,
        most: usize,
    ) -> Vec<(WantedField, String)> {
        let wants = manifest.fields(params).wants.unwrap_or_default();
        let absent = wants.into_iter().filter(|want| !want.is_optional).filter_map(|want| {
            let Presence::Absent(remover) = self.named.get(&want.field).unwrap_or(&self.others) else {
                return None;
            };
            let near = self.near(&want.field);
            let hint = match (near.trim_end(), remover) {
                (near, _) if !near.is_empty() => near.to_owned(),
                (_, Some(module)) => format!("`{module}` before it removes the field"),
                _ if want.field == BYTES_FIELD => "put a `fetch` before it".to_owned(),
                _ => "put a stage before it that makes the field, or read it with the source `records`"
                    .to_owned(),
            };
            Some((want, hint))
        });
        absent.take(most).collect()
    }

    /// Suggestion of a field that samples have, with a name near to `field`, and an end for a message; empty if there is none.
    pub(super) fn near(&self, field: &str) -> String {
        suggestion(field, self.present())
    }

    /// Describes the fields for messages, e.g. ``samples have `image` here``.
    pub(crate) fn in_words(&self) -> String {
        if self.present().next().is_none() {
            return "samples have no fields here".to_owned();
        }
        let more = if self.present().nth(SHOWN_FIELDS).is_some() { " and more" } else { "" };
        format!("samples have {}{more} here", listed(self.present().take(SHOWN_FIELDS)))
    }

    /// Describes the fields for explanations, e.g. ``fields: `image`, possibly others``.
    pub(super) fn explained(&self) -> String {
        let is_unknown = |presence: &Presence| *presence == Presence::Unknown;
        let may_have_others = is_unknown(&self.others)
            || self.named.values().any(is_unknown)
            || self.present().nth(SHOWN_FIELDS).is_some();
        let shown = listed(self.present().take(SHOWN_FIELDS));
        match (self.present().next().is_some(), may_have_others) {
            (true, true) => format!("fields: {shown}, possibly others"),
            (true, false) => format!("fields: {shown}"),
            (false, true) => "fields: not known before a run".to_owned(),
            (false, false) => "fields: none".to_owned(),
        }
    }

    fn present(&self) -> impl Iterator<Item = &str> {
        let present = self.named.iter().filter(|(_, presence)| **presence == Presence::Present);
        present.map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::spec::Source;

    fn manifest(value: Value) -> Manifest {
        let mut whole = json!({ "name": "m", "version": "1.0.0" });
        whole.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    fn fetched() -> Fields {
        Fields::NONE.with(BYTES_FIELD)
    }

    fn missing(fields: &Fields, wanting: Value) -> Vec<(String, String)> {
        let missing = fields.missing(&manifest(wanting), &Map::new(), 9);
        missing.into_iter().map(|(want, hint)| (want.field, hint)).collect()
    }

    #[test]
    fn a_module_that_reads_bytes_needs_a_fetch_before_it() {
        let wants = json!({ "wants": ["bytes"], "makes": ["image"] });
        let told = [("bytes".to_owned(), "put a `fetch` before it".to_owned())];
        assert_eq!(missing(&Fields::NONE, wants.clone()), told);
        assert_eq!(missing(&fetched(), wants.clone()), []);
        assert_eq!(missing(&Fields::UNKNOWN, wants), []);
        assert_eq!(missing(&Fields::NONE, json!({ "wants": null })), []);
        assert_eq!(missing(&Fields::NONE, json!({ "wants": ["label?"] })), []);
    }

    #[test]
    fn fields_passed_to_a_module_are_unknown_after_it_unless_its_manifest_lists_removed_fields() {
        let wants_bytes = json!({ "wants": ["bytes"] });
        let behind = |removes: Value| {
            let module = manifest(json!({ "wants": ["bytes"], "makes": ["image"], "removes": removes }));
            fetched().after_module(&module, &Map::new())
        };
        assert_eq!(missing(&behind(Value::Null), wants_bytes.clone()), []);
        assert_eq!(missing(&behind(json!([])), wants_bytes.clone()), []);
        let told = [("bytes".to_owned(), "`m` before it removes the field".to_owned())];
        assert_eq!(missing(&behind(json!(["bytes"])), wants_bytes), told);
        let told = [("imag".to_owned(), "did you mean `image`?".to_owned())];
        assert_eq!(missing(&behind(json!([])), json!({ "wants": ["imag"] })), told);
        // A manifest without `removes` is taken as incomplete: its `makes` may lack a field `imag`.
        assert_eq!(missing(&behind(Value::Null), json!({ "wants": ["imag"] })), []);
        assert_eq!(behind(json!([])).in_words(), "samples have `bytes`, `image` here");
    }

    #[test]
    fn fields_that_bypass_a_module_stay_and_others_may_be_unknown() {
        let past = manifest(json!({ "wants": [], "makes": ["label"], "removes": [] }));
        let fields = fetched().after_module(&past, &Map::new());
        assert_eq!(fields.in_words(), "samples have `bytes`, `label` here");
        assert_eq!(missing(&fields, json!({ "wants": ["text"] })).len(), 1);
        let silent = fetched().after_module(&manifest(json!({ "wants": ["bytes"] })), &Map::new());
        assert_eq!(missing(&silent, json!({ "wants": ["text", "bytes"] })), []);
    }

    #[test]
    fn a_list_of_more_names_than_a_sample_has_fields_counts_as_unknown() {
        let names: Vec<String> = (0..=MAX_NAMED_FIELDS).map(|number| format!("f{number}")).collect();
        let of = |wants: Value| {
            manifest(json!({ "wants": wants, "params": { "properties": { "all": { "default": names } } } }))
        };
        assert_eq!(Fields::NONE.missing(&of(json!(names)), &Map::new(), 1_000), []);
        assert_eq!(Fields::NONE.missing(&of(json!(["$all"])), &Map::new(), 1_000), []);
        let most = of(json!(names[1..]));
        assert_eq!(Fields::NONE.missing(&most, &Map::new(), 1_000).len(), MAX_NAMED_FIELDS);
        assert_eq!(Fields::NONE.missing(&most, &Map::new(), 9).len(), 9);
    }

    #[test]
    fn a_field_that_a_module_is_not_given_is_not_removed() {
        let module = manifest(json!({ "wants": ["bytes"], "makes": [], "removes": ["bytes", "label"] }));
        let labelled = fetched()
            .after_module(&manifest(json!({ "wants": [], "makes": ["label"], "removes": [] })), &Map::new());
        let fields = labelled.after_module(&module, &Map::new());
        assert_eq!(missing(&fields, json!({ "wants": ["label"] })), []);
        assert_eq!(missing(&fields, json!({ "wants": ["bytes"] })).len(), 1);
    }

    #[test]
    fn names_come_from_params_or_their_defaults() {
        let schema = json!({ "properties": { "input": { "default": "text" }, "output": {} } });
        let module = manifest(json!({ "wants": ["$input"], "makes": ["$output"], "params": schema }));
        let missing = |params: Value| {
            let missing = Fields::NONE.missing(&module, params.as_object().unwrap(), 9);
            missing.into_iter().map(|(want, _)| (want.field, want.param)).collect::<Vec<_>>()
        };
        let by_param = |field: &str| vec![(field.to_owned(), Some("input".to_owned()))];
        assert_eq!(missing(json!({})), by_param("text"));
        assert_eq!(missing(json!({ "input": "title" })), by_param("title"));
        assert_eq!(missing(json!({ "input": 7 })), []);
        let named = json!({ "output": "tokens" });
        let fields = Fields::NONE.after_module(&module, named.as_object().unwrap());
        assert_eq!(fields.in_words(), "samples have `tokens` here");
        // A field whose name is unknown may be any field.
        let fields = Fields::NONE.after_module(&module, &Map::new());
        assert_eq!(fields.missing(&manifest(json!({ "wants": ["x"] })), &Map::new(), 9), []);
    }

    #[test]
    fn records_and_columns_have_the_fields_that_the_document_names() {
        let fields =
            |source: Value| serde_json::from_value::<Source>(source).unwrap().rules().fields().explained();
        let of_records =
            |decode: &str| fields(json!({ "tfrecord": { "store": "s", "prefix": "", "decode": decode } }));
        assert_eq!(of_records("bytes"), "fields: `bytes`");
        assert_eq!(of_records("example"), "fields: not known before a run");
        assert_eq!(
            fields(json!({ "mds": { "store": "s", "fields": { "bytes": "image" } } })),
            "fields: `bytes`"
        );
        assert_eq!(fields(json!({ "mds": { "store": "s" } })), "fields: not known before a run");
    }

    #[test]
    fn fields_of_only_some_sources_of_a_mixture_are_named_with_these() {
        let partial = |sources: Value| {
            let sources = serde_json::from_value(sources).unwrap();
            let partial = Fields::partial(&sources);
            partial
                .into_iter()
                .map(|(field, sources)| {
                    format!("{field}: {}", sources.iter().map(|name| name.as_str()).collect::<String>())
                })
                .collect::<Vec<_>>()
        };
        let tar =
            |fields: Value| json!({ "source": { "tar": { "store": "s", "index": "i", "fields": fields } } });
        let [image, text] =
            [json!({ "bytes": "jpg", "label": "cls" }), json!({ "bytes": "jpg", "text": "txt" })].map(tar);
        let list = json!({ "source": { "list": { "store": "s" } } });
        let unread = json!({ "source": { "list": { "store": "s" } }, "weight": 0 });
        let open = json!({ "source": { "csv": { "store": "s", "key": "k" } } });
        assert_eq!(partial(json!({ "a": image, "b": text })), ["label: a", "text: b"]);
        assert_eq!(partial(json!({ "a": image, "b": list })), ["bytes: a", "label: a"]);
        // A source that is not read lacks nothing, and a table may have any column.
        assert_eq!(partial(json!({ "a": image, "b": unread, "c": open })), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn no_field_is_missing_while_fields_are_unknown(
            modules in prop::collection::vec((prop::option::of(prop::collection::vec("[a-c]", 0..3)), prop::collection::vec("[a-c]", 0..3)), 0..5),
            wants in prop::collection::vec("[a-c]", 0..4),
        ) {
            let mut fields = Fields::UNKNOWN;
            for (wants, makes) in modules {
                fields = fields.after_module(&manifest(json!({ "wants": wants, "makes": makes })), &Map::new());
                prop_assert!(makes.iter().all(|made| fields.named.get(made) == Some(&Presence::Present)));
            }
            prop_assert_eq!(missing(&fields, json!({ "wants": wants })), vec![]);
        }
    }
}
