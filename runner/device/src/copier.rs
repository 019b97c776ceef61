//! The thread that copies batches to a device, and its state.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use bytes::Bytes;
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::item::{Collated, DeviceTensor, Stacked};
use penstock_engine::memory::{BatchMemory, Pool, bytes_of};
use penstock_engine::ports::Fault;
use penstock_types::run::FailureClass;
use penstock_types::stats::Tick;

use crate::driver::{Copies, CudaContext, CudaStream};
use crate::error::DriverError;
use crate::figures::{CopiedBatch, TransferFigures};
use crate::memory::PinnedMemory;
use crate::ring::{DeviceBuffer, Lease, Ring, SlotSearch};
use crate::slot::{CopierMessage, CopyJob, RingSlot};

pub(crate) struct Copier {
    stream: CudaStream,
    ring: Ring,
    /// Pinned memory into which `collate` writes arrays while some is available.
    pinned: PinnedMemory,
    /// Pinned memory into which other arrays are copied first. Separate from `pinned`: a shared pool would free the larger
    /// regions of `pinned` to make room for staged arrays.
    staging: Pool<PinnedMemory>,
    waiting: VecDeque<CopyJob>,
    /// Set if the device has no memory for the first waiting batch.
    is_full: bool,
    full_was_logged: bool,
    /// Batches being copied, in the order in which their copies were queued in `stream`.
    under_way: VecDeque<UnderWay>,
    lost: Option<Fault>,
    home: Sender<CopierMessage>,
    clock: Arc<MonotonicClock>,
    figures: Arc<TransferFigures>,
}

struct UnderWay {
    job: CopyJob,
    slot: RingSlot,
    copies: Copies,
    places: Vec<ArrayPlace>,
    begun: Tick,
    staged_bytes: usize,
}

/// Position of a column's array in the slot.
struct ArrayPlace {
    column: usize,
    at: usize,
    len: usize,
}

/// Interval at which copies in progress are checked. Even the copy of a small batch takes longer than this interval.
const LOOK: Duration = Duration::from_micros(50);

/// Interval at which an allocation is repeated on a full device, because other programs may have freed memory.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Maximum wait for unfinished work of the device when the copying thread ends.
const GRACE: Duration = Duration::from_secs(1);

/// Alignment of arrays on the device in bytes, sufficient for all libraries that read them.
const ALIGNMENT: usize = 256;

/// Minimum size of staging memory: the pool provides no smaller blocks.
const LEAST_STAGING: usize = 4096;

impl Copier {
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        pinned: PinnedMemory,
        most_slots: usize,
        home: Sender<CopierMessage>,
        clock: Arc<MonotonicClock>,
        figures: Arc<TransferFigures>,
    ) -> Result<Self, DriverError> {
        Ok(Self {
            stream: CudaStream::new(context)?,
            ring: Ring::new(context, most_slots.max(1)),
            staging: Pool::new(pinned.clone()),
            pinned,
            waiting: VecDeque::new(),
            is_full: false,
            full_was_logged: false,
            under_way: VecDeque::new(),
            lost: None,
            home,
            clock,
            figures,
        })
    }

    pub(crate) fn run(mut self, messages: &Receiver<CopierMessage>) {
        while self.receive_all(messages) {
            self.finish_copies();
            self.begin_copies();
            self.figures.set_slots(self.ring.made());
        }
        self.close(messages);
    }

    /// Waits for messages, but not beyond the next check of the device. Returns false when the thread is to close.
    fn receive_all(&mut self, messages: &Receiver<CopierMessage>) -> bool {
        let waits_for_device =
            !self.under_way.is_empty() || (!self.waiting.is_empty() && self.ring.has_free());
        let waits_for_memory = self.is_full && !waits_for_device;
        let first = match (waits_for_device, waits_for_memory) {
            (true, _) => messages.recv_timeout(LOOK),
            (_, true) => messages.recv_timeout(ASK_AGAIN),
            _ => messages.recv().map_err(RecvTimeoutError::from),
        };
        let first = match first {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return false,
        };
        if waits_for_memory && first.is_none() {
            self.log_full();
        }
        first.into_iter().chain(messages.try_iter()).all(|message| self.receive(message))
    }

    /// Logs that the device is full. Only consumers or other programs can free memory: without the log message, a consumer that
    /// keeps too many batches would wait forever without any visible reason.
    fn log_full(&mut self) {
        if !std::mem::replace(&mut self.full_was_logged, true) {
            tracing::warn!(
                device = self.device(),
                batches = self.ring.made(),
                "the device has no memory for another batch until one of its batches is released: hold fewer batches, or make them smaller"
            );
        }
    }

    fn receive(&mut self, message: CopierMessage) -> bool {
        match message {
            CopierMessage::Copy(job) => self.waiting.push_back(job),
            CopierMessage::Back(slot) => self.ring.give_back(slot),
            CopierMessage::Gone => self.ring.lost_one(),
            CopierMessage::Close => return false,
        }
        true
    }

    fn begin_copies(&mut self) {
        self.is_full = false;
        while let Some(job) = self.waiting.pop_front() {
            if let Some(fault) = &self.lost {
                job.answer(Err(fault.clone()));
                continue;
            }
            let (places, room) = places(&job.batch);
            if places.is_empty() {
                drop(job.reply.send(Ok(job.batch)));
                continue;
            }
            match self.ring.take(room) {
                Ok(SlotSearch::Slot(slot)) => self.begin(job, slot, places),
                Ok(found) => {
                    self.is_full = matches!(found, SlotSearch::NoMemory);
                    return self.waiting.push_front(job);
                }
                Err(error) => self.fail(job, &error),
            }
        }
    }

    fn begin(&mut self, job: CopyJob, slot: RingSlot, places: Vec<ArrayPlace>) {
        let begun = self.clock.now();
        let mut copies = Copies::default();
        match self.fill(&job.batch, &places, &slot, &mut copies) {
            Ok(staged_bytes) => {
                self.under_way.push_back(UnderWay { job, slot, copies, places, begun, staged_bytes });
            }
            Err(error) => {
                self.ring.forget(slot);
                self.fail(job, &error);
            }
        }
    }

    /// Enqueues the copies of a batch in the stream. Returns the number of bytes that were copied to staging memory first.
    fn fill(
        &self,
        batch: &Collated,
        places: &[ArrayPlace],
        slot: &RingSlot,
        copies: &mut Copies,
    ) -> Result<usize, DriverError> {
        let array = |place: &ArrayPlace| match &batch.fields[place.column].values {
            Stacked::Tensor(tensor) => Some((tensor.data.clone(), place.at)),
            _ => None,
        };
        let mut arrays: Vec<(Bytes, usize)> = places.iter().filter_map(array).collect();
        let staged_bytes = self.stage(&mut arrays);
        slot.open(&self.stream)?;
        for (array, at) in arrays {
            copies.begin(&self.stream, array, &slot.region, at)?;
        }
        self.stream.record(&slot.copied)?;
        Ok(staged_bytes)
    }

    /// Copies the arrays outside pinned memory into staging memory, if enough of it is available. Returns the number of bytes
    /// copied.
    fn stage(&self, arrays: &mut [(Bytes, usize)]) -> usize {
        let mut others: Vec<&mut Bytes> =
            arrays.iter_mut().map(|(array, _)| array).filter(|array| !self.pinned.holds(array)).collect();
        let staged_bytes = others.iter().map(|array| array.len()).sum();
        if staged_bytes == 0 {
            return 0;
        }
        let Some(mut block) = self.staging.take(LEAST_STAGING.max(staged_bytes)) else { return 0 };
        let mut room: &mut [u8] = (*block).as_mut();
        for array in &others {
            let (place, rest) = room.split_at_mut(array.len());
            place.copy_from_slice(array);
            room = rest;
        }
        let mut staged = bytes_of(block);
        for array in &mut others {
            **array = staged.split_to(array.len());
        }
        staged_bytes
    }

    fn finish_copies(&mut self) {
        while let Some(mut first) = self.under_way.pop_front() {
            match first.copies.are_done(&first.slot.copied) {
                Ok(true) => self.finish(first),
                Ok(false) => return self.under_way.push_front(first),
                Err(error) => {
                    // The bytes that the device may still be reading are kept, and the slot is never reused.
                    self.ring.forget(first.slot);
                    self.fail(first.job, &error);
                }
            }
        }
    }

    fn finish(&mut self, done: UnderWay) {
        let UnderWay { job, slot, places, begun, staged_bytes, .. } = done;
        let copying = match slot.copied.since(&slot.begun) {
            Ok(copying) => copying,
            Err(error) => {
                self.ring.forget(slot);
                return self.fail(job, &error);
            }
        };
        self.figures.count(CopiedBatch {
            bytes: places.iter().map(|place| place.len).sum(),
            staged_bytes,
            slot_wait: Duration::from_nanos(begun - job.arrived),
            under_way: Duration::from_nanos(self.clock.now() - begun),
            copying,
        });
        self.figures.set_slots(self.ring.made());
        job.answer_with(&places, &Lease::new(slot, self.home.clone()));
    }

    /// Fails a batch that cannot be copied. If the device is lost, all other batches fail for the same reason.
    fn fail(&mut self, job: CopyJob, error: &DriverError) {
        let device = self.device();
        let is_lost = !error.is_out_of_memory() && self.stream.check().is_err();
        let remedy = match (error.is_out_of_memory(), is_lost) {
            (true, _) => "; use smaller batches, or leave more of the device's memory free",
            (false, true) => "; the device is lost to this process, so start it again",
            (false, false) => "",
        };
        let message = format!("cannot copy the batch to `{device}`: {error}{remedy}");
        let fault = Fault::new(FailureClass::Bug, message);
        if is_lost {
            tracing::error!(device, %error, "the device is lost");
            for other in self.under_way.drain(..) {
                self.ring.forget(other.slot);
                other.job.answer(Err(fault.clone()));
            }
            self.lost = Some(fault.clone());
        }
        job.answer(Err(fault));
    }

    fn device(&self) -> String {
        format!("cuda:{}", self.stream.context().number)
    }

    /// Waits for the device for up to [`GRACE`], and frees everything that it no longer uses.
    fn close(mut self, messages: &Receiver<CopierMessage>) {
        let end = self.clock.now().after(GRACE);
        self.waiting.clear();
        loop {
            self.finish_copies();
            for message in messages.try_iter() {
                self.receive(message);
            }
            self.waiting.clear();
            let is_empty = self.ring.empty();
            if is_empty && self.under_way.is_empty() {
                return;
            }
            if self.clock.now() >= end {
                break;
            }
            std::thread::sleep(LOOK);
        }
        tracing::warn!(
            "the device did not finish its work in time; its memory is freed only when the process ends"
        );
        self.ring.abandon();
        self.under_way.drain(..).for_each(|left| std::mem::forget(left.slot));
    }
}

impl CopyJob {
    fn answer(self, answer: Result<Collated, Fault>) {
        // If the receiver was dropped, the batch is dropped, too; its device arrays return their slot.
        drop(self.reply.send(answer));
    }

    fn answer_with(self, places: &[ArrayPlace], lease: &Arc<Lease>) {
        let Self { mut batch, reply, .. } = self;
        for place in places {
            let values = &mut batch.fields[place.column].values;
            if let Stacked::Tensor(tensor) = values {
                let shape = std::mem::take(&mut tensor.shape);
                let memory = Arc::new(DeviceBuffer::of(lease.clone(), place.at, place.len));
                *values = Stacked::Device(DeviceTensor { dtype: tensor.dtype, shape, memory });
            }
        }
        drop(reply.send(Ok(batch)));
    }
}

/// Positions of a batch's arrays in a slot, and the number of bytes that the arrays need together.
fn places(batch: &Collated) -> (Vec<ArrayPlace>, usize) {
    let mut room: usize = 0;
    let mut places = Vec::new();
    for (column, field) in batch.fields.iter().enumerate() {
        if let Stacked::Tensor(tensor) = &field.values {
            let (at, len) = (room, tensor.data.len());
            places.push(ArrayPlace { column, at, len });
            room = (at + len).next_multiple_of(ALIGNMENT);
        }
    }
    // Even an array without elements needs an address, so a slot is never empty.
    (places, room.max(ALIGNMENT))
}
