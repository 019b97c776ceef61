//! Target for uploaded module files.

use penstock_types::config::GateBounds;
use penstock_wasm::ModuleReport;

use crate::told::assert_printable;

/// Reads an upload by the steps that precede compilation: the gate, the outline and the manifest.
pub fn upload(input: &[u8]) {
    match ModuleReport::read(input, &GateBounds::default()) {
        Ok(report) => {
            assert_eq!(report.size_bytes, input.len() as u64);
            assert!(report.exports.iter().any(|name| name.starts_with("penstock:stage/transform@0.1.")));
            assert!(report.code_bytes <= report.size_bytes);
        }
        Err(error) => assert_printable(&error.to_string()),
    }
}
