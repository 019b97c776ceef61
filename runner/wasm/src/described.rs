//! Writes a manifest into a module, for languages whose tools cannot write custom sections.

use penstock_types::config::GateBounds;
use penstock_types::manifest::MANIFEST_SECTION;
use penstock_types::varint;
use wasmparser::BinaryReader;

use crate::component::{check_magic, outline, unreadable};
use crate::error::ModuleError;
use crate::gate;

/// Length of the magic number and the version, which precede the sections.
const HEADER_BYTES: usize = 8;

/// Start of the names of the custom sections from which a component is made of a core module.
const TYPES_SECTION: &str = "component-type";
/// The contract as such a section, for languages whose tools write none.
const TYPES: &[u8] = include_bytes!("../../../guest-sdk/c/component-type.bin");

/// Returns the module with this manifest (JSON) in place of an earlier one. A core module without the types of its interface gets those
/// of the contract. Fails if the result is not a stage module.
pub fn with_manifest(bytes: &[u8], manifest: &[u8], bounds: &GateBounds) -> Result<Vec<u8>, ModuleError> {
    check_magic(bytes)?;
    let mut described = bytes[..HEADER_BYTES].to_vec();
    // The version of a core module; that of a component differs.
    let mut needs_types = bytes[4..HEADER_BYTES] == [1, 0, 0, 0];
    let mut reader = BinaryReader::new(&bytes[HEADER_BYTES..], HEADER_BYTES);
    while !reader.eof() {
        let start = reader.original_position();
        let section = (reader.read_u8())
            .and_then(|id| Ok((id, reader.read_var_u32()?)))
            .and_then(|(id, size)| Ok((id, reader.read_bytes(size as usize)?)));
        let (id, content) = section.map_err(|error| unreadable(&error, bytes.len()))?;
        let name = if id == 0 { BinaryReader::new(content, 0).read_string().ok() } else { None };
        needs_types &= !name.is_some_and(|name| name.starts_with(TYPES_SECTION));
        if name != Some(MANIFEST_SECTION) {
            described.extend_from_slice(&bytes[start..reader.original_position()]);
        }
    }
    if needs_types {
        push_section(&mut described, &format!("{TYPES_SECTION}:penstock"), TYPES);
    }
    push_section(&mut described, MANIFEST_SECTION, manifest);
    gate::check_size(&described, bounds)?;
    outline(&described)?;
    Ok(described)
}

fn push_section(to: &mut Vec<u8>, name: &str, data: &[u8]) {
    let mut content = Vec::new();
    varint::push(&mut content, name.len() as u64);
    content.extend_from_slice(name.as_bytes());
    content.extend_from_slice(data);
    to.push(0);
    varint::push(to, content.len() as u64);
    to.append(&mut content);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component() -> Vec<u8> {
        let text = r#"(component
            (instance $empty) (export "penstock:stage/transform@0.1.0" (instance $empty))
            (@custom "kept" "1"))"#;
        wat::parse_str(text).unwrap()
    }

    fn described(bytes: &[u8], manifest: &str) -> Result<Vec<u8>, String> {
        with_manifest(bytes, manifest.as_bytes(), &GateBounds::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_manifest_is_written_and_then_replaced() {
        let long = format!(r#"{{"name": "first", "version": "1", "doc": "{}"}}"#, "d".repeat(20_000));
        let first = described(&component(), &long).unwrap();
        assert_eq!(outline(&first).unwrap().manifest.doc.len(), 20_000);
        let second = described(&first, r#"{"name": "second", "version": "2"}"#).unwrap();
        assert_eq!(outline(&second).unwrap().manifest.name, "second");
        assert_eq!(second[..component().len()], component());
    }

    #[test]
    fn what_is_no_stage_module_is_refused() {
        let manifest = r#"{"name": "first", "version": "1"}"#;
        insta::assert_snapshot!(described(b"hello", manifest).unwrap_err(), @"not a WebAssembly module: it is a text file; upload the .wasm that was built");
        let cut = &component()[..component().len() - 3];
        assert!(described(cut, manifest).unwrap_err().starts_with("the module is truncated"));
        let invalid = described(&component(), r#"{"name": "a b", "version": "1"}"#).unwrap_err();
        insta::assert_snapshot!(invalid, @"the module's manifest has `a b` under `name`: 1 to 64 letters, digits, `-`, `_`, `.` or `+` are required");
        let empty = wat::parse_str("(component)").unwrap();
        assert!(described(&empty, manifest).unwrap_err().starts_with("the module does not export"));
    }
}
