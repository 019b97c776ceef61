//! The runs of a server: admission to a budget, the thread that owns them, their live events, and the history of runs,
//! modules and benchmarks.
//!
//! One thread owns all runs. [`Runs`] is a handle to it: calls send messages, read a view that the owner publishes, and read the
//! history directly. No call blocks an I/O thread. Only the drop of the last handle blocks: it waits as [`Runs::shutdown`] does.

mod admission;
mod audit;
mod benching;
mod benchmarks;
mod catalogue;
mod error;
mod fair;
mod feed;
mod figures;
mod history;
mod letters;
mod live;
mod owner;
mod predicting;
mod priority;
mod private;
mod profiles;
mod profiling;
mod queries;
mod runs;
mod settings;
mod sharing;
mod submit;
mod trying;
mod upload;
mod wire;
mod work;
mod workshop;

pub use admission::Budget;
pub use benching::{BenchmarkProgress, BenchmarkState, PackReport, StartBenchmark};
pub use benchmarks::{MAX_BENCHMARK_BYTES, MAX_BENCHMARKS};
pub use error::{OpenError, RunsError};
pub use fair::ClientId;
pub use feed::{Event, Events, MAX_EVENT_BYTES, RunGap, RunLog, SerializedEvent, parse_event_id};
pub use history::HistoryError;
pub use owner::Shutdown;
pub use predicting::{PredictRequest, PredictSweep, Predicted};
pub use runs::{ANYONE, OPERATOR, Runs};
pub use settings::RunsSettings;
pub use sharing::{HeldAmount, SharedAmount};
pub use upload::Draft;
pub use wire::*;
