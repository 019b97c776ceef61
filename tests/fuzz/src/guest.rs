//! A guest that returns its input as its answer: it copies the blob `answer` of its first sample to [`BASE`] and returns a
//! pointer to it, so that the host reads the content of the blob.

use std::sync::OnceLock;

use penstock_types::manifest::{MANIFEST_SECTION, Mode};
use penstock_wasm::{Module, Sandbox, SandboxSettings};
use wit_component::{StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use crate::answer::BASE;

/// The contract; its only copy is in the SDK.
const CONTRACT: &str = include_str!("../../../guest-sdk/wit/stage.wit");

/// Encoding of the guest's texts.
pub type Encoding = StringEncoding;

/// All variants of the guest, each loaded at its first use.
static LOADED: [[OnceLock<Module>; 3]; 3] = [const { [const { OnceLock::new() }; 3] }; 3];

/// Loads the guest's variant with this mode and this text encoding.
pub fn load(mode: Mode, encoding: Encoding) -> &'static Module {
    let (modes, encodings) = (mode as usize, encoding as usize);
    LOADED[modes][encodings].get_or_init(|| {
        static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
        let settings = SandboxSettings { instances: 16, ..SandboxSettings::default() };
        let sandbox = SANDBOX.get_or_init(|| Sandbox::new(settings).expect("the sandbox starts"));
        let mode = ["sample", "batch", "stateful"][modes];
        let manifest = format!(r#"{{"name":"answering","version":"1","mode":"{mode}","wants":["answer"]}}"#);
        sandbox.load(&core(manifest.as_bytes(), encoding)).expect("the guest is within every limit")
    })
}

/// The guest as a core module with its types, as a compiler would write it, and with this manifest.
pub fn core(manifest: &[u8], encoding: Encoding) -> Vec<u8> {
    static CORES: [OnceLock<Vec<u8>>; 3] = [const { OnceLock::new() }; 3];
    let core = CORES[encoding as usize].get_or_init(|| typed(&code(), encoding));
    with_manifest(core.clone(), manifest)
}

/// Adds this manifest to the module.
pub fn with_manifest(mut module: Vec<u8>, manifest: &[u8]) -> Vec<u8> {
    let name = MANIFEST_SECTION.as_bytes();
    let name_length = u8::try_from(name.len()).expect("the section has a short name");
    module.push(0); // a custom section
    let mut length = 1 + name.len() + manifest.len();
    while length > 0x7f {
        module.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    module.push(length as u8);
    module.extend([&[name_length], name, manifest].concat());
    module
}

fn code() -> String {
    format!(
        r#"(module
            (memory (export "memory") 24 24)
            (global $free (mut i32) (i32.const 0x80000))
            (global $lies (mut i32) (i32.const 0))
            (global $lie (mut i32) (i32.const 0))
            (global $finished (mut i32) (i32.const 0x100))
            (global $traps (mut i32) (i32.const 0))
            (func (export "cabi_realloc") (param i32 i32) (param $align i32) (param $size i32) (result i32)
                (if (global.get $lies) (then (return (global.get $lie))))
                (global.set $free (i32.and
                    (i32.add (global.get $free) (i32.sub (local.get $align) (i32.const 1)))
                    (i32.sub (i32.const 0) (local.get $align))))
                (global.get $free)
                (global.set $free (i32.add (global.get $free) (local.get $size))))
            (func (export "penstock:stage/transform@0.1.0#init") (param i32 i32) (result i32)
                (i32.const 0)) ;; where a zero says `ok`
            (func (export "penstock:stage/transform@0.1.0#process") (param $items i32) (param i32) (result i32)
                (local $answer i32) (local $field i32)
                (local.set $field (i32.load offset=16 (local.get $items)))
                (local.set $answer (i32.load offset=16 (local.get $field)))
                (global.set $finished (i32.load offset=4 (local.get $answer)))
                (global.set $lie (i32.load offset=8 (local.get $answer)))
                (global.set $lies (i32.load offset=12 (local.get $answer)))
                (global.set $traps (i32.load offset=16 (local.get $answer)))
                (memory.copy (i32.const {BASE}) (i32.add (local.get $answer) (i32.const 20))
                    (i32.sub (i32.load offset=20 (local.get $field)) (i32.const 20)))
                (global.set $free (i32.const 0x80000))
                (i32.load (local.get $answer)))
            (func (export "cabi_post_penstock:stage/transform@0.1.0#process") (param i32)
                (if (global.get $traps) (then unreachable)))
            (func (export "penstock:stage/transform@0.1.0#finish") (result i32)
                (global.get $finished)))"#
    )
}

/// A core module from text, with the types of the contract and without a manifest.
pub fn typed(text: &str, encoding: Encoding) -> Vec<u8> {
    let mut core = wat::parse_str(text).expect("it is WebAssembly text");
    let mut resolve = Resolve::default();
    let package = resolve.push_str("stage.wit", CONTRACT).expect("the contract is WIT");
    let world = resolve.select_world(&[package], Some("stage")).expect("the contract has its world");
    embed_component_metadata(&mut core, &resolve, world, encoding).expect("types fit into any module");
    core
}
