use std::collections::BTreeMap;
use std::fmt::Display;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError};
use penstock_types::fault::{Pointer, SpecFault, listed, suggestion};
use penstock_types::param_schema::{MAX_PARAM_CHECKS, param_schema_size, params_size};
use penstock_types::plan::{ModuleFacts, Plan, StageKind};
use penstock_types::spec::MAX_FAULTS;
use serde_json::{Map, Value};

use crate::param_patterns::check_patterns;

/// Maximum size of a compiled regular expression of a schema, in bytes.
const PATTERN_BYTES: usize = 256 << 10;
/// Maximum size of the cache of a regular expression's automaton, in bytes.
const PATTERN_CACHE_BYTES: usize = 1 << 20;

/// Maximum number of names that a fault lists if none of them is near to the one found.
const MOST_NAMES: usize = 20;

pub(crate) struct Params<'a> {
    pub(crate) given: &'a Map<String, Value>,
    /// Schema in the module's manifest; `None` if the module takes no params.
    pub(crate) schema: Option<&'a Value>,
    pub(crate) module: &'a str,
    pub(crate) place: Pointer,
}

/// Params of all WASM stages of a plan.
pub(crate) fn params_of<'a>(plan: &'a Plan, modules: &'a BTreeMap<String, ModuleFacts>) -> Vec<Params<'a>> {
    let params = plan.stages.iter().filter_map(|stage| {
        let StageKind::Wasm(wasm) = &stage.kind else { return None };
        let facts = modules.get(&wasm.module)?;
        let (schema, place) = (facts.manifest.params.as_ref(), stage.place.key("params"));
        Some(Params { given: &wasm.params, schema, module: &facts.name, place })
    });
    params.collect()
}

/// Checks params against the schemas of their modules.
pub(crate) fn check_params(all: &[Params<'_>]) -> Vec<SpecFault> {
    // Schemas are evaluated only if all of them are known to finish soon.
    let mut faults = check_patterns(all);
    if !faults.is_empty() {
        return faults;
    }
    for Params { given, schema, module, place } in all {
        match schema {
            Some(schema) => check(&Value::Object((*given).clone()), schema, module, place, &mut faults),
            None if given.is_empty() => {}
            None => {
                let found = format!("the module `{module}` takes no parameters");
                faults.push(SpecFault::new(place.clone(), found));
            }
        }
    }
    faults
}

fn check(params: &Value, schema: &Value, module: &str, place: &Pointer, faults: &mut Vec<SpecFault>) {
    let unusable = |error: &dyn Display| {
        let found = format!("the manifest of the module `{module}` contains an unusable schema: {error}");
        SpecFault::new(place.clone(), format!("{found}; the author of the module must fix the schema"))
    };
    // Schema and params are both untrusted, and the validator keeps all errors in memory before it returns the first.
    let (schemas, values) = match param_schema_size(schema) {
        Ok(schemas) => (schemas.max(1), params_size(params)),
        Err(reason) => return faults.push(unusable(&format_args!("it {reason}"))),
    };
    if schemas.saturating_mul(values) > MAX_PARAM_CHECKS {
        let found = format!(
            "checking {values} values against the {schemas} schemas of the module `{module}` is more than \
             {MAX_PARAM_CHECKS} checks; move large data into `assets`"
        );
        return faults.push(SpecFault::new(place.clone(), found));
    }
    // The schema is untrusted: backtracking expressions could run forever.
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_CACHE_BYTES);
    match jsonschema::options().with_pattern_options(patterns).build(schema) {
        Ok(validator) => {
            let fault = |error: &ValidationError| {
                let within = Pointer::parse(error.instance_path().as_str());
                let steps = within.iter().flat_map(Pointer::steps);
                let place = steps.fold(place.clone(), |place, step| place.key(&step));
                let fault =
                    SpecFault::new(place, format!("the module `{module}` refuses this value: {error}"));
                match near_names(error, schema) {
                    Some(hint) => fault.hint(hint),
                    None => fault,
                }
            };
            let errors = validator.iter_errors(params);
            let found =
                errors.flat_map(|error| most_specific(&error).into_iter().map(fault).collect::<Vec<_>>());
            faults.extend(found.take(MAX_FAULTS));
        }
        Err(error) => faults.push(unusable(&error)),
    }
}

/// Names that a schema has in place of unexpected ones; `None` for other errors.
fn near_names(error: &ValidationError<'_>, schema: &Value) -> Option<String> {
    let ValidationErrorKind::AdditionalProperties { unexpected } = error.kind() else { return None };
    let (object, _) = error.schema_path().as_str().rsplit_once('/')?;
    let known = || schema.pointer(object)?.get("properties")?.as_object();
    let known: Vec<&str> = known()?.keys().map(String::as_str).collect();
    let near: String = unexpected.iter().map(|name| suggestion(name, known.iter().copied())).collect();
    if !near.is_empty() {
        return Some(near.trim_end().to_owned());
    }
    (1..=MOST_NAMES).contains(&known.len()).then(|| format!("expected {}", listed(known)))
}

/// Returns the errors of the only alternative of `anyOf` or `oneOf` that accepts the type of the value, if there is one: they
/// state more than the error itself, which is that no alternative accepts the value.
fn most_specific<'a>(error: &'a ValidationError<'_>) -> Vec<&'a ValidationError<'a>> {
    let (ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context }) =
        error.kind()
    else {
        return vec![error];
    };
    let is_of_type = |errors: &&Vec<ValidationError>| {
        let mut own = errors.iter().filter(|each| each.instance_path() == error.instance_path());
        !own.any(|each| matches!(each.kind(), ValidationErrorKind::Type { .. }))
    };
    let mut alternatives = context.iter().filter(is_of_type);
    match (alternatives.next(), alternatives.next()) {
        (Some(errors), None) => errors.iter().flat_map(most_specific).collect(),
        _ => vec![error],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(schema: &Value, params: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        check(params, schema, "m", &Pointer::ROOT, &mut faults);
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn many_values_are_not_checked_against_many_schemas() {
        let schema =
            json!({ "properties": { "a": { "items": { "allOf": vec![json!({ "const": 1 }); 900] } } } });
        let params = |values: usize| json!({ "a": vec![0; values] });
        assert_eq!(told(&schema, &params(100)).len(), MAX_FAULTS);
        let told = told(&schema, &params(9_900));
        insta::assert_snapshot!(told.join("\n"), @"the document: checking 9902 values against the 1803 schemas of the module `m` is more than 200000 checks; move large data into `assets`");
    }

    #[test]
    fn the_deepest_schema_is_evaluated_on_the_stack_of_a_thread() {
        let mut schema = json!({ "type": "integer" });
        let mut params = json!("no integer");
        for _ in 0..31 {
            schema = json!({ "anyOf": [{ "not": {} }, { "items": schema }] });
            params = json!([params]);
        }
        assert_eq!(told(&schema, &params).len(), 1);
    }

    #[test]
    fn the_alternative_of_the_values_type_gives_the_reason() {
        let number = json!({ "type": "integer", "minimum": 1 });
        let list = json!({ "type": "array", "items": number, "maxItems": 2 });
        let size = json!({ "anyOf": [{ "anyOf": [number, list] }, { "type": "null" }] });
        let schema = json!({ "properties": { "size": size } });
        let refused = [json!(0), json!([5, 0]), json!([1, 2, 3]), json!("a")];
        let told: Vec<_> = refused.iter().flat_map(|size| told(&schema, &json!({ "size": size }))).collect();
        insta::assert_snapshot!(told.join("\n"), @r#"
        /size: the module `m` refuses this value: 0 is less than the minimum of 1
        /size/1: the module `m` refuses this value: 0 is less than the minimum of 1
        /size: the module `m` refuses this value: [1,2,3] has more than 2 items
        /size: the module `m` refuses this value: "a" is not valid under any of the schemas listed in the 'anyOf' keyword
        "#);
    }

    #[test]
    fn a_mistyped_op_or_param_is_told_with_the_near_name() {
        let crop = json!({ "properties": { "size": {}, "scale": {} }, "additionalProperties": false });
        let op = json!({ "properties": { "RandomResizedCrop": { "$ref": "#/$defs/crop" }, "Resize": {} }, "additionalProperties": false });
        let schema = json!({ "$defs": { "crop": crop }, "properties": { "ops": { "items": op } }, "additionalProperties": false });
        let params = json!({ "ops": [{ "RandomResizeCrop": {} }, { "RandomResizedCrop": { "sise": 3 } }, { "Blur": {} }], "op": 1 });
        insta::assert_snapshot!(told(&schema, &params).join("\n"), @"
        /ops/0: the module `m` refuses this value: Additional properties are not allowed ('RandomResizeCrop' was unexpected); did you mean `RandomResizedCrop`?
        /ops/1/RandomResizedCrop: the module `m` refuses this value: Additional properties are not allowed ('sise' was unexpected); did you mean `size`?
        /ops/2: the module `m` refuses this value: Additional properties are not allowed ('Blur' was unexpected); expected `RandomResizedCrop`, `Resize`
        the document: the module `m` refuses this value: Additional properties are not allowed ('op' was unexpected); did you mean `ops`?
        ");
    }

    #[test]
    fn backtracking_and_oversized_expressions_are_not_evaluated() {
        let params = json!({ "a": "aaaaaaaaaaaaaaaaaaaaaaaaac" });
        let schema = |pattern: &str| json!({ "additionalProperties": { "pattern": pattern } });
        assert_eq!(told(&schema("^a+c$"), &params), Vec::<String>::new());
        assert_eq!(told(&schema("^b"), &params).len(), 1);
        for pattern in ["^(?:a|aa)+(?=b)a0$", "a{200000}", r"(\\pL{99}){99}"] {
            let told = told(&schema(pattern), &params);
            assert!(
                told.len() == 1 && told[0].contains("the author of the module must fix the schema"),
                "{told:?}"
            );
        }
    }
}
