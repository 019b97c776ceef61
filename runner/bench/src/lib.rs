//! Storage benchmark: measures the rate that a folder or a bucket can deliver, at every level from single reads to whole passes,
//! and checks every measurement against a ledger.
//!
//! A [`Subject`] (objects or samples, the orders in which passes read them, and the stages after the reads) and a [`BenchSpec`]
//! become a [`BenchReport`] by [`Benchmark::run`]. Workers read batches as the workers of a data loader do; every event is recorded, and
//! figures and [`LoadBooks`](report::LoadBooks) are computed from the records. An identity of the ledger that does not hold makes
//! the figures void, and the report names it.

mod accelerator;
mod benchmark;
pub mod books;
mod calls;
mod ceiling;
pub mod compare;
mod counterfactual;
mod failures;
mod figures;
mod findings;
mod gauge;
mod load;
pub mod record;
pub mod report;
mod samples;
mod spec;
mod subject;
mod window;
mod worker;

pub use accelerator::{Preset, preset, presets};
pub use benchmark::{BenchStep, Benchmark, Follow, MakeSource};
pub use gauge::Gauged;
pub use penstock_types::config::BenchStoreKind;
pub use report::BenchReport;
pub use samples::visits;
pub use spec::{
    AcceleratorSpec, Assignment, BenchAction, BenchSpec, DataSource, LoadMode, MAX_IN_FLIGHT, MAX_READS,
    MAX_WORKERS, MemorySource, OnReadError, PageCache, RandomToDevice, RepeatedAction, WarmUp, WarmUpKind,
    WholeSet,
};
pub use subject::{StageOp, Subject, SubjectError, Takes};
pub use worker::Cancel;

pub fn schema() -> schemars::Schema {
    schemars::schema_for!(BenchSpec)
}
