//! What a stage module says of itself, readable without running it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use strum::IntoStaticStr;

/// Name of the WASM custom section that holds a [`Manifest`] as JSON.
pub const MANIFEST_SECTION: &str = "penstock.manifest";

/// Most fields that one list of a manifest names; the names of a longer list count as not known. A sample has no more.
pub const MAX_NAMED_FIELDS: usize = 256;

/// Most counters one module may declare.
pub const MAX_COUNTERS: usize = 16;

/// What a stage module says of itself. The guest SDK writes it into the custom section
/// `penstock.manifest`; a module without that section is not a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The module's name, e.g. `decode-resize`.
    pub name: String,
    /// Its own version, e.g. `1.2.0`.
    pub version: String,
    /// What it does, in a sentence or a paragraph.
    #[serde(default)]
    pub doc: String,
    /// What it is called with.
    #[serde(default)]
    pub mode: Mode,
    /// Fields that cross into the module; `null` means all of them. The others are carried past it.
    #[serde(default)]
    pub wants: Option<Vec<String>>,
    /// Fields it makes or replaces; for readers and for checks, not enforced per sample.
    #[serde(default)]
    pub makes: Vec<String>,
    /// Fields among those it wants that do not go on; `null` when it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removes: Option<Vec<String>>,
    /// Set when one sample may become several, `false` when it never does; `null` when the module does not say. Means nothing for
    /// stateful modules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out: Option<bool>,
    /// Counters it may add to, at most 16.
    #[serde(default)]
    pub counters: Vec<String>,
    /// JSON Schema of `params`; `null` when it takes none.
    #[serde(default)]
    pub params: Option<serde_json::Value>,
}

/// Names of a manifest's fields, with those that params give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFields {
    /// Fields that cross into the module; `None` for all of them.
    pub wants: Option<Vec<WantedField>>,
    /// Fields it makes or replaces; `None` when they are not known.
    pub makes: Option<Vec<String>>,
    /// Fields that do not go on; `None` when they are not known.
    pub removes: Option<Vec<String>>,
}

/// A field that crosses into a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedField {
    /// Its name.
    pub field: String,
    /// The param that gives the name.
    pub param: Option<String>,
    /// Set when samples may lack it.
    pub is_optional: bool,
}

impl Manifest {
    /// The names of its fields with these params. In a list, `$name` stands for the field, or the list of fields, that the param
    /// `name` gives, or its default. A wanted field that samples may lack ends with `?`.
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

    /// The names that one entry stands for; `None` when they are not known.
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

/// What a module's `process` is called with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Mode {
    /// One sample a call; any number of instances.
    #[default]
    Sample,
    /// All samples of one batch a call; any number of instances.
    Batch,
    /// One sample a call, one instance, which may hold samples back until the epoch ends.
    Stateful,
}

impl Mode {
    /// The word in manifests.
    pub fn name(self) -> &'static str {
        self.into()
    }
}
