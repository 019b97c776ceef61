//! A guest of mode `stateful`. With params `"pack"` it packs texts of three samples into one; with `"swap"` it is a buffer of two
//! samples that returns the oldest. A key that contains `trap`, `drop`, `burst` or `shape` selects that outcome; a sample whose
//! key contains `hide` is held although the guest reports it as dropped, and one with `late` traps in `finish`. The state has a line for each sample
//! held; one with `stuck` in its key traps when it is saved, and one with `huge` makes the state too large.
#![expect(unsafe_code, reason = "the generated bindings and the manifest's section need it")]
#![expect(clippy::unwrap_used, reason = "a panic is a trap, which tests look for")]

use std::sync::Mutex;

mod bindings {
    wit_bindgen::generate!({
        path: "../../../guest-sdk/wit",
        inline: "package test:guest; world guest { include penstock:stage/stage@0.1.0; include penstock:stage/saving@0.1.0; }",
        world: "test:guest/guest",
        generate_all,
    });
}

use bindings::exports::penstock::stage::state::Guest as State;
use bindings::exports::penstock::stage::transform::{Guest, Item, Outcome};
use bindings::penstock::stage::types::{Dtype, Field, Tensor, Value};

const MANIFEST: &str = r#"{ "name": "stateful", "version": "0.1.0", "mode": "stateful", "wants": ["text"] }"#;

#[used]
#[cfg_attr(target_arch = "wasm32", unsafe(link_section = "penstock.manifest"))]
static SECTION: [u8; MANIFEST.len()] = *MANIFEST.as_bytes().first_chunk().unwrap();

/// Samples held, oldest first, and a flag that is set if they are packed.
static INSIDE: Mutex<(bool, Vec<Item>)> = Mutex::new((false, Vec::new()));

struct Stateful;
bindings::export!(Stateful with_types_in bindings);

impl Guest for Stateful {
    fn init(params_json: String) -> Result<(), String> {
        *INSIDE.lock().unwrap() = (params_json.contains("pack"), Vec::new());
        Ok(())
    }

    fn process(items: Vec<Item>) -> Vec<Outcome> {
        items.into_iter().map(outcome).collect()
    }

    fn finish() -> Vec<Item> {
        let (packs, inside) = &mut *INSIDE.lock().unwrap();
        let inside = std::mem::take(inside);
        if inside.iter().any(|item| item.key.contains("late")) {
            std::process::abort();
        }
        if *packs && !inside.is_empty() { vec![packed(&inside)] } else { inside }
    }
}

impl State for Stateful {
    fn save() -> Vec<u8> {
        let (_, inside) = &*INSIDE.lock().unwrap();
        let has = |what: &str| inside.iter().any(|item| item.key.contains(what));
        if has("stuck") {
            std::process::abort();
        }
        let lines: String = inside.iter().map(|item| format!("{} {}\n", item.seed, item.key)).collect();
        if has("huge") { vec![0; (1 << 20) + 1] } else { lines.into_bytes() }
    }

    fn load(saved: Vec<u8>) -> Result<(), String> {
        let text = String::from_utf8(saved).map_err(|error| error.to_string())?;
        for line in text.lines() {
            let (seed, key) = line.split_once(' ').ok_or("a line without a key")?;
            let seed = seed.parse().map_err(|_| "a line without a seed")?;
            INSIDE.lock().unwrap().1.push(Item { key: key.into(), seed, fields: Vec::new() });
        }
        Ok(())
    }
}

fn outcome(mut item: Item) -> Outcome {
    let (packs, inside) = &mut *INSIDE.lock().unwrap();
    if item.key.contains("trap") {
        std::process::abort();
    }
    if item.key.contains("drop") {
        return Outcome::Drop;
    }
    if item.key.contains("hide") {
        inside.push(item);
        return Outcome::Drop;
    }
    if item.key.contains("burst") {
        let child = |number: u32| Item { key: number.to_string(), seed: item.seed, fields: Vec::new() };
        return Outcome::Many((0..65_536).map(child).collect());
    }
    if item.key.contains("refuse") {
        return Outcome::Failed("refused".into());
    }
    if item.key.contains("shape") {
        let tensor = Tensor { dtype: Dtype::Int64, shape: vec![2], data: vec![0; 8] };
        item.fields = vec![Field { name: "bad".into(), value: Value::Tensor(tensor) }];
        return Outcome::Keep(item);
    }
    inside.push(item);
    match inside.len() {
        3 if *packs => Outcome::Keep(packed(&std::mem::take(inside))),
        3 => Outcome::Keep(inside.remove(0)),
        _ => Outcome::Held,
    }
}

fn packed(items: &[Item]) -> Item {
    let texts: Vec<&str> = items
        .iter()
        .flat_map(|item| &item.fields)
        .filter_map(|field| match &field.value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let text = Field { name: "text".into(), value: Value::Text(texts.join(" ")) };
    Item { key: format!("pack-of-{}", items[0].key), seed: items[0].seed, fields: vec![text] }
}
