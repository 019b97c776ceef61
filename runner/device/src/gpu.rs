use std::sync::Arc;

use crate::driver::{CudaContext, Driver};
use crate::error::GpuError;

/// An open GPU. All clones refer to the same GPU.
#[derive(Clone, Debug)]
pub struct Gpu(Arc<CudaContext>);

impl Gpu {
    /// Fails if there is no GPU with this number; does not open it.
    pub fn check(number: u32) -> Result<(), GpuError> {
        match Driver::get()?.devices()? {
            0 => Err(GpuError::NoDevice),
            count if number < count => Ok(()),
            count => Err(GpuError::NoSuchDevice { number, count }),
        }
    }

    /// Opens the GPU with this number, counted from 0.
    pub fn open(number: u32) -> Result<Self, GpuError> {
        Self::check(number)?;
        Ok(Self(CudaContext::open(Driver::get()?, number)?))
    }

    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Name given by the driver, e.g. `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Globally unique id, as printed by NVML and `nvidia-smi`; unlike the number, it does not depend on `CUDA_VISIBLE_DEVICES`.
    pub fn uuid(&self) -> String {
        let hex = self.0.uuid.map(|byte| format!("{byte:02x}")).concat();
        let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        format!("GPU-{a}-{b}-{c}-{d}-{e}")
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.0
    }
}
