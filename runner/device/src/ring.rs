use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_engine::memory::DeviceMemory;

use crate::driver::{ConsumerStream, CudaContext, CudaEvent};
use crate::error::DriverError;
use crate::slot::{CopierMessage, RingSlot};

/// The slots of one transfer that hold no batch. Used again in turn, the one that has been free for longest first: its
/// readers are the likeliest to be done.
pub(crate) struct Ring {
    context: Arc<CudaContext>,
    free: VecDeque<RingSlot>,
    /// Free and lent.
    made: usize,
    most: usize,
}

pub(crate) enum SlotSearch {
    Slot(RingSlot),
    /// All that may be are in use.
    AllInUse,
    /// Fewer are in use, but they leave the device no memory for one more.
    NoMemory,
}

/// A slot in the hands of those who read its batch; it goes back when the last of them is gone.
struct Lease {
    /// Always some, but for the moment in which it goes back.
    slot: Option<RingSlot>,
    streams: Mutex<Vec<ConsumerStream>>,
    home: Sender<CopierMessage>,
}

/// An array in the memory of a GPU. Clones are the same one; when the last of a batch is dropped, its place is used again, as
/// soon as what was put into the consumers' streams by then is done.
#[derive(Clone)]
pub struct DeviceBuffer {
    lease: Arc<Lease>,
    at: usize,
    len: usize,
}

/// A batch whose arrays are to be lent out.
pub(crate) struct Filled(Arc<Lease>);

impl Ring {
    /// At most `most` slots, none of them made yet.
    pub(crate) fn new(context: &Arc<CudaContext>, most: usize) -> Self {
        Self { context: context.clone(), free: VecDeque::new(), made: 0, most }
    }

    pub(crate) fn made(&self) -> usize {
        self.made
    }

    /// Whether waiting alone may bring a slot: one is too small, and still being read.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// A slot with room for so many bytes, if there is one. Fails for want of memory only when no slot is in use.
    pub(crate) fn take(&mut self, len: usize) -> Result<SlotSearch, DriverError> {
        let fit = self.free.iter().position(|slot| slot.region.len() >= len);
        if let Some(slot) = fit.and_then(|place| self.free.remove(place)) {
            return Ok(SlotSearch::Slot(slot));
        }
        loop {
            // Too small, all of them; making a larger one in place of one is as good as another one.
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

    /// A slot is not used again; the driver waits for what the device still does with it.
    pub(crate) fn forget(&mut self, slot: RingSlot) {
        drop(slot);
        self.lost_one();
    }

    pub(crate) fn lost_one(&mut self) {
        self.made -= 1;
    }

    /// Lets all go that nobody reads any more. Says whether those were all.
    pub(crate) fn empty(&mut self) -> bool {
        self.free.retain(|slot| !slot.is_released());
        self.free.is_empty()
    }

    /// Leaves the others to the end of the process: freeing them would wait for a device that does not answer.
    pub(crate) fn abandon(&mut self) {
        self.free.drain(..).for_each(std::mem::forget);
    }
}

impl Filled {
    /// A slot with a batch, which goes home when nobody reads it any more.
    pub(crate) fn new(mut slot: RingSlot, home: Sender<CopierMessage>) -> Self {
        // They have been waited for.
        slot.released.clear();
        Self(Arc::new(Lease { slot: Some(slot), streams: Mutex::default(), home }))
    }

    pub(crate) fn buffer(&self, at: usize, len: usize) -> DeviceBuffer {
        DeviceBuffer { lease: self.0.clone(), at, len }
    }
}

impl Lease {
    fn slot(&self) -> &RingSlot {
        self.slot.as_ref().expect("it goes back when it is dropped")
    }
}

impl DeviceBuffer {
    pub fn device(&self) -> u32 {
        self.lease.slot().region.context().number
    }

    /// Where it begins, in the device's memory.
    pub fn ptr(&self) -> u64 {
        self.lease.slot().region.address() + self.at as u64
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// To be called by who is going to read it on `stream`, before that and in the same thread: the stream goes on when the array
    /// is there, and the array stays until what is in the stream when the last clone is dropped, by any thread, is done.
    pub fn prepare(&self, stream: ConsumerStream) -> Result<(), DriverError> {
        stream.wait_for(&self.lease.slot().copied)?;
        let mut streams = self.lease.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.iter().any(|known| known.is(stream)) {
            streams.push(stream);
        }
        Ok(())
    }
}

impl DeviceMemory for DeviceBuffer {
    fn len(&self) -> usize {
        self.len
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

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
                // Nobody can say any more when it is read: not to be written to again.
                tracing::warn!(%error, "a batch on the device cannot be released as it should");
                drop(slot);
                CopierMessage::Gone
            }
        };
        // After the transfer's end there is nobody at home; what is not taken in is dropped, and so freed.
        drop(self.home.send(message));
    }
}
