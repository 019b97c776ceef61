//! Target for schemas of params, which are untrusted, and params that are validated with them.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::thread;

use penstock_pipeline::{Context, NamedModules, Outlets, Stores, prepare};
use penstock_types::config::GateBounds;
use penstock_types::plan::ModuleFacts;
use penstock_types::spec::Spec;
use penstock_wasm::ModuleReport;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::guest::{Encoding, core};
use crate::told::assert_printable;

/// Stack size of the threads on which a server checks documents.
const STACK_BYTES: usize = 2 << 20;

/// Keywords of JSON Schema, and other words of the corpus.
const WORDS: &str = "schema params type properties patternProperties additionalProperties unevaluatedProperties propertyNames items \
    prefixItems unevaluatedItems contains minContains uniqueItems allOf anyOf oneOf not if then else dependentSchemas \
    dependentRequired required enum const pattern format default $ref $defs $id $schema $dynamicRef $anchor minimum multipleOf \
    minLength maxItems object array string integer number boolean null a b # #/$defs/a #/$defs/b ^a+$ (a|aa)+ a{99}";

/// Words that mutations insert into schemas.
pub fn schema_words() -> Vec<&'static str> {
    WORDS.split_whitespace().collect()
}

/// Inspects a module whose manifest has the input's `schema`; if the module is accepted, checks a document with the input's
/// `params`. Errors must be reported as messages, and the stack of a server thread must suffice; libFuzzer limits time and
/// memory.
pub fn schemas(input: &[u8]) {
    let Ok(Value::Object(mut case)) = serde_json::from_slice(input) else { return };
    let (schema, params) = (case.remove("schema"), case.remove("params"));
    let manifest = json!({ "name": "m", "version": "1", "params": schema }).to_string();
    let facts = match ModuleReport::read(&core(manifest.as_bytes(), Encoding::UTF8), &GateBounds::default()) {
        Ok(report) => ModuleFacts { name: "m".into(), digest: report.digest, manifest: report.manifest },
        Err(error) => return assert_printable(&error.to_string()),
    };
    let wasm = json!({ "wasm": { "module": "m", "params": params } });
    let Ok(spec) = Spec::from_value(json!({ "source": { "range": { "count": 1 } }, "stages": [wasm] }))
    else {
        return;
    };
    let modules = NamedModules { found: BTreeMap::from([("m".to_owned(), (facts, ()))]), names: Vec::new() };
    thread::scope(|scope| {
        let check = || check(&spec, &modules);
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, check);
        thread.expect("there is room for a thread").join().expect("a check does not panic");
    });
}

fn check(spec: &Spec, modules: &NamedModules<()>) {
    static RUNTIME: LazyLock<Runtime> =
        LazyLock::new(|| Builder::new_current_thread().build().expect("it starts"));
    let context = Context {
        runtime: RUNTIME.handle(),
        stores: &Stores::default(),
        modules,
        fields: None,
        outlets: Outlets::ALL,
        bounds: &|_| Vec::new(),
    };
    if let Err(faults) = prepare(spec, &context) {
        assert!(!faults.is_empty());
        faults.iter().for_each(|fault| assert_printable(&fault.to_string()));
    }
}
