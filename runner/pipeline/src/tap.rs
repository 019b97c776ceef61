use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::graph::StageOp;
use penstock_engine::item::Item;
use penstock_engine::lock::locked;
use penstock_engine::ports::{Fault, Items, Output, StopFlag, TaskOp, TaskSlot, ThreadOp, ThreadOpFactory};
use penstock_types::profile::ProfileInputs;

/// Inputs of the op of one stage: recorded while a pipeline runs, or given in place of those that come.
#[derive(Debug)]
pub(crate) struct Tap {
    role: Role,
    bytes_out: AtomicU64,
    samples_in: AtomicU64,
}

#[derive(Debug)]
enum Role {
    /// Records the first inputs, up to this number of bytes.
    Records(u64, Mutex<Recorded>),
    /// Gives these inputs in turn, again and again.
    Gives(Arc<Vec<Item>>, AtomicU64),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) items: Vec<Item>,
    pub(crate) inputs: ProfileInputs,
}

impl Tap {
    /// A tap that records the first inputs, up to `most` bytes.
    pub(crate) fn recording(most: u64) -> Self {
        Self::new(Role::Records(most, Mutex::default()))
    }

    /// A tap that gives these inputs, of which there is one at least.
    pub(crate) fn giving(items: Arc<Vec<Item>>) -> Self {
        assert!(!items.is_empty(), "a stage without inputs is not measured");
        Self::new(Role::Gives(items, AtomicU64::new(0)))
    }

    fn new(role: Role) -> Self {
        Self { role, samples_in: AtomicU64::new(0), bytes_out: AtomicU64::new(0) }
    }

    /// Takes the recorded inputs out of the tap.
    pub(crate) fn recorded(&self) -> Recorded {
        match &self.role {
            Role::Records(_, recorded) => std::mem::take(&mut locked(recorded)),
            Role::Gives(..) => Recorded::default(),
        }
    }

    /// Bytes of the values that a sample leaves the op as, on average over ops without failures; 0 if there were none.
    pub(crate) fn bytes_out(&self) -> f64 {
        let samples = self.samples_in.load(Ordering::Relaxed).max(1);
        self.bytes_out.load(Ordering::Relaxed) as f64 / samples as f64
    }

    fn before(&self, item: Item) -> Item {
        match &self.role {
            Role::Records(most, recorded) => {
                locked(recorded).add(&item, *most);
                item
            }
            Role::Gives(items, next) => {
                let place = next.fetch_add(1, Ordering::Relaxed) % items.len() as u64;
                items[place as usize].clone()
            }
        }
    }

    fn after(&self, samples: u64, output: &Output) {
        // The end of a run interrupts ops, which then return nothing.
        let is_empty = matches!(output.items, Items::None) && output.dropped == 0 && output.held == 0;
        if is_empty || !output.failed.is_empty() {
            return;
        }
        let bytes = match &output.items {
            Items::None => 0,
            Items::One(item) => item.value_bytes(),
            Items::Many(items) => items.iter().map(Item::value_bytes).sum(),
        };
        self.samples_in.fetch_add(samples, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The op with this tap at its input.
    pub(crate) fn on(self: Arc<Self>, op: StageOp) -> StageOp {
        let tap = self;
        match op {
            StageOp::Tasks { op, concurrency, order } => {
                StageOp::Tasks { op: Arc::new(Tapped { op, tap }), concurrency, order }
            }
            StageOp::Threads { factory, concurrency, order, stateful } => {
                let factory = Arc::new(Tapped { op: factory, tap });
                StageOp::Threads { factory, concurrency, order, stateful }
            }
        }
    }
}

impl Recorded {
    fn add(&mut self, item: &Item, most: u64) {
        let inputs = &mut self.inputs;
        let bytes = inputs.bytes.saturating_add(item.memory_bytes());
        // The first item is kept whatever its size: without it, the stage could not be measured.
        inputs.is_full |= bytes > most && !self.items.is_empty();
        if !inputs.is_full {
            inputs.items += 1;
            inputs.samples += item.samples();
            inputs.bytes = bytes;
            self.items.push(item.clone());
        }
    }
}

/// An op, or a factory of ops, with a tap.
struct Tapped<Op> {
    op: Op,
    tap: Arc<Tap>,
}

impl TaskOp for Tapped<Arc<dyn TaskOp>> {
    fn start(&self, item: Item) -> BoxFuture<'static, Output> {
        self.start_in(item, TaskSlot::default())
    }

    fn start_in(&self, item: Item, slot: TaskSlot) -> BoxFuture<'static, Output> {
        let (item, tap) = (self.tap.before(item), self.tap.clone());
        let samples = item.samples();
        let output = self.op.start_in(item, slot);
        output.inspect(move |output| tap.after(samples, output)).boxed()
    }
}

impl ThreadOpFactory for Tapped<Arc<dyn ThreadOpFactory>> {
    fn build(&self, stop: &StopFlag) -> Result<Box<dyn ThreadOp>, Fault> {
        let op = self.op.build(stop)?;
        Ok(Box::new(Tapped { op, tap: self.tap.clone() }))
    }

    fn saves(&self) -> bool {
        self.op.saves()
    }
}

impl ThreadOp for Tapped<Box<dyn ThreadOp>> {
    fn apply(&mut self, item: Item, stop: &StopFlag) -> Output {
        let item = self.tap.before(item);
        let samples = item.samples();
        let output = self.op.apply(item, stop);
        self.tap.after(samples, &output);
        output
    }

    fn finish(&mut self, stop: &StopFlag) -> Output {
        let output = self.op.finish(stop);
        self.tap.after(0, &output);
        output
    }
}
