use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_engine::lock::locked;
use penstock_engine::memory::DeviceMemory;

use crate::driver::{ConsumerStream, CudaContext, CudaEvent};
use crate::error::DriverError;
use crate::slot::{CopierMessage, RingSlot};

/// The free slots of one transfer. The slot that has been free longest is used first, because its readers are the most likely to
/// be done.
pub(crate) struct Ring {
    context: Arc<CudaContext>,
    free: VecDeque<RingSlot>,
    /// Number of slots, free and lent.
    made: usize,
    most: usize,
}

pub(crate) enum SlotSearch {
    Slot(RingSlot),
    /// All allowed slots are in use.
    AllInUse,
    /// Another slot is allowed, but the device has no memory for it.
    NoMemory,
}

/// A slot whose batch is being read; it returns to the ring when the last reader drops it.
pub(crate) struct Lease {
    /// `None` only while `drop` returns the slot.
    slot: Option<RingSlot>,
    streams: Mutex<Vec<ConsumerStream>>,
    home: Sender<CopierMessage>,
}

/// An array in the memory of a GPU. Clones refer to the same array. After the last buffer of a batch is dropped, the batch's slot
/// is reused as soon as all operations queued in the consumers' streams before the drop are done.
#[derive(Clone)]
pub struct DeviceBuffer {
    lease: Arc<Lease>,
    at: usize,
    len: usize,
}

impl Ring {
    /// Creates a ring of at most `most` slots, none of which is allocated yet.
    pub(crate) fn new(context: &Arc<CudaContext>, most: usize) -> Self {
        Self { context: context.clone(), free: VecDeque::new(), made: 0, most }
    }

    pub(crate) fn made(&self) -> usize {
        self.made
    }

    /// True if there are free slots. A free slot that `take` rejected, because the slot was too small and still being read, may
    /// become available without a message.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a slot of at least `len` bytes, or allocates one if the limits permit it. Fails for lack of memory only if no slot
    /// is in use.
    pub(crate) fn take(&mut self, len: usize) -> Result<SlotSearch, DriverError> {
        let fit = self.free.iter().position(|slot| slot.region.len() >= len);
        if let Some(slot) = fit.and_then(|place| self.free.remove(place)) {
            return Ok(SlotSearch::Slot(slot));
        }
        loop {
            // All free slots are too small: replacing one of them by a larger slot keeps the number of slots unchanged.
            let unfit = self.free.iter().position(RingSlot::is_released);
            match unfit.and_then(|place| self.free.remove(place)) {
                Some(slot) => self.forget(slot),
                None if self.made == self.most => return Ok(SlotSearch::AllInUse),
                None => {}
            }
            match RingSlot::new(&self.context, len) {
                Ok(slot) => {
                    self.made += 1;
                    return Ok(SlotSearch::Slot(slot));
                }
                Err(error) if error.is_out_of_memory() && self.made > 0 => {
                    if unfit.is_none() {
                        return Ok(SlotSearch::NoMemory);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn give_back(&mut self, slot: RingSlot) {
        self.free.push_back(slot);
    }

    /// Drops a slot. The driver first waits for all operations of the device on the slot's memory.
    pub(crate) fn forget(&mut self, slot: RingSlot) {
        drop(slot);
        self.lost_one();
    }

    pub(crate) fn lost_one(&mut self) {
        self.made -= 1;
    }

    /// Frees all slots that are no longer read. Returns true if no free slot is left.
    pub(crate) fn empty(&mut self) -> bool {
        self.free.retain(|slot| !slot.is_released());
        self.free.is_empty()
    }

    /// Leaks the free slots that are still being read: freeing them would wait for a device that does not respond.
    pub(crate) fn abandon(&mut self) {
        self.free.drain(..).for_each(std::mem::forget);
    }
}

impl Lease {
    /// Lends a slot with a copied batch; the slot returns to `home` after the last buffer is dropped.
    pub(crate) fn new(mut slot: RingSlot, home: Sender<CopierMessage>) -> Arc<Self> {
        // The events are no longer needed: the copy into the slot has waited for them.
        slot.released.clear();
        Arc::new(Self { slot: Some(slot), streams: Mutex::default(), home })
    }

    fn slot(&self) -> &RingSlot {
        self.slot.as_ref().expect("the slot is returned only in `drop`")
    }
}

impl DeviceBuffer {
    /// The array of `len` bytes at `at` of the lent slot.
    pub(crate) fn of(lease: Arc<Lease>, at: usize, len: usize) -> Self {
        Self { lease, at, len }
    }

    pub fn device(&self) -> u32 {
        self.lease.slot().region.context().number
    }

    /// Address of the array in the device's memory.
    pub fn ptr(&self) -> u64 {
        self.lease.slot().region.address() + self.at as u64
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes `stream` wait for the array. The reading thread must call this before it reads the array on `stream`. After the last
    /// clone is dropped, on any thread, the array is kept until all operations queued in `stream` before the drop are done.
    pub fn prepare(&self, stream: ConsumerStream) -> Result<(), DriverError> {
        stream.wait_for(&self.lease.slot().copied)?;
        let mut streams = locked(&self.lease.streams);
        if !streams.iter().any(|known| known.is(stream)) {
            streams.push(stream);
        }
        Ok(())
    }
}

impl DeviceMemory for DeviceBuffer {}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("device", &self.device())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(mut slot) = self.slot.take() else { return };
        let streams = self.streams.get_mut().unwrap_or_else(PoisonError::into_inner);
        let released: Result<Vec<CudaEvent>, DriverError> = streams
            .iter()
            .map(|stream| {
                let released = CudaEvent::untimed(slot.region.context())?;
                stream.record(&released)?;
                Ok(released)
            })
            .collect();
        let message = match released {
            Ok(released) => {
                slot.released = released;
                CopierMessage::Back(slot)
            }
            Err(error) => {
                // It is unknown when the reads end, so the slot must not be written to again.
                tracing::warn!(%error, "cannot record the release of a batch; its slot is freed instead");
                drop(slot);
                CopierMessage::Gone
            }
        };
        // After the transfer has ended there is no receiver: sending fails and drops the message, which frees its slot.
        drop(self.home.send(message));
    }
}
