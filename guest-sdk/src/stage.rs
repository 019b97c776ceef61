//! Traits of stages that are not plain functions: stages that prepare data first, process whole batches, or keep state.

use crate::error::Result;
use crate::item::{Item, Outcome};
use crate::json::Json;
use crate::params::Params;

/// A stage that is called with one sample at a time, like a function, and is created once per instance. Suited to parameters
/// that may contradict each other, and to tables and buffers that take time to create.
///
/// ```
/// use penstock_guest::prelude::*;
///
/// #[derive(Params)]
/// struct Range {
///     least: i64,
///     most: i64,
/// }
///
/// /// Drops samples whose `count` is out of range.
/// struct Within(std::ops::RangeInclusive<i64>);
///
/// #[stage(wants("count"), makes("count"))]
/// impl SampleStage for Within {
///     type Params = Range;
///
///     fn new(range: &Range) -> Result<Self> {
///         ensure!(range.least <= range.most, "`least` is {}, more than `most`, {}", range.least, range.most);
///         Ok(Self(range.least..=range.most))
///     }
///
///     fn process(&mut self, item: Item) -> Result<Outcome> {
///         Ok(if self.0.contains(&item.int("count")?) { Outcome::Keep(item) } else { Outcome::Drop })
///     }
/// }
/// ```
pub trait SampleStage: Sized + 'static {
    /// Parameters of the stage; `()` for none.
    type Params: Params;

    /// Called once for every instance. An error reports invalid parameters or assets, and ends the run.
    fn new(params: &Self::Params) -> Result<Self>;

    /// Returns the outcome of the item; an error is a fault of the item. The outcome must not depend on earlier items, since
    /// their order varies with the number of threads.
    fn process(&mut self, item: Item) -> Result<Outcome>;
}

/// A stage that is called with all samples of one batch, for work across samples such as mixup.
///
/// ```
/// use penstock_guest::prelude::*;
///
/// /// Adds the number of other samples in the batch.
/// struct Neighbours;
///
/// #[stage(makes("neighbours"))]
/// impl BatchStage for Neighbours {
///     type Params = ();
///
///     fn new(_: &()) -> Result<Self> {
///         Ok(Self)
///     }
///
///     fn process(&mut self, items: Vec<Item>) -> Vec<Outcome> {
///         let others = items.len() as i64 - 1;
///         items.into_iter().map(|item| Outcome::Keep(item.with("neighbours", others))).collect()
///     }
/// }
/// ```
pub trait BatchStage: Sized + 'static {
    /// Parameters of the stage; `()` for none.
    type Params: Params;

    /// Called once for every instance. An error reports invalid parameters or assets, and ends the run.
    fn new(params: &Self::Params) -> Result<Self>;

    /// Returns one outcome per item, in order. A panic fails the whole batch.
    fn process(&mut self, items: Vec<Item>) -> Vec<Outcome>;
}

/// A stage with state across samples, such as packing sequences. The runner creates one instance, calls it with one sample at a
/// time, and at the end of every epoch takes the samples that it has held back.
///
/// ```
/// use penstock_guest::prelude::*;
///
/// /// Holds every sample back until the next one arrives.
/// struct Delay {
///     held: Option<Item>,
/// }
///
/// #[stage]
/// impl StatefulStage for Delay {
///     type Params = ();
///
///     fn new(_: &()) -> Result<Self> {
///         Ok(Self { held: None })
///     }
///
///     fn process(&mut self, item: Item) -> Result<Outcome> {
///         Ok(self.held.replace(item).map_or(Outcome::Held, Outcome::Keep))
///     }
///
///     fn finish(&mut self) -> Vec<Item> {
///         self.held.take().into_iter().collect()
///     }
/// }
/// ```
pub trait StatefulStage: Sized + 'static {
    /// Parameters of the stage; `()` for none.
    type Params: Params;

    /// Called once. An error reports invalid parameters or assets, and ends the run.
    fn new(params: &Self::Params) -> Result<Self>;

    /// Returns the outcome of the item; [`Outcome::Held`] holds it back. An error is a fault of the item.
    fn process(&mut self, item: Item) -> Result<Outcome>;

    /// Returns all samples still held, at the end of an epoch. The stage must keep none, since samples of different epochs never
    /// mix.
    fn finish(&mut self) -> Vec<Item>;

    /// Returns what the stage keeps between samples, at most 1 MiB, and no bytes if it is as new. With `save` and [`Self::load`], a run
    /// that is resumed goes on exactly where it was, and so does a stage that fails; without, samples that were held are processed again.
    ///
    /// Called after each call of [`Self::process`] that returned samples, and after [`Self::finish`]. From then on, held samples are part
    /// of the state: one that is returned later gets the fields that the stage does not want from the sample that is processed then.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Continues from a state that an instance with the same parameters has saved. Called once after [`Self::new`].
    fn load(&mut self, _saved: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Common interface of all stages; implemented by the `stage` attribute.
pub trait Stage: Sized + 'static {
    /// Manifest of the module, as JSON.
    const MANIFEST: Json;

    /// Creates an instance with these parameters.
    fn init(params: &str) -> Result<Self, String>;

    /// Returns one outcome per item, in order.
    fn process(&mut self, items: Vec<Item>) -> Vec<Outcome>;

    /// Returns the samples held back, at the end of an epoch.
    fn finish(&mut self) -> Vec<Item> {
        Vec::new()
    }

    /// Returns the state between samples.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Continues from a state.
    fn load(&mut self, _saved: &[u8]) -> Result<(), String> {
        Ok(())
    }
}
