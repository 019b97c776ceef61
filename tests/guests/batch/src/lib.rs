//! A guest of mode `batch`: adds to every sample the sum of the batch's `x`; the key of a sample selects its outcome.
#![expect(unsafe_code, reason = "the generated bindings and the manifest's section need it")]

mod bindings {
    wit_bindgen::generate!({ path: "../../../guest-sdk/wit", world: "stage" });
}

use bindings::exports::penstock::stage::transform::{Guest, Item, Outcome};
use bindings::penstock::stage::types::{Dtype, Field, Tensor, Value};

const MANIFEST: &str =
    r#"{ "name": "batch", "version": "0.1.0", "mode": "batch", "wants": ["x"], "makes": ["sum"] }"#;

#[used]
#[cfg_attr(target_arch = "wasm32", unsafe(link_section = "penstock.manifest"))]
static SECTION: [u8; MANIFEST.len()] = *MANIFEST.as_bytes().first_chunk().unwrap();

struct Batch;
bindings::export!(Batch with_types_in bindings);

impl Guest for Batch {
    fn init(_params_json: String) -> Result<(), String> {
        Ok(())
    }

    fn process(items: Vec<Item>) -> Vec<Outcome> {
        if items.iter().any(|item| item.key == "too-few") {
            return vec![Outcome::Drop];
        }
        let sum = items.iter().flat_map(|item| &item.fields).map(number).sum();
        items.into_iter().map(|item| outcome(item, sum)).collect()
    }

    fn finish() -> Vec<Item> {
        Vec::new()
    }
}

fn outcome(mut item: Item, sum: i64) -> Outcome {
    if item.key.starts_with("burst") {
        let child = |number: u32| Item { key: number.to_string(), seed: item.seed, fields: Vec::new() };
        return Outcome::Many((0..65_536).map(child).collect());
    }
    let mut made = Field { name: "sum".into(), value: Value::Int(sum) };
    match item.key.as_str() {
        "drop" => return Outcome::Drop,
        "refuse" => return Outcome::Failed("refused".into()),
        "trap" => std::process::abort(),
        "held" => return Outcome::Held,
        "shape" => {
            made.value = Value::Tensor(Tensor { dtype: Dtype::Int64, shape: vec![2], data: vec![0; 8] });
        }
        "huge" => made.value = Value::Blob(vec![0; 129 << 20]),
        "two" => {
            let second = Item { key: "two/b".into(), seed: item.seed, fields: Vec::new() };
            return Outcome::Many(vec![item, second]);
        }
        _ => {}
    }
    item.fields.push(made);
    Outcome::Keep(item)
}

fn number(field: &Field) -> i64 {
    match field.value {
        Value::Int(number) => number,
        _ => 0,
    }
}
