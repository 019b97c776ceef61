//! Storage benchmark: measures what a folder or a bucket can feed, level by level, with books that balance.
//!
//! A [`Subject`] (objects, the orders in which they are read, the stages they pass) and a [`BenchSpec`] become a [`BenchReport`]
//! by [`Benchmark::run`]. Workers read batches as the workers of a data loader do; every event is recorded, and figures and
//! [`LoadBooks`](report::LoadBooks) are computed from the records. A violated identity makes the figures void and is named in the
//! books.

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
mod spec;
mod subject;
mod window;
mod worker;

pub use accelerator::{Preset, preset, presets};
pub use benchmark::{BenchStep, Benchmark, Follow, MakeSource};
pub use gauge::Gauged;
pub use report::BenchReport;
pub use spec::{
    AcceleratorSpec, Assignment, BenchAction, BenchSpec, DataSource, LoadMode, MAX_IN_FLIGHT, MAX_READS,
    MAX_WORKERS, MemorySource, OnReadError, PageCache, RandomToDevice, RepeatedAction, WarmUp, WarmUpKind,
    WholeSet,
};
pub use subject::{BenchStoreKind, StageOp, Subject, SubjectError, Takes};
pub use worker::Cancel;

pub fn schema() -> schemars::Schema {
    schemars::schema_for!(BenchSpec)
}
