//! Slots for batches on the device, and messages to the thread that copies.

use std::sync::Arc;

use futures::channel::oneshot;
use penstock_engine::item::Collated;
use penstock_engine::ports::Fault;
use penstock_types::stats::Tick;

use crate::driver::{CudaContext, CudaEvent, CudaStream, DeviceRegion};
use crate::error::DriverError;

/// Device memory for one batch, with events that order the accesses to it.
pub(crate) struct RingSlot {
    pub(crate) region: DeviceRegion,
    /// Start and end of the last write, on the stream that copies.
    pub(crate) begun: CudaEvent,
    pub(crate) copied: CudaEvent,
    /// Ends of the reads of the last batch, on the readers' streams.
    pub(crate) released: Vec<CudaEvent>,
}

/// A message to the thread that copies. The number in the channel is bounded by the stage's tasks and the ring's slots.
pub(crate) enum CopierMessage {
    Copy(CopyJob),
    /// The batch in this slot was dropped.
    Back(RingSlot),
    /// A lent slot was dropped and does not return.
    Gone,
    Close,
}

pub(crate) struct CopyJob {
    pub(crate) batch: Collated,
    pub(crate) reply: oneshot::Sender<Result<Collated, Fault>>,
    pub(crate) arrived: Tick,
}

/// Page size of the driver for device memory.
const PAGE: usize = 2 << 20;

impl RingSlot {
    pub(crate) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, DriverError> {
        Ok(Self {
            region: DeviceRegion::new(context, len.next_multiple_of(PAGE))?,
            begun: CudaEvent::timed(context)?,
            copied: CudaEvent::timed(context)?,
            released: Vec::new(),
        })
    }

    /// Makes a stream wait until all readers are done, and marks the start of a write.
    pub(crate) fn open(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.released.iter().try_for_each(|released| stream.wait_for(released))?;
        stream.record(&self.begun)
    }

    pub(crate) fn is_released(&self) -> bool {
        // A stream that cannot be queried any more does not read any more.
        self.released.iter().all(|released| released.is_complete().unwrap_or(true))
    }
}
