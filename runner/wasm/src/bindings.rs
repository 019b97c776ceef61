//! The contract as Rust types, made from the one copy of the WIT. Private: nothing here crosses this crate's border.

wasmtime::component::bindgen!({
    path: "../../guest-sdk/wit",
    world: "stage",
    // Samples go in as borrows of the engine's own bytes; only results own theirs.
    ownership: Borrowing { duplicate_if_necessary: true },
    imports: { default: trappable },
});
