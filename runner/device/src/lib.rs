//! Batches on a GPU: host memory that the device can read directly, and a ring of device memory into which batches are copied.
//!
//! A [`Gpu`] is opened through the CUDA driver, which is loaded on first use: no part of CUDA is needed to build, and without a
//! driver, only the GPU functions fail. A [`CudaTransfer`] is the stage that copies batches to the GPU; its output arrays are
//! [`DeviceBuffer`]s, whose memory is reused after the last tensor that refers to it is dropped. Batches are stacked in
//! [`PinnedMemory`], so that their bytes are written only once; [`HostMemory`] is the counterpart for consumers that keep batches
//! on the host.

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
