//! Target for manifests of modules.

use penstock_types::config::GateBounds;
use penstock_wasm::ModuleReport;

use crate::guest::{Encoding, core};
use crate::told::assert_printable;

/// Inspects a valid module with the input as its manifest. An accepted manifest must survive a round trip.
pub fn manifest(input: &[u8]) {
    match ModuleReport::read(&core(input, Encoding::UTF8), &GateBounds::default()) {
        Ok(report) => {
            let written = serde_json::to_vec(&report.manifest).expect("every manifest can be written");
            let again = ModuleReport::read(&core(&written, Encoding::UTF8), &GateBounds::default())
                .expect("it was accepted before");
            assert_eq!(again.manifest, report.manifest);
        }
        Err(error) => assert_printable(&error.to_string()),
    }
}
