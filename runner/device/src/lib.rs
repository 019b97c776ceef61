//! Batches on a GPU: memory that the device reads by itself, and the ring through which batches get into its own.
//!
//! A [`Gpu`] is found by the CUDA driver, which is loaded when it is first asked for: nothing of CUDA is needed to build, and
//! where there is no driver everything but the GPU works. A [`CudaTransfer`] is the stage; what comes out of it are
//! [`DeviceBuffer`]s, lent until the last tensor over them is dropped. [`PinnedMemory`] is where batches are to be stacked,
//! so that their bytes are written once; [`HostMemory`] is the same for who keeps them on the host.

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
