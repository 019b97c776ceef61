//! Helpers that create numbered batches, send them through a transfer and check them.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::executor::block_on_stream;
use futures::stream::iter;
use penstock_device::{CudaTransfer, DeviceBuffer, Gpu, GpuError, PinnedMemory};
use penstock_engine::item::{Collated, Dtype, Item, Origin, Sample, Stacked, Tensor, Value};
use penstock_engine::memory::{BatchMemory, Pool};
use penstock_engine::ops::{Collate, Usual};
use penstock_engine::ports::{Fault, Items, Output, StopFlag, TaskOp, ThreadOp, ThreadOpFactory};
use penstock_types::plan::CollatePlan;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry;

use crate::fake::bytes;

/// An open device, and a transfer of batches to this device.
pub(crate) struct Work {
    pub(crate) transfer: CudaTransfer,
    collate: Box<dyn ThreadOp>,
}

/// Settings of the transfer.
pub(crate) struct Wanted {
    pub(crate) cap_bytes: usize,
    pub(crate) most_slots: usize,
    /// Stacks batches in pinned memory.
    pub(crate) is_pinned: bool,
}

pub(crate) const MIB: usize = 1 << 20;

/// Number of samples in a batch.
pub(crate) const SAMPLES: u64 = 2;

impl Default for Wanted {
    fn default() -> Self {
        Self { cap_bytes: 64 * MIB, most_slots: 4, is_pinned: true }
    }
}

impl Work {
    pub(crate) fn start(gpu: &Gpu, wanted: &Wanted) -> Result<Self, GpuError> {
        let memory = Pool::new(PinnedMemory::new(gpu, wanted.cap_bytes));
        let transfer = CudaTransfer::start(gpu, &memory, wanted.most_slots)?;
        let shared: Option<Arc<dyn BatchMemory>> =
            if wanted.is_pinned { Some(Arc::new(memory)) } else { None };
        let collate = Collate::new(CollatePlan::default(), Usual::default(), shared)
            .build(&StopFlag::default())
            .unwrap();
        Ok(Self { transfer, collate })
    }

    /// A collated batch of images with `image_bytes` bytes each, plus labels and captions. The fill value of each image is
    /// derived from its index.
    pub(crate) fn batch(&mut self, number: u64, image_bytes: usize) -> Item {
        let samples = (0..SAMPLES).map(|place| sample(number * SAMPLES + place, image_bytes)).collect();
        let Items::One(item) = self.collate.apply(Item::Batch(samples), &StopFlag::default()).items else {
            panic!("equal samples can be stacked")
        };
        item
    }

    /// Sends batches through the transfer, `at_a_time` at a time, and returns the results in order.
    pub(crate) fn send(
        &mut self,
        numbers: std::ops::Range<u64>,
        image_bytes: usize,
        at_a_time: usize,
    ) -> impl Iterator<Item = Result<Collated, Fault>> {
        let sent = numbers.map(move |number| {
            let batch = self.batch(number, image_bytes);
            self.transfer.start(batch)
        });
        block_on_stream(iter(sent).buffered(at_a_time)).map(outcome)
    }

    /// Sends one batch through the transfer.
    pub(crate) fn send_one(&mut self, number: u64, image_bytes: usize) -> Result<Collated, Fault> {
        self.send(number..number + 1, image_bytes, 1).next().unwrap()
    }
}

/// The resulting batch, or the fault with which all its samples failed.
pub(crate) fn outcome(output: Output) -> Result<Collated, Fault> {
    match output.items {
        Items::One(Item::Collated(batch)) => {
            assert!(output.failed.is_empty());
            Ok(batch)
        }
        Items::None => {
            assert_eq!(output.failed.len() as u64, SAMPLES, "a batch fails as a whole");
            let fault = output.failed[0].fault.clone();
            assert!(output.failed.iter().all(|failed| failed.fault == fault));
            Err(fault)
        }
        other => panic!("{other:?}"),
    }
}

/// Device buffer of a column.
pub(crate) fn buffer(batch: &Collated, column: usize) -> &DeviceBuffer {
    let Stacked::Device(tensor) = &batch.fields[column].values else { panic!("{:?}", batch.fields[column]) };
    (&*tensor.memory as &dyn Any).downcast_ref().unwrap()
}

/// Sum of all bytes of the images of the batch `number`.
pub(crate) fn sum(number: u64, image_bytes: usize) -> u64 {
    (0..SAMPLES).map(|place| u64::from(fill(number * SAMPLES + place))).sum::<u64>() * image_bytes as u64
}

/// Checks that the batch is complete and correct.
pub(crate) fn assert_whole(batch: &Collated, number: u64, image_bytes: usize) {
    let indices = [number * SAMPLES, number * SAMPLES + 1];
    let images: Vec<u8> = indices.iter().flat_map(|index| vec![fill(*index); image_bytes]).collect();
    let labels: Vec<u8> = indices.iter().flat_map(|index| (*index as i64).to_le_bytes()).collect();
    assert!(bytes(buffer(batch, 0)) == images, "the images of batch {number} differ");
    assert_eq!(bytes(buffer(batch, 1)), labels);
    assert_eq!(
        batch.fields[2].values,
        Stacked::Texts(indices.iter().map(|index| format!("no {index}")).collect())
    );
    assert_eq!(batch.origins.iter().map(|origin| origin.index).collect::<Vec<_>>(), indices);
}

/// Counts the warnings of this process.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<AtomicUsize>);

impl Warnings {
    pub(crate) fn listen() -> Self {
        let warnings = Self::default();
        tracing::subscriber::set_global_default(registry().with(warnings.clone())).unwrap();
        warnings
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == Level::WARN {
            self.0.fetch_add(1, Ordering::Release);
        }
    }
}

/// Waits up to two seconds until another thread has made `holds` true.
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("timeout after two seconds, waiting until {what}");
}

fn sample(index: u64, image_bytes: usize) -> Sample {
    let mut sample = Sample::new(format!("{index}.jpg"), Origin::at(0, index));
    let data = vec![fill(index); image_bytes].into();
    let image = Tensor { dtype: Dtype::Uint8, shape: vec![image_bytes as u32], data };
    sample.set("image", Value::Tensor(image));
    sample.set("label", Value::Int(index as i64));
    sample.set("caption", Value::Text(format!("no {index}")));
    sample
}

/// Fill value of a sample: never 0, and different for samples of consecutive batches.
fn fill(index: u64) -> u8 {
    (index % 251) as u8 + 1
}
