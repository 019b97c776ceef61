//! A guest that reads only the field `text`. Writes the names of the received fields to `seen`; `text` selects the outcome of the
//! sample.
#![expect(unsafe_code, reason = "the generated bindings and the manifest's section need it")]

mod bindings {
    wit_bindgen::generate!({ path: "../../../guest-sdk/wit", world: "stage" });
}

use bindings::exports::penstock::stage::transform::{Guest, Item, Outcome};
use bindings::penstock::stage::types::{Field, Value};

const MANIFEST: &str =
    r#"{ "name": "carrying", "version": "0.1.0", "wants": ["text"], "makes": ["seen", "label"] }"#;

#[used]
#[cfg_attr(target_arch = "wasm32", unsafe(link_section = "penstock.manifest"))]
static SECTION: [u8; MANIFEST.len()] = *MANIFEST.as_bytes().first_chunk().unwrap();

struct Carrying;
bindings::export!(Carrying with_types_in bindings);

impl Guest for Carrying {
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
    let names: Vec<&str> = item.fields.iter().map(|field| field.name.as_str()).collect();
    let seen = text("seen", &names.join(","));
    let what = match item.fields.first() {
        Some(Field { value: Value::Text(what), .. }) => what.clone(),
        _ => String::new(),
    };
    match what.as_str() {
        "split" => {
            let child = |number: u32| Item {
                key: format!("{}/{number}", item.key),
                seed: item.seed,
                fields: vec![text("text", &number.to_string())],
            };
            return Outcome::Many((0..2).map(child).collect());
        }
        "burst" => {
            let child = |number: u32| Item { key: number.to_string(), seed: item.seed, fields: Vec::new() };
            return Outcome::Many((0..65_536).map(child).collect());
        }
        "override" => item.fields.insert(0, text("label", "mine")),
        "forget" => item.fields.clear(),
        _ => {}
    }
    item.fields.push(seen);
    Outcome::Keep(item)
}

fn text(name: &str, value: &str) -> Field {
    Field { name: name.into(), value: Value::Text(value.into()) }
}
