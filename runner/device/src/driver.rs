//! The CUDA driver: its functions, and safe types that own its handles and memory.
#![expect(unsafe_code, reason = "the driver is a C library")]

mod handles;
mod memory;
mod stream;
mod symbols;

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null;
use std::sync::OnceLock;

pub(crate) use handles::{CudaContext, CudaEvent, CudaStream};
pub(crate) use memory::{Copies, DeviceRegion, HostRegion};
pub use stream::{ConsumerStream, StreamFault};
use symbols::{Function, ResultCode, Symbols};

use crate::error::{DriverError, GpuError};

pub(crate) struct Driver(Symbols);

const SUCCESS: ResultCode = 0;
const NO_DEVICE: ResultCode = 100;
const NOT_READY: ResultCode = 600;

impl Driver {
    /// Returns the driver; the first call loads and initialises it.
    pub(crate) fn get() -> Result<&'static Self, GpuError> {
        static DRIVER: OnceLock<Result<Driver, GpuError>> = OnceLock::new();
        DRIVER.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, GpuError> {
        let driver = Self(symbols::load()?);
        // SAFETY: relies on the driver's header: `cuInit` takes 0 and nothing else, any number of times, from any thread.
        match driver.call(|all| &all.init, |init| unsafe { init(0) }) {
            Err(DriverError { code: NO_DEVICE, .. }) => Err(GpuError::NoDevice),
            result => Ok(result.map(|()| driver)?),
        }
    }

    pub(crate) fn devices(&self) -> Result<u32, DriverError> {
        let mut count: c_int = 0;
        // SAFETY: `cuDeviceGetCount` writes one number to `count`, which outlives the call.
        self.call(|all| &all.device_count, |get| unsafe { get(&raw mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Calls a driver function that needs no context.
    fn call<F: Copy>(
        &self,
        function: impl Fn(&Symbols) -> &Function<F>,
        call: impl FnOnce(F) -> ResultCode,
    ) -> Result<(), DriverError> {
        let function = function(&self.0);
        self.check(function, call(function.call))
    }

    /// Returns an error if the result code is not success.
    fn check<F>(&self, function: &Function<F>, code: ResultCode) -> Result<(), DriverError> {
        if code == SUCCESS {
            return Ok(());
        }
        let name = self.text(self.0.error_name.call, code).unwrap_or_else(|| format!("error {code}"));
        let meaning = self.text(self.0.error_string.call, code).unwrap_or_else(|| "unknown".to_owned());
        Err(DriverError { call: function.name, code, name, meaning })
    }

    fn text(&self, describe: symbols::Describe, code: ResultCode) -> Option<String> {
        let mut text: *const c_char = null();
        // SAFETY: the function writes a pointer to a static text, or null for an unknown code.
        let text = unsafe {
            let answer = describe(code, &raw mut text);
            if answer != SUCCESS || text.is_null() {
                return None;
            }
            CStr::from_ptr(text)
        };
        Some(text.to_string_lossy().into_owned())
    }
}
