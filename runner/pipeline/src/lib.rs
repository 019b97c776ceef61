//! Runs pipelines: checks documents against stores and modules, assembles graphs, and writes the output of runs.
//!
//! The only crate that combines the engine, the sandbox, the stores and the devices; it does not depend on a server.

mod assemble;
pub mod compare;
mod data;
mod dead_letter;
mod devices;
mod files;
mod found;
pub mod headspace;
mod machine;
pub mod memory;
mod modules;
mod output;
mod param_patterns;
mod params;
pub mod predict;
mod prepare;
pub mod profile;
mod replay;
mod resume;
mod room;
mod run;
mod runner;
mod sources;
mod spatial;
mod std_modules;
mod stores;
mod tap;
pub mod trial;
mod tried;
pub mod tune;

pub use assemble::AssembleError;
pub use files::{DocumentChange, FilesError};
pub use modules::Modules;
pub use output::{OutputError, OutputFolder, letters_left_out};
pub use penstock_wasm::{LogLevel, ModuleReport};
pub use prepare::{Context, NamedModules, Outlets, Prepared, prepare};
pub use replay::{
    Letters, MAX_LETTER_BYTES, ReplayFault, ReplayReport, StageLetters, StageReplay, Unreadable,
    UnreadableLetter,
};
pub use resume::StateFile;
pub use room::DiskRoom;
pub use run::{Ended, Run, RunFacts};
pub use runner::{ReadyRun, RunEnds, Runner, StartError, cores, shape_of};
pub use std_modules::{STD_VERSION, StdModule};
pub use stores::{StoreFault, Stores, WrittenFault};
pub use tried::TriedSource;
