//! Slots for batches on the device, and messages to the copying thread.

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
    /// Start and end of the last write, both recorded on the copying stream.
    pub(crate) begun: CudaEvent,
    pub(crate) copied: CudaEvent,
    /// Events recorded at the ends of the reads of the last batch, on the readers' streams.
    pub(crate) released: Vec<CudaEvent>,
}

/// A message to the copying thread. The number of messages in the channel is bounded by the stage's tasks and the ring's slots.
pub(crate) enum CopierMessage {
    Copy(CopyJob),
    /// The batch in this slot was dropped.
    Back(RingSlot),
    /// A lent slot was dropped and will not return to the ring.
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

    /// Makes a stream wait until all readers of the slot are done, and records the start of a write.
    pub(crate) fn open(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.released.iter().try_for_each(|released| stream.wait_for(released))?;
        stream.record(&self.begun)
    }

    pub(crate) fn is_released(&self) -> bool {
        // If the event cannot be queried, the stream no longer works, so nothing reads the slot.
        self.released.iter().all(|released| released.is_complete().unwrap_or(true))
    }
}
