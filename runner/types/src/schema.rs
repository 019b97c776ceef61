//! The JSON Schema of the pipeline document.

use serde_json::Value;

use crate::spec::Spec;

/// The JSON Schema (draft 2020-12) of the pipeline document, made from the types that read it.
pub fn schema() -> Value {
    schemars::schema_for!(Spec).to_value()
}
