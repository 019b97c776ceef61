//! Target for pipeline documents.

use std::collections::{BTreeMap, BTreeSet};

use penstock_types::fault::SpecFault;
use penstock_types::manifest::{Manifest, Mode};
use penstock_types::plan::{Known, ModuleFacts, Plan, StoreFacts};
use penstock_types::spec::schema;
use penstock_types::spec::{MAX_FAULTS, Spec, Stage, parse, parse_setting, set};
use serde_json::Value;

use crate::told::assert_printable;

/// Reads a document, changed by settings that follow it after a NUL, one per line, as by `--set`. Faults must have valid
/// pointers, and an accepted document must survive a round trip.
pub fn document(input: &[u8]) {
    let (text, settings) = match input.iter().position(|byte| *byte == 0) {
        Some(end) => (&input[..end], &input[end + 1..]),
        None => (input, &[][..]),
    };
    let mut document = match parse(text) {
        Ok(document) => document,
        Err(faults) => {
            let lenient = serde_json::from_slice(text).unwrap_or(Value::Null);
            return check_faults(&faults, &lenient);
        }
    };
    for setting in String::from_utf8_lossy(settings).lines() {
        let changed = parse_setting(setting).and_then(|(pointer, value)| set(&mut document, &pointer, value));
        if let Err(fault) = changed {
            assert_printable(&fault.to_string());
        }
    }
    match Spec::from_value(document.clone()) {
        Ok(spec) => check_spec(&spec, &document),
        Err(faults) => check_faults(&faults, &document),
    }
}

/// Words of a document, from its JSON Schema: names of members and of enumerated values.
pub fn document_words() -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    collect_words(&schema(), &mut words);
    words
}

fn collect_words(schema: &Value, words: &mut BTreeSet<String>) {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match schema {
        Value::Object(members) => {
            for (keyword, value) in members {
                match (keyword.as_str(), value) {
                    ("properties", Value::Object(properties)) => words.extend(properties.keys().cloned()),
                    ("enum", Value::Array(values)) => words.extend(values.iter().filter_map(text)),
                    ("const", value) => words.extend(text(value)),
                    _ => {}
                }
                collect_words(value, words);
            }
        }
        Value::Array(schemas) => schemas.iter().for_each(|schema| collect_words(schema, words)),
        _ => {}
    }
}

/// Number of stages in a plan: a route has those of its paths, a gate for each path, a join, and its module if there is one.
fn nodes(stages: &[Stage]) -> usize {
    let of = |stage: &Stage| match stage {
        Stage::Route(route) => {
            let paths = route.all_paths().map(|(_, stages)| 1 + nodes(stages)).sum::<usize>();
            1 + usize::from(route.module().is_some()) + paths
        }
        _ => 1,
    };
    stages.iter().map(of).sum()
}

fn check_spec(spec: &Spec, document: &Value) {
    let written = serde_json::to_string(spec).expect("every document can be written");
    let read = Spec::read(written.as_bytes()).unwrap_or_else(|faults| panic!("{faults:?}: {written}"));
    assert_eq!(&read, spec, "{written}");
    let modules: BTreeMap<String, ModuleFacts> =
        [("s", Mode::Sample), ("b", Mode::Batch), ("h", Mode::Stateful)]
            .map(|(name, mode)| (name.to_owned(), facts(name, mode)))
            .into();
    let here = |has_index| BTreeMap::from([("here".to_owned(), StoreFacts { has_index })]);
    for stores in [None, Some(&here(false)), Some(&here(true)), Some(&BTreeMap::new())] {
        match Plan::check(spec, Known { modules: &modules, names: &[], fields: None, stores }) {
            Ok(plan) => assert_eq!(plan.stages.len(), nodes(&spec.stages)),
            Err(faults) => {
                // A fault may point to a member that the document omits: then the document with all defaults has it.
                let whole = serde_json::to_value(spec).expect("every document can be written");
                let stands = |fault: &SpecFault| stands_in(fault, document) || stands_in(fault, &whole);
                assert!(!faults.is_empty() && faults.iter().all(stands), "{faults:?} of {document}");
                faults.iter().for_each(|fault| assert_printable(&fault.to_string()));
            }
        }
    }
}

/// Panics unless each fault is reported once, with a pointer into the document.
fn check_faults(faults: &[SpecFault], document: &Value) {
    assert!((1..=MAX_FAULTS).contains(&faults.len()), "{} faults", faults.len());
    for (number, fault) in faults.iter().enumerate() {
        assert_printable(&fault.to_string());
        assert!(stands_in(fault, document), "{fault:?} has no place in {document}");
        assert!(!faults[..number].contains(fault), "{fault:?} is reported twice");
    }
}

fn stands_in(fault: &SpecFault, document: &Value) -> bool {
    document.pointer(fault.pointer.as_str()).is_some()
}

fn facts(name: &str, mode: Mode) -> ModuleFacts {
    let manifest = Manifest {
        name: name.into(),
        version: "1".into(),
        doc: String::new(),
        mode,
        wants: None,
        makes: Vec::new(),
        removes: None,
        fan_out: None,
        reads: None,
        counters: Vec::new(),
        params: None,
    };
    ModuleFacts { name: name.into(), digest: format!("sha256:{}", "0".repeat(64)), manifest }
}
