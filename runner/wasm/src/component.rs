//! Outline of uploaded bytes: a component, or a core module with the types of wit-bindgen, which the host turns into a component.

use std::borrow::Cow;
use std::collections::BTreeSet;

use penstock_types::manifest::{MANIFEST_SECTION, MAX_COUNTERS, Manifest};
use penstock_types::param_schema::param_schema_size;
use penstock_types::spec::JsonSize;
use penstock_types::text::printable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wasmparser::{Chunk, Encoding, Parser, Payload};
use wasmtime::Engine;

use crate::error::ModuleError;
use crate::preview1;

/// Form of an uploaded module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModuleKind {
    /// A core module with WIT types, which the host turns into a component.
    Core,
    /// A component of the component model.
    Component,
}

/// Name of the contract's WIT package, without its version.
const PACKAGE: &str = "penstock:stage/";
/// Prefix of the contract versions that the linker supports; patch versions differ only in documentation.
const VERSION: &str = "0.1.";
/// Maximum length of a name in a message, in bytes.
const SHOWN_NAME: usize = 120;
/// Maximum size of a manifest, in bytes; most of a manifest is the schema of its parameters.
const MAX_MANIFEST_BYTES: usize = 256 << 10;
/// Maximum number of JSON nodes of a manifest. Limited, because a server holds the manifests of all modules of a document at the
/// same time.
const MAX_MANIFEST_NODES: usize = 4_096;
const MAX_WORD_BYTES: usize = 64;
const SHOWN_NAMES: usize = 5;

/// Facts read from the sections of a module without reading its code.
#[derive(Clone, Debug)]
pub(crate) struct Outline {
    pub(crate) kind: ModuleKind,
    pub(crate) manifest: Manifest,
    pub(crate) imports: Vec<String>,
    pub(crate) exports: Vec<String>,
}

/// Reads the outline and checks everything that needs no code: kind, exports, imports, manifest.
pub(crate) fn outline(bytes: &[u8]) -> Result<Outline, ModuleError> {
    check_magic(bytes)?;
    let found = walk(bytes)?;
    if found.kind == ModuleKind::Core && !found.has_types {
        return Err(ModuleError::NoTypes);
    }
    check_exports(&found.exports)?;
    check_imports(found.kind, &found.imports)?;
    let manifest = read_manifest(&found.manifests)?;
    Ok(Outline {
        kind: found.kind,
        manifest,
        imports: found.imports.into_iter().collect(),
        exports: found.exports.into_iter().collect(),
    })
}

/// The component of an upload. A core module with WIT types is encoded as one, which contains the functions of [`preview1`] if it
/// imports them.
pub(crate) fn component(kind: ModuleKind, upload: &[u8]) -> Result<Cow<'_, [u8]>, ModuleError> {
    match kind {
        ModuleKind::Component => Ok(upload.into()),
        ModuleKind::Core => encode(upload).map(Cow::Owned),
    }
}

fn encode(core: &[u8]) -> Result<Vec<u8>, ModuleError> {
    let imports_preview1 = walk(core)?.imports.contains(preview1::NAME);
    wit_component::ComponentEncoder::default()
        .validate(true)
        .module(core)
        .and_then(|encoder| match imports_preview1 {
            true => encoder.library(preview1::NAME, preview1::FUNCTIONS, preview1::LIBRARY),
            false => Ok(encoder),
        })
        .and_then(|mut encoder| encoder.encode())
        .map_err(|error| ModuleError::Invalid { reason: printable(&format!("{error:#}"), 1000) })
}

struct Found<'a> {
    kind: ModuleKind,
    has_types: bool,
    imports: BTreeSet<String>,
    exports: BTreeSet<String>,
    manifests: Vec<&'a [u8]>,
}

fn walk(bytes: &[u8]) -> Result<Found<'_>, ModuleError> {
    let mut found = Found {
        kind: ModuleKind::Core,
        has_types: false,
        imports: BTreeSet::new(),
        exports: BTreeSet::new(),
        manifests: Vec::new(),
    };
    let cut = |error: wasmparser::BinaryReaderError| unreadable(&error, bytes.len());
    let mut parser = Parser::new(0);
    let mut rest = bytes;
    let mut outer = Vec::new();
    loop {
        let depth = outer.len(); // modules inside a component are not checked, except for their manifest
        let Chunk::Parsed { consumed, payload } = parser.parse(rest, true).map_err(cut)? else {
            unreachable!("the parser is told that there are no more bytes");
        };
        rest = &rest[consumed..];
        match payload {
            Payload::Version { encoding, .. } if depth == 0 => {
                found.kind = match encoding {
                    Encoding::Module => ModuleKind::Core,
                    Encoding::Component => ModuleKind::Component,
                };
            }
            Payload::ModuleSection { parser: inner, .. }
            | Payload::ComponentSection { parser: inner, .. } => {
                outer.push(std::mem::replace(&mut parser, inner));
            }
            // Skipped as a whole, because reading the sizes of all functions takes longer than everything else.
            Payload::CodeSectionStart { size, .. } => {
                rest = rest.get(size as usize..).ok_or(ModuleError::Truncated { bytes: bytes.len() })?;
                parser.skip_section();
            }
            Payload::End(_) => match outer.pop() {
                Some(next) => parser = next,
                None => return Ok(found),
            },
            Payload::ImportSection(section) if depth == 0 => {
                for import in section.into_imports() {
                    found.imports.insert(import.map_err(cut)?.module.into());
                }
            }
            Payload::ExportSection(section) if depth == 0 => {
                for export in section {
                    let name = export.map_err(cut)?.name;
                    // A core module exports the functions of an interface as `package:name/interface@version#function`.
                    if let Some((interface, _)) = name.trim_start_matches("cabi_post_").split_once('#') {
                        found.exports.insert(interface.into());
                    }
                }
            }
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    found.imports.insert(import.map_err(cut)?.name.name.into());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    found.exports.insert(export.map_err(cut)?.name.name.into());
                }
            }
            Payload::CustomSection(section) if section.name() == MANIFEST_SECTION => {
                found.manifests.push(section.data());
            }
            Payload::CustomSection(section) if depth == 0 && section.name().starts_with("component-type") => {
                found.has_types = true;
            }
            _ => {}
        }
    }
}

pub(crate) fn unreadable(error: &wasmparser::BinaryReaderError, bytes: usize) -> ModuleError {
    // The error means that the file ends in the middle of a section, or that a section announced by an earlier one is missing.
    if error.message().contains("unexpected end") || error.message().contains("code section is absent") {
        ModuleError::Truncated { bytes }
    } else {
        ModuleError::Invalid { reason: printable(&error.to_string(), 500) }
    }
}

pub(crate) fn check_magic(bytes: &[u8]) -> Result<(), ModuleError> {
    let found = match bytes {
        [] => "the file is empty".into(),
        _ if Engine::detect_precompiled(bytes).is_some() => {
            "it is compiled code (.cwasm), which is never accepted; upload the .wasm from which it was compiled".into()
        }
        [0x7f, b'E', b'L', b'F', ..] => {
            "it is an ELF program or library for one machine; build it with `--target wasm32-unknown-unknown`"
                .into()
        }
        [0x1f, 0x8b, ..] => "it is compressed with gzip; upload it uncompressed".into(),
        [b'P', b'K', 3, 4, ..] => "it is a zip archive; upload the .wasm inside".into(),
        [0, b'a', b's', b'm', _, _, _, _, ..] => return Ok(()),
        [0, b'a', b's', b'm', ..] => return Err(ModuleError::Truncated { bytes: bytes.len() }),
        _ => match std::str::from_utf8(&bytes[..bytes.len().min(256)]) {
            Ok(text)
                if ["(module", "(component"].iter().any(|start| text.trim_start().starts_with(start)) =>
            {
                "it is WebAssembly text; translate it with `wasm-tools parse` and upload the .wasm".into()
            }
            Ok(text)
                if text.chars().all(|character| !character.is_control() || character.is_whitespace()) =>
            {
                "it is a text file; upload the .wasm that was built".into()
            }
            _ => format!("it starts with {:02x?}, not with `\\0asm`", &bytes[..bytes.len().min(4)]),
        },
    };
    Err(ModuleError::NotWasm { found })
}

/// True if the module can save its state.
pub(crate) fn exports_state(exports: &[String]) -> bool {
    exports.iter().any(|name| name.starts_with("penstock:stage/state@"))
}

fn check_exports(exports: &BTreeSet<String>) -> Result<(), ModuleError> {
    let is_transform = |name: &&String| name.starts_with("penstock:stage/transform@");
    let found = match exports.iter().find(is_transform) {
        Some(name) if is_supported(name) => return Ok(()),
        Some(name) => format!(
            "it was built for {}; build it with the SDK of the Penstock version that runs it",
            listed(std::iter::once(name.as_str()))
        ),
        None if exports.is_empty() => {
            "it exports no interface at all; annotate a function with `#[penstock_guest::stage]`".into()
        }
        None => format!(
            "it exports {}, so it was built for another world; build it for `penstock:stage/stage@0.1.0`",
            listed(exports.iter().map(String::as_str))
        ),
    };
    Err(ModuleError::Export { found })
}

fn check_imports(kind: ModuleKind, imports: &BTreeSet<String>) -> Result<(), ModuleError> {
    let is_allowed = |name: &str| is_supported(name) || kind == ModuleKind::Core && name == preview1::NAME;
    let refused: Vec<&str> = imports.iter().map(String::as_str).filter(|name| !is_allowed(name)).collect();
    let Some(first) = refused.first() else { return Ok(()) };
    let remedy = if first.starts_with("wasi:") {
        "stages have no files, clock, environment or network: stub WASI out (componentize-py and componentize-qjs have \
         `--stub-wasi`), or build a core module for `wasm32-wasip1` or `wasm32-unknown-unknown` instead of a component"
    } else if first.starts_with("wasi") {
        "the only form of WASI that a core module may import is `wasi_snapshot_preview1`, without threads"
    } else if first.starts_with(PACKAGE) {
        "it was built for another version of the contract: build it with the SDK of the Penstock version that runs it"
    } else if *first == "env" {
        "the linker did not find these symbols: link the C library that defines them"
    } else {
        "the only interface a stage may import is `penstock:stage/host@0.1.0` (log, count, asset, memory-limit)"
    };
    Err(ModuleError::Import {
        found: format!("{}, which the host does not provide; {remedy}", listed(refused.iter().copied())),
    })
}

/// Returns true for an interface of the contract in a version that the linker supports.
fn is_supported(name: &str) -> bool {
    name.strip_prefix(PACKAGE).and_then(|rest| rest.split_once('@')).is_some_and(|(interface, version)| {
        matches!(interface, "host" | "types" | "transform") && version.starts_with(VERSION)
    })
}

fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let all = names.len();
    let mut shown: Vec<String> =
        names.take(SHOWN_NAMES).map(|name| format!("`{}`", printable(name, SHOWN_NAME))).collect();
    if all > SHOWN_NAMES {
        shown.push(format!("{} more", all - SHOWN_NAMES));
    }
    shown.join(", ")
}

fn read_manifest(sections: &[&[u8]]) -> Result<Manifest, ModuleError> {
    let fault = |reason: String| Err(ModuleError::Manifest { reason });
    let section = match sections {
        [section] => *section,
        [] => {
            return fault(format!(
                "the module has no manifest: custom section `{MANIFEST_SECTION}` is missing; build it with \
                 `penstock-guest` and do not strip custom sections, or write one with `penstock module manifest`"
            ));
        }
        several => {
            return fault(format!("the module has {} manifests, but exactly one is required", several.len()));
        }
    };
    let bytes = section.len();
    if bytes > MAX_MANIFEST_BYTES {
        return fault(format!("the module's manifest has {bytes} bytes, the limit is {MAX_MANIFEST_BYTES}"));
    }
    if JsonSize::of(section).nodes() > MAX_MANIFEST_NODES {
        return fault(format!(
            "the module's manifest has more names and values than {MAX_MANIFEST_NODES}; move large data into `assets`"
        ));
    }
    let manifest: Manifest = match serde_json::from_slice(section) {
        Ok(manifest) => manifest,
        Err(error) => {
            let reason = printable(&error.to_string(), 300);
            return fault(format!("the module's manifest cannot be read: {reason}"));
        }
    };
    if let Some(Err(reason)) = manifest.params.as_ref().map(param_schema_size) {
        return fault(format!(
            "the schema of params in the module's manifest {}",
            printable(&reason.to_string(), 300)
        ));
    }
    let words = [("name", &manifest.name), ("version", &manifest.version)];
    let counters = manifest.counters.iter().map(|counter| ("counters", counter));
    for (field, word) in words.into_iter().chain(counters) {
        if !is_word(word) {
            return fault(format!(
                "the module's manifest has `{}` under `{field}`: 1 to {MAX_WORD_BYTES} letters, digits, `-`, `_`, \
                 `.` or `+` are required",
                printable(word, SHOWN_NAME)
            ));
        }
    }
    let (declared, unique) = (manifest.counters.len(), BTreeSet::from_iter(&manifest.counters).len());
    if declared > MAX_COUNTERS {
        return fault(format!(
            "the module's manifest declares {declared} counters, at most {MAX_COUNTERS} are allowed"
        ));
    }
    if unique < declared {
        return fault("the module's manifest declares a counter twice".into());
    }
    Ok(manifest)
}

/// Returns true if the text needs no escaping in `name@version`, in file names and in printed tables.
fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    (1..=MAX_WORD_BYTES).contains(&text.len()) && text.bytes().all(is_plain)
}

#[cfg(test)]
#[path = "component_tests.rs"]
mod tests;
