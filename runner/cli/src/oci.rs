//! Modules in OCI registries, in the layout of the CNCF: <https://tag-runtime.cncf.io/wgs/wasm/deliverables/wasm-oci-artifact/>.

mod credentials;
mod manifest;
mod reference;
mod repository;
mod transfer;

pub(crate) use self::manifest::{Manifest, config, digest};
pub(crate) use self::reference::{Reference, Version};
pub(crate) use self::repository::Repository;
