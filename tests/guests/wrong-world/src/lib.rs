//! A component for another world: it has a manifest section like a stage, but none of a stage's exports.
#![expect(unsafe_code, reason = "the generated bindings and the manifest's section need it")]

mod bindings {
    wit_bindgen::generate!({
        inline: r#"
            package acme:images@1.0.0;
            interface rotate { rotate: func(degrees: s32) -> s32; }
            world plugin { export rotate; }
        "#,
    });
}

use bindings::exports::acme::images::rotate::Guest;

const MANIFEST: &str = r#"{ "name": "wrong-world", "version": "0.1.0" }"#;

#[used]
#[cfg_attr(target_arch = "wasm32", unsafe(link_section = "penstock.manifest"))]
static SECTION: [u8; MANIFEST.len()] = *MANIFEST.as_bytes().first_chunk().unwrap();

struct Plugin;
bindings::export!(Plugin with_types_in bindings);

impl Guest for Plugin {
    fn rotate(degrees: i32) -> i32 {
        degrees.rem_euclid(360)
    }
}
