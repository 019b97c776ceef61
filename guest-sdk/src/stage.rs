//! What a stage can be besides a function: one that makes something ready first, one that sees whole batches, or one
//! with memory.

use crate::error::Result;
use crate::item::{Item, Outcome};
use crate::json::Json;
use crate::params::Params;

/// A stage that is called with one sample at a time, like a function, and is made once for every instance: for
/// parameters that may contradict each other, and for tables and buffers that take time to make.
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
    /// Its parameters; `()` for none.
    type Params: Params;

    /// Called once for every instance. An error says that the parameters or the assets are wrong, and ends the run.
    fn new(params: &Self::Params) -> Result<Self>;

    /// What becomes of the item; an error blames the item. It must not depend on the items before: they differ with the
    /// number of threads.
    fn process(&mut self, item: Item) -> Result<Outcome>;
}

/// A stage that is called with all samples of one batch, for work across samples such as mixup.
///
/// ```
/// use penstock_guest::prelude::*;
///
/// /// Says how many samples share the batch.
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
    /// Its parameters; `()` for none.
    type Params: Params;

    /// Called once for every instance. An error says that the parameters or the assets are wrong, and ends the run.
    fn new(params: &Self::Params) -> Result<Self>;

    /// One outcome per item, in order. A panic costs the whole batch.
    fn process(&mut self, items: Vec<Item>) -> Vec<Outcome>;
}

/// A stage with memory across samples, such as packing sequences. The runner makes one instance, calls it with one
/// sample at a time, and asks for what is held back at the end of every epoch.
///
/// ```
/// use penstock_guest::prelude::*;
///
/// /// Gives every sample to the one after it.
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
    /// Its parameters; `()` for none.
    type Params: Params;

    /// Called once. An error says that the parameters or the assets are wrong, and ends the run.
    fn new(params: &Self::Params) -> Result<Self>;

    /// What becomes of the item; [`Outcome::Held`] keeps it inside. An error blames the item.
    fn process(&mut self, item: Item) -> Result<Outcome>;

    /// What is still inside, at the end of an epoch. Nothing may stay behind: epochs never mix.
    fn finish(&mut self) -> Vec<Item>;
}

/// What every stage comes down to; written by the `stage` attribute.
pub trait Stage: Sized + 'static {
    /// The manifest of its module, as JSON.
    const MANIFEST: Json;

    /// An instance for these parameters.
    fn init(params: &str) -> Result<Self, String>;

    /// One outcome per item, in order.
    fn process(&mut self, items: Vec<Item>) -> Vec<Outcome>;

    /// What is held back, at the end of an epoch.
    fn finish(&mut self) -> Vec<Item> {
        Vec::new()
    }
}
