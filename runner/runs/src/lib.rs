//! Turns checked pipelines into runs: the only crate that knows the engine, the sandbox and the stores at once.
#![warn(missing_docs)]

mod assemble;
mod dead_letter;
mod files;
mod modules;
mod output;
mod params;
mod replay;
mod run;
mod runner;
mod stores;
pub mod trial;

pub use assemble::AssembleError;
pub use files::{Difference, FilesError};
pub use modules::Modules;
pub use output::{OutputError, OutputFolder};
pub use replay::{
    Letters, MAX_LETTER_BYTES, ReplayFault, ReplayReport, StageLetters, StageReplay, Unreadable,
    UnreadableLetter,
};
pub use run::{Ended, Run};
pub use runner::{Runner, StartError};
pub use stores::{StoreFault, Stores};
