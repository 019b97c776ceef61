//! Repetitions of a load with one of its parts replaced by a substitute that takes almost no time: the gain is the cost of the
//! replaced part.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_engine::item::Item;
use penstock_engine::lock::locked;
use penstock_engine::ports::{Fault, Items, Output, StopFlag, ThreadOp, ThreadOpFactory};
use penstock_types::stats::Tick;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::accelerator::{AcceleratorReport, Fleet};
use crate::load::{BenchError, Surroundings};
use crate::record::{Load, LoadTimes};
use crate::spec::WarmUp;
use crate::subject::{StageOp, Subject};

/// Number of passes of each variant; the result is the median pass.
const PASSES: u32 = 3;
/// Maximum total size of the objects that are held in memory in place of storage. If the set is larger, only its first objects
/// are held, and they are read repeatedly.
const HELD_BYTES: u64 = 1 << 30;

/// Result of a load with one part replaced by a substitute that takes almost no time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Counterfactual {
    /// Replaced part: `nothing`, `storage`, `stage:` and its name, `stages`, or `consumer`.
    pub without: String,
    /// Substitute for the part, in words.
    pub instead: String,
    /// Items per second; the median of three passes.
    pub items_per_s: f64,
    /// Relative gain in rate over the unchanged load, e.g. 0.5 if it is 50 % faster; 0 for the unchanged load itself.
    pub gain: f64,
    /// Cost of the part, in seconds: the time that a pass over all objects saves without the part; 0 for the unchanged load.
    pub costs_s: f64,
}

struct Variant {
    without: String,
    instead: &'static str,
    subject: Subject,
    /// Accelerators that take the batches; `None` discards batches at once.
    accelerators: Option<Accelerators>,
}

#[derive(Clone, Copy)]
struct Accelerators {
    number: u32,
    step: Duration,
}

/// Runs a load unchanged, and without each of its parts. The batches go to as many accelerators as the load can feed, so that
/// the accelerators hardly slow down the load.
pub(crate) fn counterfactuals(
    surroundings: &Surroundings,
    subject: &Subject,
    load: &Load,
    accelerators: Option<&AcceleratorReport>,
    on_start: &mut dyn FnMut(&str),
) -> Result<Vec<Counterfactual>, BenchError> {
    let fed = accelerators.map(|found| Accelerators {
        number: found.supported.max(1),
        step: Duration::from_secs_f64(found.step_s),
    });
    let batch_size = accelerators.map_or(load.batch_size, |found| found.batch_size);
    let load = &Load { batch_size, ..load.clone() };
    let variants = variants(surroundings, subject, fed)?;
    let mut told: Vec<Counterfactual> = Vec::with_capacity(variants.len());
    let items = subject.order(0).len() as f64;
    for variant in variants {
        on_start(&variant.without);
        let rate = rate(surroundings, &variant, load)?;
        let real = told.first().map_or(rate, |real| real.items_per_s);
        told.push(Counterfactual {
            without: variant.without,
            instead: variant.instead.to_owned(),
            items_per_s: rate,
            gain: rate / real - 1.0,
            costs_s: items / real - items / rate,
        });
    }
    Ok(told)
}

fn variants(
    surroundings: &Surroundings,
    subject: &Subject,
    accelerators: Option<Accelerators>,
) -> Result<Vec<Variant>, BenchError> {
    let variant = |without: &str, instead, subject: Subject| Variant {
        without: without.to_owned(),
        instead,
        subject,
        accelerators,
    };
    let mut variants = vec![
        variant("nothing", "the unchanged load", subject.clone()),
        variant("storage", "the same bytes in memory", subject.in_memory(surroundings, HELD_BYTES)?),
    ];
    for (place, stage) in subject.stages.iter().enumerate() {
        let mut without = subject.clone();
        without.stages[place] = ready(stage);
        variants.push(variant(&format!("stage:{}", stage.name), "its first result, repeated", without));
    }
    if subject.stages.len() > 1 {
        let without = Subject { stages: Vec::new(), ..subject.clone() };
        variants.push(variant("stages", "nothing", without));
    }
    if accelerators.is_some() {
        let without = variant("consumer", "discarding at once", subject.clone());
        variants.push(Variant { accelerators: None, ..without });
    }
    Ok(variants)
}

/// Returns the items per second of the median pass.
fn rate(surroundings: &Surroundings, variant: &Variant, load: &Load) -> Result<f64, BenchError> {
    let mut fleet = variant.accelerators.map(|fed| Fleet::new(fed.number, fed.step, load.batch_size));
    let times = LoadTimes { warm_up: WarmUp::default(), passes: PASSES };
    let mut consume = |ready: Tick, samples: usize| {
        if let Some(fleet) = &mut fleet {
            surroundings.wait_until(fleet.take(ready, samples));
        }
        !surroundings.cancel.is_cancelled()
    };
    let ended = surroundings.run(&variant.subject, load, &times, &mut consume);
    ended.how?;
    let passes = ended.record.passes.iter();
    let mut rates: Vec<f64> =
        passes.map(|pass| pass.order.len() as f64 / pass.span.seconds().max(1e-9)).collect();
    rates.sort_by(f64::total_cmp);
    Ok(rates[rates.len() / 2])
}

/// Creates a stage that computes only its first result, and returns a copy of this result for every later call.
fn ready(stage: &StageOp) -> StageOp {
    let factory = ReadyFactory { factory: stage.factory.clone(), kept: Arc::default() };
    StageOp { factory: Arc::new(factory), ..stage.clone() }
}

type Kept = Arc<Mutex<Option<Vec<Item>>>>;

struct ReadyFactory {
    factory: Arc<dyn ThreadOpFactory>,
    kept: Kept,
}

struct Ready {
    op: Box<dyn ThreadOp>,
    kept: Kept,
    /// Copy of the result for this worker, so that workers do not wait for each other.
    own: Option<Vec<Item>>,
}

impl ThreadOpFactory for ReadyFactory {
    fn build(&self, stop: &StopFlag) -> Result<Box<dyn ThreadOp>, Fault> {
        Ok(Box::new(Ready { op: self.factory.build(stop)?, kept: self.kept.clone(), own: None }))
    }
}

impl ThreadOp for Ready {
    fn apply(&mut self, item: Item, stop: &StopFlag) -> Output {
        if self.own.is_none() {
            self.own = locked(&self.kept).clone();
        }
        if let Some(items) = &self.own {
            return Output { items: Items::Many(items.clone()), ..Output::default() };
        }
        let output = self.op.apply(item, stop);
        let made = match &output.items {
            Items::None => return output,
            Items::One(item) => vec![item.clone()],
            Items::Many(items) => items.clone(),
        };
        *locked(&self.kept) = Some(made);
        output
    }
}
