//! The module's side of the contract: exports, imports, and the panic hook. For WebAssembly only.

use std::cell::RefCell;

use crate::host::{Level, log};
use crate::item::{Field, Item, Outcome, Value};
use crate::stage::Stage;
use crate::tensor::{Dtype, RawTensor};
use crate::wit::types as wit;

/// The one stage of a module, between `init` and the end of the instance.
#[derive(Debug)]
pub struct StageSlot<S>(RefCell<Option<S>>);

impl<S: Stage> StageSlot<S> {
    /// A slot without a stage.
    pub const fn empty() -> Self {
        Self(RefCell::new(None))
    }

    /// The export `init`.
    pub fn init(&self, params: &str) -> Result<(), String> {
        std::panic::set_hook(Box::new(report_panic));
        self.0.replace(Some(S::init(params)?));
        Ok(())
    }

    /// The export `process`.
    pub fn process(&self, items: Vec<wit::Item>) -> Vec<wit::Outcome> {
        let items = items.into_iter().map(Item::from).collect();
        self.with(|stage| stage.process(items)).into_iter().map(wit::Outcome::from).collect()
    }

    /// The export `finish`.
    pub fn finish(&self) -> Vec<wit::Item> {
        self.with(S::finish).into_iter().map(wit::Item::from).collect()
    }

    fn with<T>(&self, call: impl FnOnce(&mut S) -> T) -> T {
        let mut stage = self.0.borrow_mut();
        call(stage.as_mut().expect("the host calls `init` first, and goes on only when it succeeds"))
    }
}

/// Sends a panic to the log in the form by which the host knows it: a trap alone has no message.
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

/// Exports a stage as the module's own, with its manifest.
#[macro_export]
#[doc(hidden)]
macro_rules! __export {
    ($stage:ty) => {
        // The generated exports take raw pointers from the host, whose side of the contract wasmtime keeps.
        #[expect(unsafe_code, reason = "exports and custom sections are unsafe attributes")]
        const _: () = {
            use ::core::result::Result;
            use ::std::{string::String, vec::Vec};
            use $crate::__private::bindings::penstock::stage::types;
            use $crate::__private::{Stage, StageSlot, bindings};

            ::std::thread_local! {
                static SLOT: StageSlot<$stage> = const { StageSlot::empty() };
            }

            struct Component;

            impl bindings::exports::penstock::stage::transform::Guest for Component {
                fn init(params: String) -> Result<(), String> {
                    SLOT.with(|slot| slot.init(&params))
                }

                fn process(items: Vec<types::Item>) -> Vec<types::Outcome> {
                    SLOT.with(|slot| slot.process(items))
                }

                fn finish() -> Vec<types::Item> {
                    SLOT.with(|slot| slot.finish())
                }
            }

            $crate::__private::bindings::export_component!(Component with_types_in $crate::__private::bindings);

            // SAFETY: the section holds plain bytes and is read by the host alone, never by this program.
            #[used]
            #[unsafe(link_section = "penstock.manifest")]
            static MANIFEST: [u8; <$stage as Stage>::MANIFEST.len()] = <$stage as Stage>::MANIFEST.bytes();
        };
    };
}

impl From<wit::Item> for Item {
    fn from(item: wit::Item) -> Self {
        let fields = item
            .fields
            .into_iter()
            .map(|field| Field { name: field.name, value: field.value.into() })
            .collect();
        Self { key: item.key, seed: item.seed, fields }
    }
}

impl From<Item> for wit::Item {
    fn from(item: Item) -> Self {
        let fields = item
            .fields
            .into_iter()
            .map(|field| wit::Field { name: field.name, value: field.value.into() })
            .collect();
        Self { key: item.key, seed: item.seed, fields }
    }
}

impl From<wit::Value> for Value {
    fn from(value: wit::Value) -> Self {
        match value {
            wit::Value::Blob(bytes) => Self::Blob(bytes),
            wit::Value::Text(text) => Self::Text(text),
            wit::Value::Int(number) => Self::Int(number),
            wit::Value::Real(number) => Self::Real(number),
            wit::Value::Tensor(tensor) => {
                Self::Tensor(RawTensor { dtype: tensor.dtype.into(), shape: tensor.shape, data: tensor.data })
            }
        }
    }
}

impl From<Value> for wit::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::Blob(bytes) => Self::Blob(bytes),
            Value::Text(text) => Self::Text(text),
            Value::Int(number) => Self::Int(number),
            Value::Real(number) => Self::Real(number),
            Value::Tensor(tensor) => Self::Tensor(wit::Tensor {
                dtype: tensor.dtype.into(),
                shape: tensor.shape,
                data: tensor.data,
            }),
        }
    }
}

impl From<Outcome> for wit::Outcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Keep(item) => Self::Keep(item.into()),
            Outcome::Drop => Self::Drop,
            Outcome::Many(items) => Self::Many(items.into_iter().map(wit::Item::from).collect()),
            Outcome::Held => Self::Held,
            Outcome::Failed(reason) => Self::Failed(reason),
        }
    }
}

macro_rules! same_dtypes {
    ($($name:ident),+) => {
        impl From<wit::Dtype> for Dtype {
            fn from(dtype: wit::Dtype) -> Self {
                match dtype {
                    $(wit::Dtype::$name => Self::$name),+
                }
            }
        }

        impl From<Dtype> for wit::Dtype {
            fn from(dtype: Dtype) -> Self {
                match dtype {
                    $(Dtype::$name => Self::$name),+
                }
            }
        }
    };
}

same_dtypes!(Boolean, Uint8, Int8, Int16, Uint16, Int32, Int64, Float16, Bfloat16, Float32, Float64);
