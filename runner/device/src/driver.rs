//! The CUDA driver: its functions, and what they give, as values that give back what they hold.
#![expect(unsafe_code, reason = "the driver is a C library")]

mod copies;
mod handles;
mod memory;
mod stream;
mod symbols;

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null;
use std::sync::OnceLock;

pub(crate) use copies::Copies;
pub(crate) use handles::{Context, Event, Stream};
pub(crate) use memory::{DeviceRegion, HostRegion};
pub use stream::{ConsumerStream, StreamFault};
use symbols::{Code, Function, Symbols};

use crate::gpu::GpuError;

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{call}` answered {name} ({meaning})")]
pub struct DriverError {
    /// The function that was called.
    pub call: &'static str,
    /// What it answered.
    pub code: u32,
    /// The driver's name for that.
    pub name: String,
    /// The driver's words for that.
    pub meaning: String,
}

/// The driver of this machine, ready to be called.
pub(crate) struct Driver(Symbols);

const SUCCESS: Code = 0;
const OUT_OF_MEMORY: Code = 2;
const NO_DEVICE: Code = 100;
const NOT_READY: Code = 600;

impl Driver {
    /// The driver, loaded and set up by the first who asks.
    pub(crate) fn get() -> Result<&'static Self, GpuError> {
        static DRIVER: OnceLock<Result<Driver, GpuError>> = OnceLock::new();
        DRIVER.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, GpuError> {
        let driver = Self(symbols::load()?);
        // SAFETY: the only flags there are is none.
        let code = unsafe { (driver.0.init.call)(0) };
        match driver.said(&driver.0.init, code) {
            Err(DriverError { code: NO_DEVICE, .. }) => Err(GpuError::NoDevice),
            said => Ok(said.map(|()| driver)?),
        }
    }

    /// How many devices it shows.
    pub(crate) fn devices(&self) -> Result<u32, DriverError> {
        let mut count: c_int = 0;
        // SAFETY: it writes a number.
        let code = unsafe { (self.0.device_count.call)(&raw mut count) };
        self.said(&self.0.device_count, code)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// What a function's answer means.
    fn said<F>(&self, function: &Function<F>, code: Code) -> Result<(), DriverError> {
        if code == SUCCESS {
            return Ok(());
        }
        let name = self.text(self.0.error_name.call, code).unwrap_or_else(|| format!("error {code}"));
        let meaning = self.text(self.0.error_string.call, code).unwrap_or_else(|| "unknown".to_owned());
        Err(DriverError { call: function.name, code, name, meaning })
    }

    /// What an event or a stream answers when it is asked whether it is done.
    fn is_done<F>(&self, function: &Function<F>, code: Code) -> Result<bool, DriverError> {
        if code == NOT_READY { Ok(false) } else { self.said(function, code).map(|()| true) }
    }

    fn text(&self, tell: symbols::Tell, code: Code) -> Option<String> {
        let mut text: *const c_char = null();
        // SAFETY: it writes a pointer to a text of its own, which stays, or null for a code that it does not know.
        let text = unsafe {
            let answer = tell(code, &raw mut text);
            if answer != SUCCESS || text.is_null() {
                return None;
            }
            CStr::from_ptr(text)
        };
        Some(text.to_string_lossy().into_owned())
    }
}

impl DriverError {
    /// Whether the device, or the system, had no memory left; the driver goes on working.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }
}
