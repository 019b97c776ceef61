//! Places for batches on the device, and the messages by which they change hands.

use std::sync::Arc;

use futures::channel::oneshot;
use penstock_engine::item::Collated;
use penstock_engine::ports::Fault;
use penstock_types::stats::Tick;

use crate::driver::{CudaContext, CudaEvent, CudaStream, DeviceRegion};
use crate::error::DriverError;

/// Room for one batch on the device, with the moments that say who may touch it.
pub(crate) struct RingSlot {
    pub(crate) region: DeviceRegion,
    /// On the stream that copies: the last batch began to be written, and was written.
    pub(crate) begun: CudaEvent,
    pub(crate) copied: CudaEvent,
    /// On the streams of those who read the last batch: they had read it.
    pub(crate) released: Vec<CudaEvent>,
}

/// A message to the thread that copies. There are never more of these than tasks of the stage and slots of the ring.
pub(crate) enum CopierMessage {
    Copy(CopyJob),
    /// Nobody holds the batch of this slot any more.
    Back(RingSlot),
    /// A slot that was lent does not come back.
    Gone,
    Close,
}

pub(crate) struct CopyJob {
    pub(crate) batch: Collated,
    pub(crate) reply: oneshot::Sender<Result<Collated, Fault>>,
    pub(crate) arrived: Tick,
}

/// The driver gives memory of devices in pages of this size.
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

    /// Lets a stream write to it: once all who read it are done.
    pub(crate) fn open(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.released.iter().try_for_each(|released| stream.wait_for(released))?;
        stream.record(&self.begun)
    }

    pub(crate) fn is_released(&self) -> bool {
        // Who cannot be asked any more reads nothing any more.
        self.released.iter().all(|released| released.is_complete().unwrap_or(true))
    }
}
