//! Bounds the work of regular expressions in schemas of params before any of them runs.

use penstock_types::fault::SpecFault;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Map, Value};

use crate::params::Params;

/// Maximum work of all expressions of a document. The unit is one state examining one byte of text, which takes some nanoseconds.
/// A plain expression over a text of 100 KB takes a thirtieth of the maximum.
const MAX_WORK: u64 = 200_000_000;
/// Number of states assumed for an expression that this parser rejects. The validator compiles no expression with more states.
const MAX_STATES: u64 = 16_384;
/// Number of states assumed for a class that contains characters beyond ASCII, which are sequences of bytes.
const BEYOND_ASCII: u64 = 16;
/// Maximum number of expressions in a schema with its references followed; `param_schema` counts them.
const MAX_PATTERNS: u64 = 40;

/// Rejects params whose texts are too long for the expressions that match them, over all params together.
pub(crate) fn check_patterns(all: &[Params<'_>]) -> Vec<SpecFault> {
    let mut left = MAX_WORK;
    let mut faults = Vec::new();
    for Params { given, schema, module, place } in all {
        match left.checked_sub(work(given, *schema)) {
            Some(rest) => left = rest,
            None => {
                let message = format!(
                    "the texts in `params` are too long for the regular expressions with which the module `{module}` checks them; move large data into `assets`"
                );
                faults.push(SpecFault::new(place.clone(), message));
            }
        }
    }
    faults
}

/// Upper bound of the work of all expressions of the schema over all texts of the params.
fn work(params: &Map<String, Value>, schema: Option<&Value>) -> u64 {
    let mut patterns = Patterns::default();
    if let Some(schema) = schema {
        patterns.add(schema, 1);
    }
    let states =
        if patterns.has_references { patterns.largest.saturating_mul(MAX_PATTERNS) } else { patterns.states };
    states.saturating_mul(text_bytes(params))
}

/// Number of states in the expressions of a schema.
#[derive(Default)]
struct Patterns {
    /// Sum over all expressions, each multiplied by its nesting: a schema is evaluated again for every schema that contains it.
    states: u64,
    largest: u64,
    has_references: bool,
}

impl Patterns {
    fn add(&mut self, schema: &Value, depth: u64) {
        match schema {
            Value::Object(members) => {
                for (name, value) in members {
                    self.has_references |= name == "$ref";
                    match (name.as_str(), value) {
                        ("pattern", Value::String(pattern)) => self.add_pattern(pattern, depth),
                        ("patternProperties", Value::Object(named)) => {
                            named.keys().for_each(|pattern| self.add_pattern(pattern, depth));
                        }
                        _ => {}
                    }
                    self.add(value, depth + 1);
                }
            }
            Value::Array(elements) => elements.iter().for_each(|element| self.add(element, depth + 1)),
            _ => {}
        }
    }

    fn add_pattern(&mut self, pattern: &str, depth: u64) {
        // `\d` and similar classes are ASCII, as in ECMA-262. An expression that this parser rejects may still be valid.
        let parsed = ParserBuilder::new().unicode(false).utf8(false).build().parse(pattern);
        let states = parsed.map_or(MAX_STATES, |parsed| states(&parsed).min(MAX_STATES));
        // A nested schema is two levels below the schema that contains it.
        let states = states.saturating_mul(depth.div_ceil(2));
        self.states = self.states.saturating_add(states);
        self.largest = self.largest.max(states);
    }
}

/// Approximate number of states in the automaton of an expression. The recursion is safe, since the parser limits the nesting.
fn states(hir: &Hir) -> u64 {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len() as u64,
        HirKind::Class(Class::Bytes(class)) if class.is_ascii() => class.ranges().len() as u64,
        HirKind::Class(Class::Bytes(_) | Class::Unicode(_)) => BEYOND_ASCII,
        HirKind::Repetition(repeated) => {
            let times = repeated.max.unwrap_or(repeated.min).max(1);
            states(&repeated.sub).saturating_mul(times.into())
        }
        HirKind::Capture(group) => states(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().fold(1, |sum, part| states(part).saturating_add(sum))
        }
    }
}

/// Total length of all names and texts, in bytes.
fn text_bytes(params: &Map<String, Value>) -> u64 {
    fn bytes(value: &Value) -> u64 {
        match value {
            Value::String(text) => text.len() as u64,
            Value::Array(elements) => elements.iter().map(bytes).sum(),
            Value::Object(members) => text_bytes(members),
            _ => 0,
        }
    }
    params.iter().map(|(name, value)| name.len() as u64 + bytes(value)).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use penstock_types::fault::Pointer;
    use penstock_types::plan::{ModuleFacts, Plan};
    use serde_json::json;

    use super::*;
    use crate::params::params_of;

    fn is_refused(schema: &Value, text: &str) -> bool {
        let params = json!({ "text": text });
        let (given, place) = (params.as_object().unwrap(), Pointer::ROOT);
        !check_patterns(&[Params { given, schema: Some(schema), module: "m", place }]).is_empty()
    }

    #[test]
    fn large_expressions_are_accepted_for_short_texts_only() {
        let large: Vec<Value> =
            (2962..3001).map(|times| json!({ "pattern": format!("a[ab]{{{times}}}[^ab]") })).collect();
        let schema = json!({ "properties": { "text": { "allOf": large } } });
        assert!(!is_refused(&schema, &"ab".repeat(200)));
        assert!(is_refused(&schema, &"ab".repeat(5_000)));
        let referred = json!({
            "$defs": { "large": large[0] },
            "properties": { "text": { "allOf": vec![json!({ "$ref": "#/$defs/large" }); 39] } }
        });
        assert!(is_refused(&referred, &"ab".repeat(5_000)));
        let named: Map<String, Value> =
            large.iter().map(|one| (one["pattern"].as_str().unwrap().to_owned(), json!(true))).collect();
        assert!(is_refused(&json!({ "patternProperties": named }), &"ab".repeat(5_000)));
    }

    #[test]
    fn ordinary_expressions_are_accepted_for_the_largest_documents() {
        let text = "x".repeat(500 << 10);
        for pattern in
            ["^[a-z]+$", "^(?:[A-Za-z0-9+/]{4})*$", r"^\d{4}-\d\d-\d\d", "^x{1,64}$", r"^[^\s]+\.jpe?g$"]
        {
            assert!(
                !is_refused(&json!({ "properties": { "text": { "pattern": pattern } } }), &text),
                "{pattern}"
            );
        }
        let named = r"^[\p{L}\p{N}_-]{1,100}$"; // counted as the largest
        assert!(!is_refused(&json!({ "properties": { "text": { "pattern": named } } }), &"x".repeat(1_000)));
    }

    #[test]
    fn all_stages_of_a_document_share_the_bound() {
        let module = |text: &str| {
            let stage = json!({ "wasm": { "module": "m", "params": { "text": text } } });
            json!({ "source": { "range": { "count": 1 } }, "stages": vec![stage; 10] })
        };
        let manifest = json!({
            "name": "m", "version": "1",
            "params": { "properties": { "text": { "pattern": "a[ab]{2962}[^ab]" } } }
        });
        let manifest = serde_json::from_value(manifest).unwrap();
        let facts =
            ModuleFacts { name: "m".to_owned(), digest: format!("sha256:{}", "0".repeat(64)), manifest };
        let modules = BTreeMap::from([("m".to_owned(), facts)]);
        let faults = |text: &str| {
            let spec = penstock_types::spec::Spec::from_value(module(text)).unwrap();
            let known =
                penstock_types::plan::Known { modules: &modules, names: &[], fields: None, stores: None };
            check_patterns(&params_of(&Plan::draft(&spec, known).plan, &modules)).len()
        };
        assert_eq!(faults(&"a".repeat(1_000)), 0);
        // Each stage adds about 59 million units of work, so that only the first three of ten stay within the maximum.
        assert_eq!(faults(&"a".repeat(10_000)), 7);
    }
}
