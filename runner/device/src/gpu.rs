use std::sync::Arc;

use crate::driver::{Context, Driver, DriverError};

/// A GPU that is open. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Gpu(Arc<Context>);

/// Why a GPU cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// There is nothing to ask.
    #[error("there is no CUDA driver here (no `libcuda.so.1` can be loaded)")]
    NoDriver,
    /// What was loaded is not a driver, or one from before what is used.
    #[error("the CUDA driver here has no function `{name}`: it is older than CUDA 11.4, or no driver at all")]
    MissingSymbol {
        /// The function.
        name: &'static str,
    },
    /// There are none.
    #[error("there is a CUDA driver here, but it shows no device (`CUDA_VISIBLE_DEVICES` may hide them)")]
    NoDevice,
    /// There are not as many.
    #[error("there is no CUDA device {number} here: the driver shows {count}, counted from 0")]
    NoSuchDevice {
        /// The one that was wanted.
        number: u32,
        /// How many there are.
        count: u32,
    },
    /// The driver refuses.
    #[error("the CUDA driver here cannot be used")]
    Driver(#[from] DriverError),
    /// The machine gives no thread.
    #[error("cannot start the thread that copies to the device: {0}")]
    Thread(String),
}

impl Gpu {
    /// How many there are; never 0.
    fn count() -> Result<u32, GpuError> {
        match Driver::get()?.devices()? {
            0 => Err(GpuError::NoDevice),
            count => Ok(count),
        }
    }

    /// Whether the GPU of this number is there, without opening it.
    pub fn check(number: u32) -> Result<(), GpuError> {
        let count = Self::count()?;
        if number < count { Ok(()) } else { Err(GpuError::NoSuchDevice { number, count }) }
    }

    /// Opens the GPU of this number, from 0.
    pub fn open(number: u32) -> Result<Self, GpuError> {
        Self::check(number)?;
        Ok(Self(Context::open(Driver::get()?, number)?))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.0.number()
    }

    /// What the driver calls it, e.g. `NVIDIA H200`.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Its name in the world, as NVML and `nvidia-smi` spell it: numbers change with `CUDA_VISIBLE_DEVICES`, this does not.
    pub fn uuid(&self) -> String {
        let hex = self.0.uuid().map(|byte| format!("{byte:02x}")).concat();
        let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        format!("GPU-{a}-{b}-{c}-{d}-{e}")
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.0
    }
}
