//! Self-description of a stage module, readable without running the module.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use strum::IntoStaticStr;

/// Name of the WASM custom section that holds a [`Manifest`] as JSON.
pub const MANIFEST_SECTION: &str = "penstock.manifest";

/// Maximum number of fields in one list of a manifest; a longer list counts as unknown, since no sample has more fields.
pub const MAX_NAMED_FIELDS: usize = 256;

/// Maximum number of counters that one module may declare.
pub const MAX_COUNTERS: usize = 16;

/// Self-description of a stage module. The guest SDK writes it into the custom section `penstock.manifest`; a module without that
/// section is not a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Name of the module, e.g. `crop-faces`.
    pub name: String,
    /// Version of the module, e.g. `1.2.0`.
    pub version: String,
    /// Description for users, a sentence or a paragraph.
    #[serde(default)]
    pub doc: String,
    /// Unit of work of one call: a sample, a batch, or a stateful sequence.
    #[serde(default)]
    pub mode: Mode,
    /// Fields that are copied into the module; `null` means all. Other fields bypass the module.
    #[serde(default)]
    pub wants: Option<Vec<String>>,
    /// Fields that the module creates or replaces; for documentation and checks, not enforced per sample.
    #[serde(default)]
    pub makes: Vec<String>,
    /// Fields among `wants` that the results do not have; `null` when the module does not state it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removes: Option<Vec<String>>,
    /// `true` when one sample may become several, `false` when it never does; `null` when the module does not state it. Has no
    /// meaning for stateful modules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out: Option<bool>,
    /// Endings of the files that the module reads, e.g. `.jpg`, which the suffix `{"of": MODULE}` of a `list` stands for; `null` when the
    /// module does not state them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<Vec<String>>,
    /// Counters that the module may add to, at most 16.
    #[serde(default)]
    pub counters: Vec<String>,
    /// JSON Schema of `params`; `null` when the module takes none.
    #[serde(default)]
    pub params: Option<serde_json::Value>,
}

/// Field names of a manifest, with the names from params resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFields {
    /// Fields that are copied into the module; `None` for all of them.
    pub wants: Option<Vec<WantedField>>,
    /// Fields that the module creates or replaces; `None` when they are not known.
    pub makes: Option<Vec<String>>,
    /// Fields that the results do not have; `None` when they are not known.
    pub removes: Option<Vec<String>>,
}

/// A field that is copied into a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedField {
    /// Name of the field in the sample.
    pub field: String,
    /// Name of the param that contains the field's name, if the manifest refers to a param.
    pub param: Option<String>,
    /// Set when samples may lack the field.
    pub is_optional: bool,
}

impl Manifest {
    /// Resolves the field names for these params. In a list, `$name` refers to the field, or the list of fields, in the param
    /// `name` or its default. A wanted field that samples may lack ends with `?`.
    pub fn fields(&self, params: &Map<String, Value>) -> NamedFields {
        let all = |written: &[String]| -> Option<Vec<String>> {
            let mut all = Vec::new();
            for name in written {
                all.extend(self.names(name, params)?);
                if all.len() > MAX_NAMED_FIELDS {
                    return None;
                }
            }
            Some(all)
        };
        let wants = self.wants.as_ref().and_then(|written| {
            let mut wants = Vec::new();
            for written in written {
                let (name, is_optional) = match written.strip_suffix('?') {
                    Some(name) => (name, true),
                    None => (written.as_str(), false),
                };
                let param = name.strip_prefix('$').map(str::to_owned);
                let named = self.names(name, params)?.into_iter();
                wants.extend(named.map(|field| WantedField { field, param: param.clone(), is_optional }));
                if wants.len() > MAX_NAMED_FIELDS {
                    return None;
                }
            }
            Some(wants)
        });
        NamedFields {
            wants,
            makes: all(&self.makes).filter(|_| !self.makes.is_empty()),
            removes: self.removes.as_deref().and_then(all),
        }
    }

    /// Field names to which one entry of a list refers; `None` when they are not known.
    fn names(&self, written: &str, params: &Map<String, Value>) -> Option<Vec<String>> {
        let Some(param) = written.strip_prefix('$') else { return Some(vec![written.to_owned()]) };
        let default = || self.params.as_ref()?.get("properties")?.get(param)?.get("default");
        match params.get(param).or_else(default)? {
            Value::Null => Some(Vec::new()),
            Value::String(name) => Some(vec![name.clone()]),
            Value::Array(names) if names.len() > MAX_NAMED_FIELDS => None,
            Value::Array(names) => names.iter().map(|name| name.as_str().map(str::to_owned)).collect(),
            Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
        }
    }
}

/// Unit of work of one call of a module's `process`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Mode {
    /// One sample per call; any number of instances.
    #[default]
    Sample,
    /// All samples of one batch per call; any number of instances.
    Batch,
    /// One sample per call, in a single instance, which may hold samples back until the epoch ends.
    Stateful,
}

impl Mode {
    /// Name of the mode in manifests.
    pub fn name(self) -> &'static str {
        self.into()
    }
}
