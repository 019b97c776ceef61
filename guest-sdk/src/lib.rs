//! What a Penstock stage is written with.
//!
//! A stage is a function from one sample to what becomes of it. Built for WebAssembly it is a module that the runner
//! calls in a sandbox; built natively it is an ordinary function, tested with `cargo test`.
//!
//! ```
//! use penstock_guest::prelude::*;
//!
//! /// Upper-cases the text.
//! #[stage(wants("text"), makes("text"))]
//! fn upper(mut item: Item) -> Result<Item> {
//!     let text = item.text("text")?.to_uppercase();
//!     item.set("text", text);
//!     Ok(item)
//! }
//! ```
//!
//! The README of this crate goes from nothing to a module, and says how to keep it fast.
#![warn(missing_docs)]

// Derived and generated code names this crate from outside; so may its own tests and doc examples.
extern crate self as penstock_guest;

// Generated from `wit/stage.wit` by `make bindings`: the generator is heavier to build than most stages.
#[cfg(target_family = "wasm")]
#[rustfmt::skip]
#[expect(unreachable_pub, unsafe_code, reason = "generated")]
#[doc(hidden)]
pub mod bindings;
mod chunks;
mod error;
#[cfg(target_family = "wasm")]
mod export;
mod host;
mod item;
mod json;
mod params;
mod rng;
mod stage;
mod tensor;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

pub use chunks::{fold_chunks, map_chunks, update_chunks};
pub use error::{Context, Error, Result};
pub use host::{Level, asset, count, log};
pub use item::{Field, IntoOutcome, Item, Outcome, Value};
pub use params::{Param, Params};
pub use penstock_guest_macros::{Params, stage};
pub use rng::Rng;
pub use stage::{BatchStage, SampleStage, StatefulStage};
pub use tensor::{Dtype, Element, RawTensor, Tensor, TensorView};

/// What nearly every stage needs: `use penstock_guest::prelude::*;`.
pub mod prelude {
    pub use crate::{
        BatchStage, Context, Error, Item, Outcome, Params, Result, Rng, SampleStage, StatefulStage, Tensor,
        TensorView, Value, asset, bail, count, ensure, stage,
    };
}

/// For the code that the macros write. Not part of the interface.
#[doc(hidden)]
pub mod __private {
    pub use serde;
    pub use serde_json;

    pub use crate::__export as export;
    #[cfg(target_family = "wasm")]
    pub use crate::bindings;
    #[cfg(target_family = "wasm")]
    pub use crate::export::StageSlot;
    pub use crate::json::Json;
    pub use crate::params::{MemberReader, Rule};
    pub use crate::stage::Stage;
}

/// Outside WebAssembly a stage is exported to no one.
#[cfg(not(target_family = "wasm"))]
#[macro_export]
#[doc(hidden)]
macro_rules! __export {
    ($stage:ty) => {};
}
