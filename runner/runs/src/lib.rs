//! Turns checked pipelines into runs: the only crate that knows the engine, the sandbox and the stores at once.
#![warn(missing_docs)]

mod assemble;
pub mod compare;
mod dead_letter;
mod devices;
mod files;
pub mod headspace;
mod history;
mod machine;
mod modules;
mod output;
mod params;
pub mod predict;
mod registry;
mod replay;
mod run;
mod runner;
mod stores;
pub mod stream;
pub mod trial;

pub use assemble::AssembleError;
pub use files::{Difference, FilesError};
pub use history::benchmarks::{MAX_BENCHMARK_BYTES, MAX_BENCHMARKS};
pub use history::{HistoryError, HistoryOpenError};
pub use modules::Modules;
pub use output::{OutputError, OutputFolder};
pub use penstock_wasm::{LogLevel, ModuleReport};
pub use registry::{
    BenchmarkQuery, Budget, BudgetUse, Counts, DeadLetters, Draft, ErrorQuery, Event, Events, KeptBenchmark,
    LiveCounts, LogEntry, LogQuery, MAX_KEYS, MAX_LIMIT, MAX_POINTS, ModuleDetail, ModuleFile, ModuleQuery,
    ModuleSummary, ModuleUpload, ModuleVersion, OpenError, Page, PredictRequest, PredictSweep, Predicted,
    PushedBenchmark, RunColumn, RunGap, RunLog, RunQuery, RunSort, RunSpec, Runs, RunsError, RunsSettings,
    SeriesQuery, Shutdown, StageDeadLetters, StorageUse, StoreKeys, StoreKind, StoreSummary, Submission,
    Submitted, TryFrom, TryRequest, TrySample, ValidQueue, ValidStage, Validation, WindowQuery,
    parse_event_id,
};
pub use replay::{
    Letters, MAX_LETTER_BYTES, ReplayFault, ReplayReport, StageLetters, StageReplay, Unreadable,
    UnreadableLetter,
};
pub use run::{Ended, Run};
pub use runner::{Computing, Runner, StartError};
pub use stores::{StoreFault, Stores, WrittenFault};
pub use stream::StreamAddress;
