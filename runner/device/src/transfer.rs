use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{BoxFuture, ready};
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::item::{Collated, Item};
use penstock_engine::memory::Pool;
use penstock_engine::ports::{Fault, Output, TaskOp};
use penstock_types::run::FailureClass;

use crate::copier::Copier;
use crate::error::GpuError;
use crate::figures::TransferFigures;
use crate::gpu::Gpu;
use crate::memory::PinnedMemory;
use crate::slot::{CopierMessage, CopyJob};

/// Copies collated batches into the memory of a GPU; texts, blobs and items that are not collated stay on the host. A batch is
/// passed on once it is copied, with [`crate::DeviceBuffer`]s as the memory of its arrays.
///
/// One thread makes all copies on one stream of the device. The task of an item waits asynchronously for its reply, so no
/// thread of the run waits for the device.
pub struct CudaTransfer {
    inbox: Sender<CopierMessage>,
    thread: Option<JoinHandle<()>>,
    clock: Arc<MonotonicClock>,
    figures: Arc<TransferFigures>,
}

/// Minimum number of slots, for any number of batches that the consumer may hold.
const MOST_SLOTS: usize = 16;

/// Number of slots for a consumer that holds up to `most_held` batches at a time. One extra slot lets the consumer receive the
/// batch that exceeds its limit, so that the consumer gets an error instead of waiting; another slot is for the next copy.
pub fn slots_for(most_held: usize) -> usize {
    MOST_SLOTS.max(most_held.saturating_add(2))
}

impl CudaTransfer {
    /// Starts a transfer to this GPU; batches are stacked in `memory` where possible. At most `most_slots` batches are on the
    /// device at the same time, including those in queues and those held by readers; the next batch waits until one of them is
    /// dropped.
    pub fn start(gpu: &Gpu, memory: &Pool<PinnedMemory>, most_slots: usize) -> Result<Self, GpuError> {
        let (inbox, messages) = channel();
        let clock = Arc::new(MonotonicClock::start());
        let figures = Arc::new(TransferFigures::of(format!("cuda:{}", gpu.number())));
        let copier = Copier::new(
            gpu.context(),
            memory.maker().clone(),
            most_slots,
            inbox.clone(),
            clock.clone(),
            figures.clone(),
        )?;
        let thread = Builder::new()
            .name(format!("copy to cuda:{}", gpu.number()))
            .spawn(move || copier.run(&messages))
            .map_err(|error| GpuError::Thread(error.to_string()))?;
        Ok(Self { inbox, thread: Some(thread), clock, figures })
    }

    /// Figures of the transfer, which are updated while it runs.
    pub fn figures(&self) -> Arc<TransferFigures> {
        self.figures.clone()
    }
}

impl TaskOp for CudaTransfer {
    fn start(&self, item: Item) -> BoxFuture<'static, Output> {
        let Item::Collated(batch) = item else { return ready(Output::one(item)).boxed() };
        let named = Collated { keys: batch.keys.clone(), origins: batch.origins.clone(), fields: Vec::new() };
        let (reply, answer) = oneshot::channel();
        // If the thread has ended, the message is dropped, which closes the reply channel.
        drop(self.inbox.send(CopierMessage::Copy(CopyJob { batch, reply, arrived: self.clock.now() })));
        async move {
            let gone = || Fault::new(FailureClass::Bug, "the thread that copies to the device has ended");
            match answer.await.unwrap_or_else(|_| Err(gone())) {
                Ok(batch) => Output::one(Item::Collated(batch)),
                Err(fault) => Output::all_failed(named.into_samples(), &fault),
            }
        }
        .boxed()
    }
}

impl Drop for CudaTransfer {
    /// Waits for the thread, which waits at most a second for the device.
    fn drop(&mut self) {
        drop(self.inbox.send(CopierMessage::Close));
        let Some(thread) = self.thread.take() else { return };
        // A reply may wake the last task that owns this transfer. Then this code runs on the copying thread, which cannot join
        // itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("the thread that copies to the device panicked");
        }
    }
}

impl fmt::Debug for CudaTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaTransfer").field("figures", &self.figures).finish_non_exhaustive()
    }
}
