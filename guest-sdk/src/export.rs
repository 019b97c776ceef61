//! Exports, imports and the panic hook of a module. For WebAssembly only.

/// Types of the contract `wit/stage.wit`, under their names in that file.
pub(crate) mod types {
    pub(crate) use crate::item::{Field, Item, Outcome, Value};
    pub(crate) use crate::tensor::{Dtype, RawTensor as Tensor};
}

use std::cell::RefCell;

use crate::host::{Level, log};
use crate::stage::Stage;

/// Holds the stage of a module, from `init` to the end of the instance.
#[derive(Debug)]
pub struct StageSlot<S>(RefCell<Option<S>>);

impl<S: Stage> StageSlot<S> {
    /// Creates a slot without a stage.
    pub const fn empty() -> Self {
        Self(RefCell::new(None))
    }

    /// Implements the export `init` of the contract.
    pub fn init(&self, params: &str) -> Result<(), String> {
        std::panic::set_hook(Box::new(report_panic));
        self.0.replace(Some(S::init(params)?));
        Ok(())
    }

    /// Calls the stage, for any other export of the contract.
    pub fn call<T>(&self, call: impl FnOnce(&mut S) -> T) -> T {
        let mut stage = self.0.borrow_mut();
        call(stage.as_mut().expect("the host calls `init` first, and goes on only when it succeeds"))
    }
}

/// Logs a panic in the format that the host recognises, because a trap alone carries no message.
fn report_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("(no message)");
    match panic.location() {
        Some(place) => log(
            Level::Error,
            &format!("panic: {message} at {}:{}:{}", place.file(), place.line(), place.column()),
        ),
        None => log(Level::Error, &format!("panic: {message}")),
    }
}

/// Exports a stage as the stage of the module, together with its manifest, and with its state if that follows.
#[macro_export]
#[doc(hidden)]
macro_rules! __export {
    ($stage:ty $(, $state:ident)?) => {
        // The generated exports take raw pointers from the host; wasmtime upholds the host's side of the contract.
        #[expect(unsafe_code, reason = "exports and custom sections are unsafe attributes")]
        const _: () = {
            use ::core::result::Result;
            use ::std::{string::String, vec::Vec};
            use $crate::__private::{Stage, StageSlot, bindings};
            use $crate::{Item, Outcome};

            ::std::thread_local! {
                static SLOT: StageSlot<$stage> = const { StageSlot::empty() };
            }

            struct Component;

            impl bindings::exports::penstock::stage::transform::Guest for Component {
                fn init(params: String) -> Result<(), String> {
                    SLOT.with(|slot| slot.init(&params))
                }

                fn process(items: Vec<Item>) -> Vec<Outcome> {
                    SLOT.with(|slot| slot.call(|stage| Stage::process(stage, items)))
                }

                fn finish() -> Vec<Item> {
                    SLOT.with(|slot| slot.call(Stage::finish))
                }
            }

            $crate::__private::bindings::export_component!(Component with_types_in $crate::__private::bindings);

            $(
                $crate::__export_state!(Component, SLOT, $state);
            )?

            // SAFETY: the section contains plain bytes that only the host reads.
            #[used]
            #[unsafe(link_section = "penstock.manifest")]
            static MANIFEST: [u8; <$stage as Stage>::MANIFEST.len()] = <$stage as Stage>::MANIFEST.bytes();
        };
    };
}

/// Exports the state of a stage.
#[macro_export]
#[doc(hidden)]
macro_rules! __export_state {
    ($component:ident, $slot:ident, state) => {
        impl $crate::__private::state_bindings::exports::penstock::stage::state::Guest for $component {
            fn save() -> Vec<u8> {
                $slot.with(|slot| slot.call(|stage| Stage::save(stage)))
            }

            fn load(saved: Vec<u8>) -> Result<(), String> {
                $slot.with(|slot| slot.call(|stage| Stage::load(stage, &saved)))
            }
        }

        $crate::__private::state_bindings::export_state!(
            $component with_types_in $crate::__private::state_bindings
        );
    };
}
