//! A stage that also imports an interface which the sandbox does not provide: a clock.
#![expect(unsafe_code, reason = "the generated bindings and the manifest's section need it")]

mod bindings {
    wit_bindgen::generate!({
        inline: r#"
            package acme:clock@1.0.0;
            interface time { now: func() -> u64; }
            world timed {
                import time;
                include penstock:stage/stage@0.1.0;
            }
        "#,
        path: "../../../guest-sdk/wit",
        world: "acme:clock/timed",
        generate_all,
    });
}

use bindings::acme::clock::time;
use bindings::exports::penstock::stage::transform::{Guest, Item, Outcome};

const MANIFEST: &str = r#"{ "name": "extra-import", "version": "0.1.0" }"#;

#[used]
#[cfg_attr(target_arch = "wasm32", unsafe(link_section = "penstock.manifest"))]
static SECTION: [u8; MANIFEST.len()] = *MANIFEST.as_bytes().first_chunk().unwrap();

struct Timed;
bindings::export!(Timed with_types_in bindings);

impl Guest for Timed {
    fn init(_params_json: String) -> Result<(), String> {
        Ok(())
    }

    fn process(items: Vec<Item>) -> Vec<Outcome> {
        let now = time::now();
        items.into_iter().map(|item| Outcome::Keep(Item { seed: now, ..item })).collect()
    }

    fn finish() -> Vec<Item> {
        Vec::new()
    }
}
