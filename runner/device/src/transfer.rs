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

/// Brings collated batches into the memory of a GPU; their texts and blobs stay where they are, as do items that are not
/// collated. A batch is passed on when it has arrived, as columns whose memory is a [`crate::DeviceBuffer`].
///
/// All copies are made by one thread on one stream of the device. It waits for nothing but its messages: an item's task waits
/// for its answer, and no thread of the run waits for the device.
pub struct CudaTransfer {
    inbox: Sender<CopierMessage>,
    thread: Option<JoinHandle<()>>,
    clock: Arc<MonotonicClock>,
    figures: Arc<TransferFigures>,
}

/// How many batches may lie on the device at a time, where nobody holds as many.
const MOST_SLOTS: usize = 16;

/// How many slots do for who holds up to `most_held` batches at a time: one more batch arrives, with which who holds too many can
/// be told so, and there is room for the next one.
pub fn slots_for(most_held: usize) -> usize {
    MOST_SLOTS.max(most_held.saturating_add(2))
}

impl CudaTransfer {
    /// A transfer to this GPU, of batches that lie in `memory` where they can. At most `most_slots` batches lie on the device at
    /// a time, in queues and in the hands of who reads them; the next one waits until one of them is let go.
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

    /// What it does, to be looked at while it is at work.
    pub fn figures(&self) -> Arc<TransferFigures> {
        self.figures.clone()
    }
}

impl TaskOp for CudaTransfer {
    fn start(&self, item: Item) -> BoxFuture<'static, Output> {
        let Item::Collated(batch) = item else { return ready(Output::one(item)).boxed() };
        let named = Collated { keys: batch.keys.clone(), origins: batch.origins.clone(), fields: Vec::new() };
        let (reply, answer) = oneshot::channel();
        // Not taken in, or dropped unanswered: the channel says so.
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
    /// Waits for the thread, which waits for the device no longer than a second.
    fn drop(&mut self) {
        drop(self.inbox.send(CopierMessage::Close));
        let Some(thread) = self.thread.take() else { return };
        // An answer may wake the last task that owns this; the thread that answers cannot wait for itself.
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
