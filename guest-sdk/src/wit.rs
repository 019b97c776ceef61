//! The contract with the runner, as types and imports.

pub(crate) use bindings::penstock::stage::{host, types};

/// The code that wit-bindgen generates from `wit/stage.wit`.
#[expect(missing_docs, reason = "generated")]
pub mod bindings {
    wit_bindgen::generate!({
        path: "wit/stage.wit",
        world: "stage",
        pub_export_macro: true,
        export_macro_name: "export_component",
        default_bindings_module: "::penstock_guest::__private::bindings",
    });
}
