//! Batches on a GPU: host memory that the device can read directly, and the ring of device memory that batches are copied into.
//!
//! A [`Gpu`] is opened through the CUDA driver, which is loaded on first use: no part of CUDA is needed to build, and without a
//! driver everything but the GPU works. A [`CudaTransfer`] is the stage; its output arrays are [`DeviceBuffer`]s, lent until the
//! last tensor over them is dropped. Batches are stacked in [`PinnedMemory`], so that their bytes are written only once;
//! [`HostMemory`] is the counterpart for consumers that keep batches on the host.

mod copier;
mod driver;
mod error;
mod figures;
mod gpu;
mod memory;
mod nvml;
mod ring;
mod slot;
mod transfer;

pub use driver::{ConsumerStream, StreamFault};
pub use error::{DriverError, GpuError};
pub use figures::TransferFigures;
pub use gpu::Gpu;
pub use memory::{HostMemory, PinnedMemory, PinnedRegion, pinned_share};
pub use nvml::Watch;
pub use ring::DeviceBuffer;
pub use transfer::{CudaTransfer, slots_for};
