//! Ops that need no module: stacking batches, transferring them to the host, and sleeping.

mod collate;
mod random;
mod sleep;

use futures::FutureExt;
use futures::future::BoxFuture;

pub use self::collate::{Collate, Usual};
pub(crate) use self::random::Random;
pub(crate) use self::sleep::origin;
pub use self::sleep::{SleepTask, SleepTimes};
use crate::item::Item;
use crate::ports::{Output, TaskOp};

/// Transfer stage for the host as its device. Batches are in host memory already, so nothing is copied and the op never waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostTransfer;

impl TaskOp for HostTransfer {
    fn start(&self, item: Item) -> BoxFuture<'static, Output> {
        futures::future::ready(Output::one(item)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::executor::block_on;

    use super::*;
    use crate::item::{Origin, Sample, Value};
    use crate::ports::Items;

    #[test]
    fn a_transfer_to_the_host_does_not_copy() {
        let bytes = Bytes::from(vec![1, 2, 3]);
        let mut sample = Sample::new("a", Origin::default());
        sample.set("blob", Value::Blob(bytes.clone()));
        let output = block_on(HostTransfer.start(Item::Batch(vec![sample])));
        let Items::One(Item::Batch(samples)) = output.items else { panic!("{output:?}") };
        let Some(Value::Blob(moved)) = samples[0].field("blob") else { panic!("{samples:?}") };
        assert_eq!(moved.as_ptr(), bytes.as_ptr());
    }
}
