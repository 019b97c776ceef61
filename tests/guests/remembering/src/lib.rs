//! A guest of mode `sample` that keeps state across samples, which the contract forbids: it numbers the samples of its instance.
//! The field `text` selects the place of the number: `field`, `key`, `outcome` or `reason`; other samples are kept unchanged.
#![expect(unsafe_code, reason = "the generated bindings and the manifest's section need it")]

use std::sync::atomic::{AtomicU32, Ordering};

mod bindings {
    wit_bindgen::generate!({ path: "../../../guest-sdk/wit", world: "stage" });
}

use bindings::exports::penstock::stage::transform::{Guest, Item, Outcome};
use bindings::penstock::stage::types::{Field, Value};

const MANIFEST: &str =
    r#"{ "name": "remembering", "version": "0.1.0", "wants": ["text"], "makes": ["number"] }"#;

#[used]
#[cfg_attr(target_arch = "wasm32", unsafe(link_section = "penstock.manifest"))]
static SECTION: [u8; MANIFEST.len()] = *MANIFEST.as_bytes().first_chunk().unwrap();

/// Number of samples that this instance has received.
static SEEN: AtomicU32 = AtomicU32::new(0);

struct Remembering;
bindings::export!(Remembering with_types_in bindings);

impl Guest for Remembering {
    fn init(_params_json: String) -> Result<(), String> {
        Ok(())
    }

    fn process(items: Vec<Item>) -> Vec<Outcome> {
        items.into_iter().map(outcome).collect()
    }

    fn finish() -> Vec<Item> {
        Vec::new()
    }
}

fn outcome(mut item: Item) -> Outcome {
    let number = SEEN.fetch_add(1, Ordering::Relaxed);
    let what = match item.fields.first() {
        Some(Field { value: Value::Text(what), .. }) => what.clone(),
        _ => String::new(),
    };
    match what.as_str() {
        "field" => {
            item.fields.push(Field { name: "number".into(), value: Value::Int(number.into()) });
            Outcome::Keep(item)
        }
        "key" => {
            item.key = format!("{}#{number}", item.key);
            Outcome::Many(vec![item])
        }
        "outcome" if number == 0 => Outcome::Drop,
        "reason" => Outcome::Failed(format!("refused as number {number}")),
        _ => Outcome::Keep(item),
    }
}
