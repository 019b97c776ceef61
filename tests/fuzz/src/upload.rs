//! Whole uploads.

use penstock_wasm::inspect;

use crate::told::assert_fit_for_people;

/// Inspects an upload: the gate, the outline, the manifest, and making a component of a core module.
pub fn upload(input: &[u8]) {
    match inspect(input) {
        Ok(report) => {
            assert_eq!(report.size_bytes, input.len() as u64);
            assert!(report.exports.iter().any(|name| name.starts_with("penstock:stage/transform@0.1.")));
            assert!(report.code_bytes <= report.size_bytes);
        }
        Err(error) => assert_fit_for_people(&error.to_string()),
    }
}
