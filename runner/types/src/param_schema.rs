//! Size limits for the JSON Schema of a module's params, which is untrusted and evaluated in this process.

use std::collections::BTreeMap;

use serde_json::Value;

/// Maximum number of schemas in a schema of params, with every reference replaced by its target.
pub const MAX_PARAM_SCHEMAS: u64 = 2_000;
/// Maximum number of checks of one value against one schema that params may need: schemas times values.
pub const MAX_PARAM_CHECKS: u64 = 200_000;

/// Maximum nesting of a schema, with its references followed: evaluation recurses over the levels.
const MAX_DEPTH: u32 = 64;
/// Number of schemas that a regular expression counts as, since it is compiled and examines every character of a text.
const PATTERN_SIZE: u64 = 50;
/// Keywords that apply to the values that no other part of their schema has evaluated. Finding these values takes a second pass
/// over the whole schema.
const LEFT_OVER: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];
/// Maximum length of a regular expression, in characters.
const MAX_PATTERN: usize = 1_000;
/// Number of bytes of text that count as one value.
const TEXT_BYTES: usize = 64;

/// Reason to reject a schema of params.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamSchemaFault {
    /// The schema expands to more than [`MAX_PARAM_SCHEMAS`] schemas.
    #[error("expands to more than {most} schemas with its references followed", most = MAX_PARAM_SCHEMAS)]
    TooLarge,
    /// The schema is nested deeper than evaluation may recurse.
    #[error("is nested more than {most} levels deep with its references followed", most = MAX_DEPTH)]
    TooDeep,
    /// A keyword other than `$ref` that refers to a schema, or changes the meaning of references.
    #[error("uses `{0}`, which is not supported; use `$ref`")]
    OtherReference(String),
    /// A reference that refers back to itself.
    #[error("refers to itself at `{0}`")]
    Circle(String),
    /// A reference without a target.
    #[error("refers to `{0}`, which does not exist in the schema")]
    UnknownPlace(String),
    /// A regular expression that is too long.
    #[error("contains a regular expression of more than {most} characters", most = MAX_PATTERN)]
    LongPattern,
}

/// Counts the schemas in a schema with its references followed. Rejects a schema that is cheap to write and expensive to
/// evaluate: one that refers to itself, or that refers to the same parts so often or so deep that it exceeds the limits.
pub fn param_schema_size(schema: &Value) -> Result<u64, ParamSchemaFault> {
    let mut walk = Walk { root: schema, of_references: BTreeMap::new() };
    let extent = walk.measure(schema, 0)?;
    if extent.schemas > MAX_PARAM_SCHEMAS {
        return Err(ParamSchemaFault::TooLarge);
    }
    Ok(extent.schemas)
}

/// Counts the values in params, including nested ones. A value counts more, the longer its text and the names of the members
/// that contain it are.
pub fn params_size(params: &Value) -> u64 {
    size_below(params, 0)
}

fn size_below(value: &Value, path_bytes: usize) -> u64 {
    let own = |bytes: usize| 1 + (bytes / TEXT_BYTES) as u64;
    match value {
        Value::String(text) => own(path_bytes + text.len()),
        Value::Array(elements) => {
            elements.iter().fold(own(path_bytes), |size, element| size + size_below(element, path_bytes))
        }
        Value::Object(members) => members
            .iter()
            .fold(own(path_bytes), |size, (name, member)| size + size_below(member, path_bytes + name.len())),
        Value::Null | Value::Bool(_) | Value::Number(_) => own(path_bytes),
    }
}

/// Size of a part of a schema, with its references followed.
#[derive(Clone, Copy, Default)]
struct Extent {
    /// Number of schemas that a value is checked against.
    schemas: u64,
    /// Number of additional checks of a value against schemas, to find its unevaluated parts. At each level, this search checks
    /// the parts and then searches them, so that each level of nested searches multiplies the cost by 2.6, or by 4.8 with two
    /// levels of `anyOf` in between.
    search: u64,
    /// Number of levels of nesting in the part.
    height: u32,
}

impl Extent {
    fn add(&mut self, schemas: u64) {
        self.schemas = self.schemas.saturating_add(schemas);
    }

    fn hold(&mut self, part: Self) {
        self.add(part.schemas);
        self.search = self.search.saturating_add(part.schemas).saturating_add(part.search);
        self.height = self.height.max(part.height + 1);
    }
}

struct Walk<'a> {
    root: &'a Value,
    /// Extents of the targets of references, by the text of the reference; `None` while the target is being measured.
    of_references: BTreeMap<&'a str, Option<Extent>>,
}

impl<'a> Walk<'a> {
    fn measure(&mut self, schema: &'a Value, depth: u32) -> Result<Extent, ParamSchemaFault> {
        if depth > MAX_DEPTH {
            return Err(ParamSchemaFault::TooDeep);
        }
        let (mut extent, below) = (Extent::default(), depth + 1);
        match schema {
            Value::Object(members) => {
                extent.add(1);
                for (name, value) in members {
                    match (name.as_str(), value) {
                        ("$ref", Value::String(place)) => extent.hold(self.measure_reference(place, below)?),
                        ("$dynamicRef" | "$recursiveRef", _) => {
                            return Err(ParamSchemaFault::OtherReference(name.clone()));
                        }
                        // References inside a schema with its own `$id` are resolved against that `$id`.
                        ("$id" | "id", Value::String(_)) if depth > 0 => {
                            return Err(ParamSchemaFault::OtherReference(name.clone()));
                        }
                        ("pattern", Value::String(pattern)) => extent.add(size_of_pattern(pattern)?),
                        ("patternProperties", Value::Object(named)) => {
                            for (pattern, named) in named {
                                extent.add(size_of_pattern(pattern)?);
                                extent.hold(self.measure(named, below)?);
                            }
                        }
                        // Keys are names of params, not keywords.
                        ("properties" | "dependencies" | "dependentSchemas", Value::Object(named)) => {
                            for named in named.values() {
                                extent.hold(self.measure(named, below)?);
                            }
                        }
                        // Definitions count where they are used.
                        ("$defs" | "definitions" | "default" | "examples", _) => {}
                        // These values are compared with the params and repeated in errors, so each of them counts.
                        ("const" | "enum" | "required" | "type", value) => extent.add(params_size(value)),
                        (_, value) => extent.hold(self.measure(value, below)?),
                    }
                }
                for _ in LEFT_OVER.iter().filter(|keyword| members.contains_key(**keyword)) {
                    extent.add(extent.search);
                }
            }
            Value::Array(elements) => {
                for element in elements {
                    let Extent { schemas, search, height } = self.measure(element, below)?;
                    extent.add(schemas);
                    extent.search = extent.search.saturating_add(search);
                    extent.height = extent.height.max(height + 1);
                }
            }
            _ => {}
        }
        Ok(extent)
    }

    fn measure_reference(&mut self, place: &'a str, depth: u32) -> Result<Extent, ParamSchemaFault> {
        match self.of_references.get(place) {
            Some(Some(extent)) if depth + extent.height > MAX_DEPTH => return Err(ParamSchemaFault::TooDeep),
            Some(Some(extent)) => return Ok(*extent),
            Some(None) => return Err(ParamSchemaFault::Circle(place.to_owned())),
            None => {}
        }
        // A percent-encoded reference is rejected: the validator would decode it and follow it to another place than this code.
        let pointer = place.strip_prefix('#').filter(|pointer| !pointer.contains('%'));
        let Some(target) = pointer.and_then(|pointer| self.root.pointer(pointer)) else {
            return Err(ParamSchemaFault::UnknownPlace(place.to_owned()));
        };
        self.of_references.insert(place, None);
        let extent = self.measure(target, depth)?;
        self.of_references.insert(place, Some(extent));
        Ok(extent)
    }
}

fn size_of_pattern(pattern: &str) -> Result<u64, ParamSchemaFault> {
    if pattern.chars().count() > MAX_PATTERN {
        return Err(ParamSchemaFault::LongPattern);
    }
    Ok(PATTERN_SIZE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ordinary_schemas_are_accepted() {
        assert_eq!(param_schema_size(&json!(true)), Ok(0));
        param_schema_size(&json!({
            "$defs": { "side": { "type": "integer", "minimum": 1 } },
            "type": "object",
            "properties": { "width": { "$ref": "#/$defs/side" }, "height": { "$ref": "#/$defs/side" }, "mode": { "enum": ["a", "b"] } },
            "required": ["width"],
            "additionalProperties": false
        }))
        .unwrap();
    }

    #[test]
    fn a_chain_of_references_that_doubles_each_time_is_rejected_quickly() {
        let mut schema = json!({ "$ref": "#/$defs/d0", "$defs": { "d15": { "type": "object" } } });
        for level in 0..15 {
            let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
            schema["$defs"][format!("d{level}")] = json!({ "allOf": [next, next] });
        }
        let told = param_schema_size(&schema).unwrap_err().to_string();
        assert_eq!(told, "expands to more than 2000 schemas with its references followed");
    }

    #[test]
    fn keywords_for_unevaluated_parts_are_accepted_at_few_levels_only() {
        for keyword in LEFT_OVER {
            let nested = |levels: usize| {
                let level = |inner: Value, _| json!({ "allOf": [inner], (keyword): false });
                param_schema_size(&(0..levels).fold(json!({}), level))
            };
            assert!(nested(6).is_ok_and(|size| size > 300));
            // With `anyOf` instead of `allOf`, checking an object of two properties against 24 levels took minutes.
            assert_eq!(nested(24), Err(ParamSchemaFault::TooLarge), "{keyword}");
        }
    }

    #[test]
    fn references_through_nested_lists_are_limited_in_depth() {
        // Ninety references, each below 110 lists: ten thousand levels in 22 kB.
        let nested = |inner: Value| (0..110).fold(inner, |inner, _| json!([inner]));
        let links: Vec<Value> = (1..90)
            .map(|next| nested(json!({ "$ref": format!("#/enum/{next}") })))
            .chain([json!(true)])
            .collect();
        let schema = json!({ "$ref": "#/enum/0", "enum": links });
        assert_eq!(param_schema_size(&schema), Err(ParamSchemaFault::TooDeep));
    }

    #[test]
    fn the_depth_of_a_reference_counts_at_every_use() {
        let nested =
            |levels: usize, inner: Value| (0..levels).fold(inner, |inner, _| json!({ "not": inner }));
        let deep = |levels: usize| {
            let used = json!({ "$ref": "#/$defs/a" });
            let schema = json!({ "$defs": { "a": nested(40, json!({})) }, "allOf": [used, nested(levels, used.clone())] });
            param_schema_size(&schema)
        };
        assert_eq!((deep(21).is_ok(), deep(22)), (true, Err(ParamSchemaFault::TooDeep)));
    }

    #[test]
    fn the_size_of_params_grows_with_their_texts_and_the_names_above_them() {
        assert_eq!(params_size(&json!({ "a": [1, null, "text"] })), 5);
        assert_eq!(params_size(&json!("x".repeat(640))), 11);
        assert_eq!(params_size(&json!({ ("x".repeat(640)): [1, 2] })), 1 + 3 * 11);
    }

    #[test]
    fn regular_expressions_are_limited_in_number_and_length() {
        let with = |count: usize, pattern: &str| {
            param_schema_size(&json!({ "allOf": vec![json!({ "pattern": pattern }); count] }))
        };
        with(30, "^[a-z]+$").unwrap();
        assert_eq!(with(41, "^[a-z]+$").unwrap_err(), ParamSchemaFault::TooLarge);
        let told = with(1, &"a".repeat(1_001)).unwrap_err().to_string();
        assert_eq!(told, "contains a regular expression of more than 1000 characters");
        let named: serde_json::Map<_, _> = (0..41).map(|n| (format!("^{n}"), json!({}))).collect();
        assert!(param_schema_size(&json!({ "patternProperties": named })).is_err());
        param_schema_size(&json!({ "properties": { "pattern": { "type": "string" } } })).unwrap();
    }

    #[test]
    fn references_to_the_schema_itself_or_to_other_documents_are_rejected() {
        for (schema, told) in [
            (json!({ "properties": { "a": { "$ref": "#" } } }), "refers to itself at `#`"),
            (
                json!({ "$ref": "#/$defs/a", "$defs": { "a": { "items": { "$ref": "#/$defs/a" } } } }),
                "refers to itself at `#/$defs/a`",
            ),
            (
                json!({ "$ref": "https://example.org/s.json" }),
                "refers to `https://example.org/s.json`, which does not exist in the schema",
            ),
            (
                json!({ "$ref": "#/$defs/none" }),
                "refers to `#/$defs/none`, which does not exist in the schema",
            ),
            (json!({ "properties": { "type": { "$ref": "#" } } }), "refers to itself at `#`"),
            (json!({ "$dynamicRef": "#x" }), "uses `$dynamicRef`, which is not supported; use `$ref`"),
            (
                json!({ "not": { "$id": "a:b", "$ref": "#" } }),
                "uses `$id`, which is not supported; use `$ref`",
            ),
            (
                json!({ "$ref": "#/a%25", "a%25": {}, "a%": {} }),
                "refers to `#/a%25`, which does not exist in the schema",
            ),
            (json!({ "dependencies": { "$defs": { "$ref": "#" } } }), "refers to itself at `#`"),
        ] {
            assert_eq!(param_schema_size(&schema).unwrap_err().to_string(), told);
        }
    }

    #[test]
    fn a_long_schema_is_rejected() {
        let long = json!({ "allOf": vec![json!({}); 3000] });
        assert!(param_schema_size(&long).is_err());
    }
}
