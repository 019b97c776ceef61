use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Parser, Subcommand};

/// Runs data-loading pipelines for ML and tells what limits them.
///
/// Preprocessing stages are WebAssembly modules in a sandbox; every queue between stages is measured.
#[derive(Debug, Parser)]
#[command(name = "penstock", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Write logs as JSON lines.
    #[arg(long, global = true)]
    pub(crate) log_json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a pipeline and show what its stages and queues did.
    #[command(
        after_help = "Example:\n  penstock run photos.json --store photos=./photos --module decode-resize=decode_resize.wasm\n\n\
        Exit codes: 0 completed (skipped samples included), 1 failed, 2 bad input, 130 stopped by Ctrl-C."
    )]
    Run(RunArgs),
    /// Check a pipeline document without running it: all its faults at once.
    #[command(
        after_help = "Example:\n  penstock check photos.json --store photos=./photos --module decode-resize=decode_resize.wasm\n\n\
        Exit codes: 0 it can run, 2 it cannot."
    )]
    Check(CheckArgs),
    /// Print the JSON Schema of the pipeline document.
    #[command(after_help = "Example:\n  penstock schema > pipeline.schema.json")]
    Schema,
    /// Look at stage modules.
    #[command(subcommand)]
    Module(ModuleCommand),
    /// Compile the module that is asked for on standard input. Penstock starts itself with it.
    #[command(hide = true)]
    CompileModule,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModuleCommand {
    /// Tell what a module is, wants and takes, without running it.
    #[command(after_help = "Example:\n  penstock module inspect decode_resize.wasm")]
    Inspect(InspectArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// End after this long, e.g. `10s` or `2m`; the run ends as completed.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) time: Option<Duration>,
    /// Print the snapshot as JSON, alone, on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write spec.json, windows.ndjson, snapshot.json and errors.ndjson (and dead letters) into this new folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Show neither progress nor tables.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PipelineArgs {
    /// The pipeline document, a JSON file; `-` reads standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Let a store's name stand for a folder.
    #[arg(long = "store", value_name = "NAME=DIR")]
    pub(crate) stores: Vec<String>,
    /// Let a module's name stand for a WebAssembly file.
    #[arg(long = "module", value_name = "NAME=PATH")]
    pub(crate) modules: Vec<String>,
    /// Change the document before it is read, e.g. `/stages/1/wasm/concurrency=4`.
    #[arg(long = "set", value_name = "/POINTER=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Worker threads; wins over the document.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u32>,
    /// Where compiled modules are kept [default: ~/.cache/penstock].
    #[arg(long, value_name = "DIR", env = "PENSTOCK_CACHE_DIR", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) cache_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// A WebAssembly file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
