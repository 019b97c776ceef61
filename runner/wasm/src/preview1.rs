//! The functions of `wasi_snapshot_preview1` that a core module may import, closed: they become part of the component that is made of
//! the module, so the linker provides no WASI.
//!
//! The functions are `preview1/preview1.wat`, whose comments describe the results.

use wit_component::LibraryInfo;

/// Name from which a core module imports the functions.
pub(crate) const NAME: &str = "wasi_snapshot_preview1";
/// The functions, assembled, with the types of the part of the contract that they import.
pub(crate) const FUNCTIONS: &[u8] = include_bytes!("preview1/preview1.wasm");
/// Links the functions as a library of `wit-component`, because an adapter may not have a separate memory: it
/// would have to allocate in the memory of the module, and the runtime of Go requires to be the only one that grows this memory.
pub(crate) const LIBRARY: LibraryInfo = LibraryInfo { instantiate_after_shims: false, arguments: Vec::new() };

#[cfg(test)]
#[path = "preview1_tests.rs"]
mod tests;
