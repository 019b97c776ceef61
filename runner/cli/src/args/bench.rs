//! Arguments of the storage benchmark.

use std::path::PathBuf;

use clap::Subcommand;

use super::{ModuleArgs, ServerArgs, StoreArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Read a folder or a bucket as a data loader does, and measure each level of the loader.
    ///
    /// Workers read batches: one item after another (sync), or several at a time (async). Every read is recorded and checked
    /// against the totals; figures whose ledger does not balance are marked void.
    #[command(after_help = "Examples:\n  penstock bench storage --store photos=./photos\n  \
        penstock bench storage --store photos=s3://bucket/train --suffix .jpg --workers 4,16 --in-flight 16 --out found\n  \
        penstock bench storage --format tar --store shards=./shards --prefix train-\n  \
        penstock bench storage photos-bench.json --store photos=./photos\n\n\
        Exit codes: 0 measured, 1 something failed or a ledger does not balance, 2 bad input, 130 stopped by Ctrl-C.")]
    Storage(Box<BenchStorageArgs>),
    /// Compare two reports: which loads became faster or slower, with confidence intervals.
    #[command(after_help = "Examples:\n  penstock bench compare before after\n  \
        penstock bench compare before/report.json after/report.json --fail-if-slower 5\n\n\
        Exit codes: 0 compared, 1 slower than allowed, 2 bad input.")]
    Compare(BenchCompareArgs),
    /// Print the JSON Schema of the benchmark's document.
    Schema,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchStorageArgs {
    /// Benchmark document, a JSON file; without one, all objects of the single store are read.
    #[arg(value_name = "CONFIG")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    #[command(flatten)]
    pub(crate) modules: ModuleArgs,
    /// Change the document before it is read, e.g. `/actions/0/whole_set/in_flight=16`.
    #[arg(long = "set", value_name = "/POINTER=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Read samples of this format instead of whole objects: in order, and at random.
    #[arg(
        long, conflicts_with = "file",
        value_parser = ["tar", "parquet", "tfrecord", "mds", "records", "csv", "tsv"]
    )]
    pub(crate) format: Option<String>,
    /// Read only keys with this suffix, e.g. `.jpg`.
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    pub(crate) suffix: Option<String>,
    /// Read only keys with this prefix.
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    pub(crate) prefix: Option<String>,
    /// Read at most this many objects or samples.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Read modes of the workers: `sync`, `async`, or both.
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    pub(crate) modes: Vec<String>,
    /// Numbers of workers, one load for each.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub(crate) workers: Vec<u32>,
    /// Maximum number of reads that an async worker has in flight.
    #[arg(long, value_name = "K")]
    pub(crate) in_flight: Option<u32>,
    /// Number of items in a batch.
    #[arg(long, value_name = "N")]
    pub(crate) batch_size: Option<u32>,
    /// Number of batches that each worker may have begun and not delivered.
    #[arg(long, value_name = "N")]
    pub(crate) prefetch: Option<u32>,
    /// Number of measured passes over all objects.
    #[arg(long, value_name = "N")]
    pub(crate) repeats: Option<u32>,
    /// Drop the objects from the page cache before each pass, so that the disk is measured.
    #[arg(long)]
    pub(crate) cold: bool,
    /// Find the number of accelerators that the storage can feed: a preset such as `resnet50/h100`, or the time of a step, e.g.
    /// `30ms`.
    #[arg(long, value_name = "PRESET|STEP")]
    pub(crate) accelerator: Option<String>,
    /// Run the fastest load again without storage, without each stage, and without the accelerator.
    #[arg(long)]
    pub(crate) counterfactuals: bool,
    /// Write report.json, report.html and reads.ndjson into this new folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Upload the report to a server, which shows it under /bench.
    #[arg(long)]
    pub(crate) push: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print only the report, as JSON, on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not print progress.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchCompareArgs {
    /// Earlier report: a file, or the folder written by `--out`.
    #[arg(value_name = "A")]
    pub(crate) before: PathBuf,
    /// Later report: a file, or the folder written by `--out`.
    #[arg(value_name = "B")]
    pub(crate) after: PathBuf,
    /// Fail if a load is slower by more than this percentage with 95 % confidence.
    #[arg(long, value_name = "PERCENT", value_parser = slower)]
    pub(crate) fail_if_slower: Option<f64>,
    /// Print the comparison as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

fn slower(given: &str) -> Result<f64, String> {
    match given.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("expected a percentage from 0 to 100, e.g. 5".to_owned()),
    }
}
