//! Size of the JSON Schema of a module's params: a stranger wrote it, and this process evaluates it.

use std::collections::BTreeMap;

use serde_json::Value;

/// Most schemas that a schema of params may come to, with every reference replaced by what it refers to.
pub const MAX_PARAM_SCHEMAS: u64 = 2_000;
/// Most checks of one value against one schema that params may need: schemas times values.
pub const MAX_PARAM_CHECKS: u64 = 200_000;

/// Most levels of a schema, with its references followed: evaluation recurses over them.
const MAX_DEPTH: u32 = 64;
/// Schemas that a regular expression counts as: each is compiled, and looks at every character.
const PATTERN_SIZE: u64 = 50;
/// Keywords that look for what the rest of their schema has left over, which needs a second walk over all of it.
const LEFT_OVER: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];
/// Most characters of a regular expression.
const MAX_PATTERN: usize = 1_000;
/// Bytes of text that count as one value.
const TEXT_BYTES: usize = 64;

/// Reason to refuse a schema of params.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamSchemaFault {
    /// It comes to more than [`MAX_PARAM_SCHEMAS`].
    #[error("comes to more than {most} schemas with its references followed", most = MAX_PARAM_SCHEMAS)]
    TooLarge,
    /// It is nested deeper than evaluation may recurse.
    #[error("is nested more than {most} levels deep with its references followed", most = MAX_DEPTH)]
    TooDeep,
    /// A keyword other than `$ref` that refers to a schema, or changes what references mean.
    #[error("uses `{0}`, which is not followed here; use `$ref`")]
    OtherReference(String),
    /// A reference that leads back to itself.
    #[error("refers to itself at `{0}`")]
    Circle(String),
    /// A reference to nothing.
    #[error("refers to `{0}`, which is no place in it")]
    UnknownPlace(String),
    /// A long regular expression.
    #[error("holds a regular expression of more than {most} characters", most = MAX_PATTERN)]
    LongPattern,
}

/// The number of schemas that a schema comes to with its references followed. Refuses one that is cheap to write and expensive
/// to evaluate: one that refers to itself, or to the same parts so often or so deep that it exceeds the limits.
pub fn param_schema_size(schema: &Value) -> Result<u64, ParamSchemaFault> {
    let mut walk = Walk { root: schema, of_references: BTreeMap::new() };
    let extent = walk.measure(schema, 0)?;
    if extent.schemas > MAX_PARAM_SCHEMAS {
        return Err(ParamSchemaFault::TooLarge);
    }
    Ok(extent.schemas)
}

/// The number of values in params, those within others included. Text counts by its length, with the names on the way to it.
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
    /// Schemas that a value is checked against.
    schemas: u64,
    /// Schemas that it is checked against once more to find what they leave over. At each level that search checks the parts and
    /// then searches them, so that nested searches cost 2.6 times as much a level, and 4.8 times with two levels of `anyOf` in between.
    search: u64,
    /// Levels below this one.
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
    /// By the text of the reference; `None` while its target is being measured.
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
                        // Below it, references begin elsewhere.
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
                        // Names of params, which may be called anything.
                        ("properties" | "dependencies" | "dependentSchemas", Value::Object(named)) => {
                            for named in named.values() {
                                extent.hold(self.measure(named, below)?);
                            }
                        }
                        // What is defined counts where it is used.
                        ("$defs" | "definitions" | "default" | "examples", _) => {}
                        // Compared with a value, and repeated in an error.
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
        // An escaped name would be another one here than where the schema is evaluated.
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
    fn schemas_as_people_write_them_pass() {
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
    fn a_chain_of_references_that_doubles_each_time_is_refused_at_once() {
        let mut schema = json!({ "$ref": "#/$defs/d0", "$defs": { "d15": { "type": "object" } } });
        for level in 0..15 {
            let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
            schema["$defs"][format!("d{level}")] = json!({ "allOf": [next, next] });
        }
        let told = param_schema_size(&schema).unwrap_err().to_string();
        assert_eq!(told, "comes to more than 2000 schemas with its references followed");
    }

    #[test]
    fn what_is_left_over_at_each_level_is_looked_for_at_few_levels() {
        for keyword in LEFT_OVER {
            let nested = |levels: usize| {
                let level = |inner: Value, _| json!({ "allOf": [inner], (keyword): false });
                param_schema_size(&(0..levels).fold(json!({}), level))
            };
            assert!(nested(6).is_ok_and(|size| size > 300));
            // With `anyOf` in place of `allOf`, 24 levels took minutes to look for two properties.
            assert_eq!(nested(24), Err(ParamSchemaFault::TooLarge), "{keyword}");
        }
    }

    #[test]
    fn links_through_nested_lists_have_an_end() {
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
    fn the_depth_of_a_reference_counts_wherever_it_is_used() {
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
    fn regular_expressions_are_few_and_short() {
        let with = |count: usize, pattern: &str| {
            param_schema_size(&json!({ "allOf": vec![json!({ "pattern": pattern }); count] }))
        };
        with(30, "^[a-z]+$").unwrap();
        assert_eq!(with(41, "^[a-z]+$").unwrap_err(), ParamSchemaFault::TooLarge);
        let told = with(1, &"a".repeat(1_001)).unwrap_err().to_string();
        assert_eq!(told, "holds a regular expression of more than 1000 characters");
        let named: serde_json::Map<_, _> = (0..41).map(|n| (format!("^{n}"), json!({}))).collect();
        assert!(param_schema_size(&json!({ "patternProperties": named })).is_err());
        param_schema_size(&json!({ "properties": { "pattern": { "type": "string" } } })).unwrap();
    }

    #[test]
    fn what_refers_to_itself_or_elsewhere_is_refused() {
        for (schema, told) in [
            (json!({ "properties": { "a": { "$ref": "#" } } }), "refers to itself at `#`"),
            (
                json!({ "$ref": "#/$defs/a", "$defs": { "a": { "items": { "$ref": "#/$defs/a" } } } }),
                "refers to itself at `#/$defs/a`",
            ),
            (
                json!({ "$ref": "https://example.org/s.json" }),
                "refers to `https://example.org/s.json`, which is no place in it",
            ),
            (json!({ "$ref": "#/$defs/none" }), "refers to `#/$defs/none`, which is no place in it"),
            (json!({ "properties": { "type": { "$ref": "#" } } }), "refers to itself at `#`"),
            (json!({ "$dynamicRef": "#x" }), "uses `$dynamicRef`, which is not followed here; use `$ref`"),
            (
                json!({ "not": { "$id": "a:b", "$ref": "#" } }),
                "uses `$id`, which is not followed here; use `$ref`",
            ),
            (
                json!({ "$ref": "#/a%25", "a%25": {}, "a%": {} }),
                "refers to `#/a%25`, which is no place in it",
            ),
            (json!({ "dependencies": { "$defs": { "$ref": "#" } } }), "refers to itself at `#`"),
        ] {
            assert_eq!(param_schema_size(&schema).unwrap_err().to_string(), told);
        }
    }

    #[test]
    fn a_schema_that_is_long_is_refused_too() {
        let long = json!({ "allOf": vec![json!({}); 3000] });
        assert!(param_schema_size(&long).is_err());
    }
}
