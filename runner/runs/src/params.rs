use std::collections::BTreeMap;

use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::param_schema::{MAX_PARAM_VALUES, count_values};
use penstock_types::plan::ModuleFacts;
use penstock_types::spec::{MAX_FAULTS, Spec, Stage};
use serde_json::{Map, Value};

/// Checks the parameters of every WASM stage against what its module's manifest says it takes.
pub(crate) fn check_params(spec: &Spec, modules: &BTreeMap<String, ModuleFacts>) -> Vec<SpecFault> {
    let mut faults = Vec::new();
    for (index, stage) in spec.stages.iter().enumerate() {
        let Stage::Wasm(wasm) = stage else { continue };
        let Some(facts) = modules.get(wasm.module.as_str()) else { continue };
        let place = Pointer::ROOT.key("stages").index(index).key("wasm").key("params");
        check_against(&wasm.params, facts.manifest.params.as_ref(), &facts.name, &place, &mut faults);
    }
    faults
}

/// Checks params against the schema that the module has for them, if it takes any.
pub(crate) fn check_against(
    params: &Map<String, Value>,
    schema: Option<&Value>,
    module: &str,
    place: &Pointer,
    faults: &mut Vec<SpecFault>,
) {
    match schema {
        Some(schema) => {
            let params = Value::Object(params.clone());
            if count_values(&params) > MAX_PARAM_VALUES {
                let message =
                    format!("holds more than {MAX_PARAM_VALUES} values; large data belong into `assets`");
                return faults.push(SpecFault::new(place.clone(), message));
            }
            check(&params, schema, module, place, faults);
        }
        None if params.is_empty() => {}
        None => {
            faults.push(SpecFault::new(place.clone(), format!("the module `{module}` takes no parameters")))
        }
    }
}

fn check(params: &Value, schema: &Value, module: &str, place: &Pointer, faults: &mut Vec<SpecFault>) {
    match jsonschema::validator_for(schema) {
        Ok(validator) => faults.extend(validator.iter_errors(params).take(MAX_FAULTS).map(|error| {
            let within = Pointer::parse(error.instance_path().as_str());
            let place = within.iter().flat_map(Pointer::steps).fold(place.clone(), |place, step| place.key(&step));
            SpecFault::new(place, format!("the module `{module}` refuses it: {error}"))
        })),
        Err(error) => faults.push(SpecFault::new(
            place.clone(),
            format!("the manifest of the module `{module}` holds a schema that cannot be used: {error}; its author has to mend it"),
        )),
    }
}
