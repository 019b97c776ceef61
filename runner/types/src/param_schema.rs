//! How large the schema of a module's params is: a stranger wrote it, and this process evaluates it.

use std::collections::BTreeMap;

use serde_json::Value;

/// Most schemas that a schema of params may come to, with every reference replaced by what it refers to. A value is
/// checked against each of them at most once for each of its own members and elements.
pub const MAX_PARAM_SCHEMAS: u64 = 2_000;
/// Most members and elements that params may have, those of members and elements included.
pub const MAX_PARAM_VALUES: usize = 10_000;

/// As how many schemas a regular expression counts: each is compiled, and looks at every character.
const PATTERN_SIZE: u64 = 50;
/// Most characters of a regular expression.
const MAX_PATTERN: usize = 1_000;

/// Members whose value is no schema and holds none.
const PLAIN: [&str; 6] = ["const", "default", "enum", "examples", "required", "type"];

/// Reason to refuse a schema of params.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamSchemaFault {
    /// It comes to more than [`MAX_PARAM_SCHEMAS`].
    #[error("comes to more than {most} schemas with its references followed", most = MAX_PARAM_SCHEMAS)]
    TooLarge,
    /// A keyword other than `$ref` that refers to a schema.
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

/// Refuses a schema that is cheap to write and expensive to evaluate: one that refers to itself, or to the same parts so often
/// that they come to more than [`MAX_PARAM_SCHEMAS`].
pub fn check_param_schema(schema: &Value) -> Result<(), ParamSchemaFault> {
    let mut sizes = Sizes { root: schema, of_references: BTreeMap::new() };
    let size = sizes.of(schema)?;
    if size > MAX_PARAM_SCHEMAS {
        return Err(ParamSchemaFault::TooLarge);
    }
    Ok(())
}

/// How many values there are in a value, itself included.
pub fn count_values(value: &Value) -> usize {
    match value {
        Value::Array(elements) => 1 + elements.iter().map(count_values).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(count_values).sum::<usize>(),
        _ => 1,
    }
}

struct Sizes<'a> {
    root: &'a Value,
    /// By what is referred to; `None` while it is being looked at.
    of_references: BTreeMap<&'a str, Option<u64>>,
}

impl<'a> Sizes<'a> {
    fn of(&mut self, schema: &'a Value) -> Result<u64, ParamSchemaFault> {
        match schema {
            Value::Object(members) => {
                let mut size = 1_u64;
                for (name, value) in members {
                    let more = match (name.as_str(), value) {
                        ("$ref", Value::String(place)) => self.of_reference(place)?,
                        ("$dynamicRef" | "$recursiveRef", _) => {
                            return Err(ParamSchemaFault::OtherReference(name.clone()));
                        }
                        ("pattern", Value::String(pattern)) => size_of_pattern(pattern)?,
                        ("patternProperties", Value::Object(named)) => {
                            named.iter().try_fold(0_u64, |size, (pattern, named)| {
                                let more = size_of_pattern(pattern)?.saturating_add(self.of(named)?);
                                Ok::<_, ParamSchemaFault>(size.saturating_add(more))
                            })?
                        }
                        // Names of params, which may be called anything.
                        ("properties" | "dependentSchemas", Value::Object(named)) => {
                            named.values().try_fold(0_u64, |size, named| {
                                Ok::<_, ParamSchemaFault>(size.saturating_add(self.of(named)?))
                            })?
                        }
                        // What is defined counts where it is used.
                        ("$defs" | "definitions", _) => 0,
                        (plain, _) if PLAIN.contains(&plain) => 0,
                        (_, value) => self.of(value)?,
                    };
                    size = size.saturating_add(more);
                }
                Ok(size)
            }
            Value::Array(elements) => {
                elements.iter().try_fold(0_u64, |size, element| Ok(size.saturating_add(self.of(element)?)))
            }
            _ => Ok(0),
        }
    }

    fn of_reference(&mut self, place: &'a str) -> Result<u64, ParamSchemaFault> {
        match self.of_references.get(place) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => return Err(ParamSchemaFault::Circle(place.to_owned())),
            None => {}
        }
        let target = place.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        let Some(target) = target else {
            return Err(ParamSchemaFault::UnknownPlace(place.to_owned()));
        };
        self.of_references.insert(place, None);
        let size = self.of(target)?;
        self.of_references.insert(place, Some(size));
        Ok(size)
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
        check_param_schema(&json!(true)).unwrap();
        check_param_schema(&json!({
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
        let mut schema = json!({ "$ref": "#/$defs/d0", "$defs": { "d60": { "type": "object" } } });
        for level in 0..60 {
            let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
            schema["$defs"][format!("d{level}")] = json!({ "allOf": [next, next] });
        }
        let told = check_param_schema(&schema).unwrap_err().to_string();
        assert_eq!(told, "comes to more than 2000 schemas with its references followed");
    }

    #[test]
    fn regular_expressions_are_few_and_short() {
        let with = |count: usize, pattern: &str| {
            check_param_schema(&json!({ "allOf": vec![json!({ "pattern": pattern }); count] }))
        };
        with(30, "^[a-z]+$").unwrap();
        assert_eq!(with(41, "^[a-z]+$").unwrap_err(), ParamSchemaFault::TooLarge);
        let told = with(1, &"a".repeat(1_001)).unwrap_err().to_string();
        assert_eq!(told, "holds a regular expression of more than 1000 characters");
        let named: serde_json::Map<_, _> = (0..41).map(|n| (format!("^{n}"), json!({}))).collect();
        assert!(check_param_schema(&json!({ "patternProperties": named })).is_err());
        check_param_schema(&json!({ "properties": { "pattern": { "type": "string" } } })).unwrap();
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
        ] {
            assert_eq!(check_param_schema(&schema).unwrap_err().to_string(), told);
        }
    }

    #[test]
    fn a_schema_that_is_long_is_refused_too() {
        let long = json!({ "allOf": vec![json!({}); 3000] });
        assert!(check_param_schema(&long).is_err());
    }
}
