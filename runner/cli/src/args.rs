mod bench;
mod server;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, PossibleValuesParser, StyledStr, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand, ValueEnum, value_parser};
use penstock_pipeline::predict::MOST_CORES;
use penstock_types::config::{CacheConfig, StoreKind};
use penstock_types::spec::{DeadlineMs, MemoryMib, OutputMib};

pub(crate) use self::bench::{BenchCommand, BenchCompareArgs, BenchStorageArgs};
pub(crate) use self::server::{
    DataArgs, ModulesArgs, PullArgs, PushArgs, RegistryArgs, ResumeArgs, RunsArgs, ServeArgs, ServerArgs,
    SetArgs, StopArgs, SubmitArgs, TokenAddArgs, TokenCommand, TokenRemoveArgs,
};
use crate::{BAD_INPUT, COMPLETED};

/// Runs data-loading pipelines for ML and reports what limits them.
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

impl Args {
    /// Parses the arguments, the first of which is the command's name. If the arguments request help or are invalid, prints the
    /// help or the error and returns the exit code as `Err`.
    pub(crate) fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, u8> {
        Self::try_parse_from(arguments).map_err(|mut error| {
            if is_module_missing(&error) {
                let tip = "`--input` takes all files up to the next flag; put the module before it";
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
            }
            // Ignored: a reader such as `head` may close the pipe early.
            error.print().and_then(|()| io::stdout().flush()).unwrap_or_default();
            if error.use_stderr() { BAD_INPUT } else { COMPLETED }
        })
    }
}

/// Returns true if the only error is that `test-stage` lacks its module.
fn is_module_missing(error: &clap::Error) -> bool {
    let missing = error.get(ContextKind::InvalidArg);
    error.kind() == ErrorKind::MissingRequiredArgument
        && missing == Some(&ContextValue::Strings(vec!["<MODULE>".to_owned()]))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a pipeline and show what its stages and queues did.
    #[command(after_help = "Examples:\n  penstock run photos.json --store photos=./photos\n  \
        penstock run faces.json --store photos=./photos --module crop-faces=crop_faces.wasm\n\n\
        Exit codes: 0 completed (skipped samples included), 1 failed, 2 bad input, 130 stopped by Ctrl-C.")]
    Run(RunArgs),
    /// Check a pipeline document without running it, and list all its faults.
    #[command(after_help = "Examples:\n  penstock check photos.json --store photos=./photos\n  \
        penstock check photos.json --store photos=./photos --init --stores\n\n\
        Exit codes: 0 it can run, 2 it cannot.")]
    Check(CheckArgs),
    /// Predict the rate of a pipeline and the waits at its queues.
    ///
    /// The prediction applies the scheduling rules of a run in simulated time. The times of stages come from the document
    /// (`sleep`, `simulate`) or from a recorded run.
    #[command(after_help = "Examples:\n  penstock predict pipeline.json\n  \
        penstock predict photos.json --from out --set /stages/1/wasm/concurrency=4 --threads 4\n  \
        penstock predict photos.json --from out --sweep --max-threads 8\n\n\
        Stores and modules are given as for `penstock run`.\n\
        Exit codes: 0 predicted, 2 bad input, or the time of a stage is not known.")]
    Predict(PredictArgs),
    /// Find the concurrency and queues with which a pipeline is fastest, and write the document with them.
    ///
    /// The run begins with a concurrency and queues of 1, and changes one setting at a time: a prediction proposes, the measured rate decides.
    /// The number of threads stays as given.
    #[command(
        after_help = "Examples:\n  penstock tune photos.json --store photos=./photos -o tuned.json\n  \
        penstock tune photos.json --store photos=./photos --for 2m --threads 8 -o -\n\n\
        Stores and modules are given as for `penstock run`.\n\
        Exit codes: 0 tuned, also if no change helps, 1 the run failed or was not tuned, 2 bad input, 130 stopped by Ctrl-C."
    )]
    Tune(TuneArgs),
    /// Measure what each stage can do alone, with 1, 2, 4, ... ops at a time, and how much ops slow each other down.
    ///
    /// A short run of the pipeline records the inputs of the stages; each stage then takes its own again and again.
    #[command(after_help = "Examples:\n  penstock profile photos.json --store photos=./photos\n  \
        penstock profile photos.json --store photos=./photos --stage decode --threads 1,2,4,8 -o profile.json\n  \
        penstock predict photos.json --from out --profile profile.json --threads 8\n\n\
        Stores and modules are given as for `penstock run`.\n\
        Exit codes: 0 measured, 1 a run failed, 2 bad input, 130 stopped by Ctrl-C.")]
    Profile(ProfileArgs),
    /// Measure the gain that faster loading could bring: the pipeline as it is, the loader alone, and the consumer alone.
    #[command(after_help = "Example:\n  penstock headspace photos.json --store photos=./photos\n\n\
        Stores and modules are given as for `penstock run`.\n\
        Exit codes: 0 measured, 1 a run failed, 2 bad input, 130 stopped by Ctrl-C.")]
    Headspace(HeadspaceArgs),
    /// Compare two runs: their changes, the effect and its cause; or compare the ranks of one pipeline and name the straggler.
    #[command(
        after_help = "Examples:\n  penstock compare before after\n  penstock compare rank-0 rank-1 rank-2 rank-3\n\n\
        Exit codes: 0 compared, 2 bad input."
    )]
    Compare(CompareArgs),
    /// Measure the throughput and latency of storage.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Replay the dead letters of a run, each through the stage in which it failed and no other.
    ///
    /// Outputs are not kept: a replay shows whether a corrected module or store accepts the inputs that had failed.
    #[command(
        after_help = "Example:\n  penstock run photos.json --store photos=./photos --module decode=old.wasm --out night\n  \
        penstock replay night --module decode=new.wasm\n\n\
        Exit codes: 0 all dead letters were tried, whether they pass or fail, 1 some could not be, 2 bad input, 130 stopped by Ctrl-C."
    )]
    Replay(ReplayArgs),
    /// Print the JSON Schema of the pipeline document.
    #[command(after_help = "Example:\n  penstock schema > pipeline.schema.json")]
    Schema,
    /// Create a crate with a stage that builds and passes its tests.
    #[command(
        after_help = "Example:\n  penstock new crop-faces\n\nExit codes: 0 created, 2 the crate cannot be created."
    )]
    New(NewArgs),
    /// Try a stage module on a few samples: the outcome, time and memory of each.
    ///
    /// Host code, limits and seeds are those of a run over the same samples.
    #[command(
        override_usage = "penstock test-stage [OPTIONS] <MODULE> --input <FILE>...",
        after_help = "Examples:\n  penstock test-stage std/image -i photos -p '{\"ops\": [{\"Resize\": {\"size\": 64}}]}'\n  \
        penstock test-stage text_filter.wasm -i corpus.ndjson --repeat 3\n\n\
        Exit codes: 0 no sample failed or differed, 1 a sample failed or differed, or the module does not start, 2 bad input."
    )]
    TestStage(TestStageArgs),
    /// Inspect stage modules.
    #[command(subcommand)]
    Module(ModuleCommand),
    /// Compile the module given on standard input. Penstock starts itself with this subcommand.
    #[command(hide = true)]
    CompileModule,
    /// Create indexes, which the source `index` reads.
    #[command(subcommand)]
    Index(IndexCommand),
    /// List, check and remove what runs keep on this machine between them.
    #[command(subcommand)]
    DataCache(DataCacheCommand),
    /// Serve the API and the web pages: users upload modules, submit runs, and watch them live in a browser.
    ///
    /// Clients need a token. Unless one is given, the server creates one in the data directory and prints a link that signs a
    /// browser in.
    #[command(after_help = "Examples:\n  penstock serve --store photos=./photos\n  \
        penstock serve --config penstock.json --listen 0.0.0.0:7700 --token-file token\n\n\
        Exit codes: 0 stopped by a signal, 1 failed, 2 bad input.")]
    Serve(ServeArgs),
    /// Sign in to a server, and manage its tokens.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Upload a module to a server, as the next version of its name, or to an OCI registry.
    #[command(after_help = "Examples:\n  penstock push crop_faces.wasm --alias stable\n  \
        penstock push crop_faces.wasm oci://ghcr.io/team/crop-faces:v1 --registry ghcr.io\n\n\
        A registry takes the credentials of `docker login`, or PENSTOCK_REGISTRY_USER and PENSTOCK_REGISTRY_PASSWORD, or\n\
        PENSTOCK_REGISTRY_TOKEN.\n\
        Exit codes: 0 uploaded, 1 failed, 2 refused.")]
    Push(PushArgs),
    /// Save a module of an OCI registry as a file, after a check of its size and digest.
    #[command(
        after_help = "Examples:\n  penstock pull oci://ghcr.io/team/crop-faces:v1 --registry ghcr.io\n  \
        penstock pull oci://ghcr.io/team/crop-faces@sha256:... --config penstock.json -o crop.wasm\n\n\
        Credentials are given as for `penstock push`.\n\
        Exit codes: 0 saved, 1 failed, 2 refused."
    )]
    Pull(PullArgs),
    /// Submit a pipeline document to a server.
    #[command(
        after_help = "Examples:\n  penstock submit photos.json --follow\n  penstock submit photos.json --set /threads=4 --for 1m\n\n\
        Exit codes with --follow: as `penstock run`. Without: 0 submitted, 1 failed, 2 refused."
    )]
    Submit(SubmitArgs),
    /// List the runs of a server, newest first.
    #[command(after_help = "Example:\n  penstock runs --state running,queued")]
    Runs(RunsArgs),
    /// Stop a run of a server.
    #[command(after_help = "Example:\n  penstock stop 0199c3c1-7a55-7e00-b07f-6b9a7d1f2f10")]
    Stop(StopArgs),
    /// Change settings of a run of a server while it goes on.
    #[command(
        after_help = "Example:\n  penstock set 0199c3c1-7a55-7e00-b07f-6b9a7d1f2f10 /stages/2/wasm/concurrency=8 /sink/queue=16\n\n\
        Concurrency, queues, and threads up to the number of the submit can change. A resumed run begins with the settings that held.\n\
        Exit codes: 0 changed, 1 failed, 2 refused."
    )]
    Set(SetArgs),
    /// Continue a run of a server that has ended early, as a new run.
    #[command(after_help = "Example:\n  penstock resume 0199c3c1-7a55-7e00-b07f-6b9a7d1f2f10\n\n\
        Exit codes: 0 submitted, 1 failed, 2 refused.")]
    Resume(ResumeArgs),
    /// List the modules of a server.
    #[command(after_help = "Example:\n  penstock modules")]
    Modules(ModulesArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum IndexCommand {
    /// Write the keys of a store, sorted by their bytes, as a JSON array.
    ///
    /// A pipeline with the source `index` reads these keys instead of listing the store: its first sample comes at once, however
    /// large the bucket is. The index does not contain its own key.
    #[command(
        after_help = "Examples:\n  penstock index create --store photos=./photos --suffix .jpg -o photos.json\n  \
        penstock index create --store photos=s3://bucket/train --suffix .jpg --upload index.json\n\n\
        Exit codes: 0 written, 1 failed, 2 bad input."
    )]
    Create(IndexCreateArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum DataCacheCommand {
    /// List the sets of a cache: what each holds, its size and its last use.
    #[command(after_help = "Example:\n  penstock data-cache list /cache")]
    List(DataCacheArgs),
    /// Read and check all entries of a cache.
    #[command(after_help = "Example:\n  penstock data-cache verify /cache\n\n\
        A damaged entry is harmless: a run reads the object again.\n\
        Exit codes: 0 all are whole, 1 some are damaged, 2 bad input.")]
    Verify(DataCacheArgs),
    /// Remove the sets of a cache that no process uses.
    #[command(
        after_help = "Examples:\n  penstock data-cache clear /cache\n  penstock data-cache clear /cache SET\n\n\
        Exit codes: 0 removed, 1 some are in use, 2 bad input."
    )]
    Clear(DataCacheClearArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DataCacheArgs {
    /// Folder of the cache, as given to `--store-cache`.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Print JSON on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DataCacheClearArgs {
    /// Folder of the cache, as given to `--store-cache`.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Names of the sets to remove, or how they begin; all when missing.
    #[arg(value_name = "SET")]
    pub(crate) sets: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModuleCommand {
    /// List the modules that the program contains; documents name them without a file.
    #[command(after_help = "Examples:\n  penstock module list\n  penstock module inspect std/image")]
    List(ModuleListArgs),
    /// Print the description, needs and limits of a module without running it.
    #[command(after_help = "Example:\n  penstock module inspect std/image")]
    Inspect(InspectArgs),
    /// Write a manifest into a module, for languages whose tools cannot write custom sections.
    #[command(after_help = "Example:\n  penstock module manifest first-words.wasm manifest.json")]
    Manifest(ManifestArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// Stop after this time, e.g. `10s` or `2m`; the run ends as completed.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) time: Option<Duration>,
    /// Change concurrency and queues while the run is measured, as long as that raises the rate (`apply`), or only suggest it (`suggest`)
    /// [default: `tune` of the document, or `off`].
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(["off", "suggest", "apply"]))]
    pub(crate) tune: Option<String>,
    /// Print only the snapshot, as JSON, on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write spec.json, windows.ndjson, snapshot.json, times.json and errors.ndjson (and dead letters) into this new folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Keep the state of the run in this file: written at the end of each window and of the run.
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,
    /// Continue from the state in this file; it may be the file of `--state`.
    #[arg(long, value_name = "FILE", group = "earlier")]
    pub(crate) resume: Option<PathBuf>,
    /// Continue the batches of the consumer `files` behind those that an interrupted run has written.
    #[arg(long, group = "earlier")]
    pub(crate) resume_files: bool,
    /// Resume although the document, a module or the data differs.
    #[arg(long, requires = "earlier")]
    pub(crate) force: bool,
    /// Show no progress and no tables, only failures and warnings, on standard error.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// Start each module once, with its params and assets.
    #[arg(long)]
    pub(crate) init: bool,
    /// Open the source as a run does, without a limit of time, and try the other stores; a failure is a fault.
    #[arg(long = "stores")]
    pub(crate) tries_stores: bool,
    /// Print only the result, as JSON, on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Folder of the run, written by `penstock run --out`.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    #[command(flatten)]
    pub(crate) modules: ModuleArgs,
    /// Write inputs that fail again into this new folder, as dead letters, with spec.json, errors.ndjson and replay.json.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print only the report, as JSON, on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// Take the times from this run: a folder written by `penstock run --out`.
    #[arg(long, value_name = "DIR")]
    pub(crate) from: Option<PathBuf>,
    /// Take the slowdown of ops by each other from this file, written by `penstock profile -o`.
    #[arg(long, value_name = "FILE", requires = "from")]
    pub(crate) profile: Option<PathBuf>,
    /// Predict a run of this duration from its start, e.g. `10s` [default: a run that has warmed up].
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) time: Option<Duration>,
    /// Number of cores that computing stages share [default: cores of this machine].
    #[arg(long, value_name = "N", value_parser = cores)]
    pub(crate) cores: Option<f64>,
    /// Number of cores that other work would use if it had them, e.g. `0` for a machine of its own [default: as in the recorded run].
    #[arg(long, value_name = "N", value_parser = foreign_cores)]
    pub(crate) foreign_cores: Option<f64>,
    /// List the changes of concurrency, threads and queues that would raise the rate most.
    #[arg(long)]
    pub(crate) sweep: bool,
    /// Largest number of worker threads that a change may use [default: threads of the pipeline or cores of this machine, the
    /// larger].
    #[arg(long, value_name = "N", requires = "sweep", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) max_threads: Option<u32>,
    /// Limit of the memory that a change may use: one instance of each module on each thread, and 1 MiB for each concurrent
    /// fetch.
    #[arg(long, value_name = "MIB", requires = "sweep", default_value_t = 4096)]
    pub(crate) max_memory_mib: u64,
    /// Print the prediction as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// Duration of the run, which passes over the data again and again.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, default_value = "60s")]
    pub(crate) time: Duration,
    /// Write the document with the settings that were found to this file, or to standard output if it is `-`.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Take the slowdown of ops by each other from this file, written by `penstock profile -o`, for better predictions.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Begin with the settings of the document instead of 1.
    #[arg(long)]
    pub(crate) from_document: bool,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no progress.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    /// Pipeline document, a JSON file; `-` reads standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Change the document before it is read, e.g. `/threads=4` for the run that records.
    #[arg(long = "set", value_name = "/POINTER=VALUE")]
    pub(crate) settings: Vec<String>,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    #[command(flatten)]
    pub(crate) modules: ModuleArgs,
    /// Measure only this stage, by its id or name; may be repeated [default: all stages that do more than move samples].
    #[arg(long = "stage", value_name = "ID")]
    pub(crate) stages: Vec<String>,
    /// Numbers of ops at a time, each on a thread of its own, for stages that compute [default: 1,2,4,... up to the cores of this machine].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Vec<u32>,
    /// Duration of the run that records the inputs.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "5s")]
    pub(crate) record: Duration,
    /// Duration of each measurement, which consists of three rounds.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, default_value = "1500ms")]
    pub(crate) time: Duration,
    /// Memory for all recorded inputs, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    pub(crate) memory_mib: u64,
    /// Write the measurements as JSON to this file, for `penstock predict --profile`.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the measurements as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no progress.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// Folders written by `penstock run --out`: two runs, or one for each rank.
    #[arg(value_name = "OUT", num_args = 2..)]
    pub(crate) runs: Vec<PathBuf>,
    /// Print the comparison as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HeadspaceArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// Duration of each of the three runs.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, default_value = "10s")]
    pub(crate) time: Duration,
    /// Print the measurements as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not print which run is in progress.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

fn cores(given: &str) -> Result<f64, String> {
    let cores = foreign_cores(given).ok().filter(|cores| *cores > 0.0);
    cores.ok_or_else(|| format!("expected a number above 0 and at most {MOST_CORES}, e.g. 2"))
}

fn foreign_cores(given: &str) -> Result<f64, String> {
    match given.parse() {
        Ok(cores) if (0.0..=MOST_CORES).contains(&cores) => Ok(cores),
        _ => Err(format!("expected a number from 0 to {MOST_CORES}, e.g. 1.5")),
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct DocumentArgs {
    /// Pipeline document, a JSON file; `-` reads standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Change the document before it is read, e.g. `/stages/1/wasm/concurrency=4`.
    #[arg(long = "set", value_name = "/POINTER=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Number of worker threads; overrides the document.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u32>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PipelineArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    #[command(flatten)]
    pub(crate) modules: ModuleArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModuleArgs {
    /// Map a module name to a WebAssembly file.
    #[arg(long = "module", value_name = "NAME=PATH")]
    pub(crate) named: Vec<String>,
    /// Folder of compiled modules [default: ~/.cache/penstock].
    #[arg(long, value_name = "DIR", env = "PENSTOCK_CACHE_DIR", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) cache_dir: Option<PathBuf>,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreArgs {
    #[arg(long = "store", value_name = "NAME=LOCATION", help = format!(
        "Map a store name to a folder, to {}, or to a `*.json` file that describes a data set in S3; overrides the configuration",
        StoreKind::addresses()
    ))]
    pub(crate) stores: Vec<String>,
    /// Permit links in folders of stores to lead into this folder, too: in those of one store, or of all.
    #[arg(long = "store-links", value_name = "[NAME=]DIR")]
    pub(crate) links: Vec<String>,
    /// Keep objects of stores in S3 in this folder between runs [size: a quarter of the free space].
    #[arg(long, value_name = "DIR[:GIB]", value_parser = CacheConfig::from_flag)]
    pub(crate) store_cache: Option<CacheConfig>,
    /// Configuration file of the operator, which defines stores.
    #[arg(long, value_name = "FILE", env = "PENSTOCK_CONFIG", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct IndexCreateArgs {
    /// Store to list; optional if there is only one.
    #[arg(value_name = "NAME")]
    pub(crate) store: Option<String>,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    /// Prefix of the keys to include.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Suffix of the keys to include, e.g. `.jpg`; when missing, those of tar shards with `--tar`, and names such as `a.tfrecord` and
    /// `a.tfrecord-00000-of-00128` with `--tfrecord`.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) suffix: String,
    /// Include keys in folders whose names begin with `.`, and in `__MACOSX`, behind the prefix.
    #[arg(long)]
    pub(crate) hidden: bool,
    /// Index the samples in tar shards instead of the keys, for the source `tar`.
    #[arg(long)]
    pub(crate) tar: bool,
    /// Index the records in TFRecord files instead of the keys, for the source `tfrecord`.
    #[arg(long, conflicts_with = "tar")]
    pub(crate) tfrecord: bool,
    /// Write the index to this file instead of standard output, which `-` names, too.
    #[arg(long, short, value_name = "FILE", conflicts_with = "upload")]
    pub(crate) output: Option<PathBuf>,
    /// Write the index into the store itself under this key, replacing an object that is there.
    #[arg(long, value_name = "KEY")]
    pub(crate) upload: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NewArgs {
    /// Name of the stage and of its new folder, e.g. `crop-faces`.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Input of one call of the stage.
    #[arg(long, value_enum, default_value = "sample")]
    pub(crate) mode: NewMode,
    /// Language of the stage.
    #[arg(long, value_enum, default_value = "rust")]
    pub(crate) lang: NewLanguage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NewLanguage {
    /// A crate; the fastest stages.
    Rust,
    /// One file, built by componentize-py.
    Python,
    /// One file of JavaScript, built by componentize-qjs.
    Js,
    /// One file, built by the Go toolchain.
    Go,
    /// One file, built by clang with wasi-libc.
    C,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NewMode {
    /// One sample per call, in any number of instances.
    Sample,
    /// All samples of one batch per call.
    Batch,
    /// One sample per call, in a single instance, which may hold samples back.
    Stateful,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TestStageArgs {
    /// Module to try: a WebAssembly file, or a module of the program such as std/image.
    #[arg(value_name = "MODULE")]
    pub(crate) module: PathBuf,
    /// Samples: each line of a `.ndjson` or `.jsonl` file (also with `.gz` or `.zst`), any other file as one sample, or all files of a folder.
    #[arg(long = "input", short, value_name = "FILE", num_args = 1.., required = true)]
    pub(crate) inputs: Vec<PathBuf>,
    /// Params of the stage, as JSON or as a file that contains JSON.
    #[arg(long, short, value_name = "JSON|@FILE", default_value = "{}", hide_default_value = true)]
    pub(crate) params: String,
    /// Try each sample this many times, on new instances and in other orders, and report whether the result is always the same.
    #[arg(long, value_name = "N", default_value = "1", value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,
    /// Field that holds the content of a file [default: bytes, or text with --text].
    #[arg(long, value_name = "NAME")]
    pub(crate) field: Option<String>,
    /// Pass the content of files as text instead of bytes.
    #[arg(long)]
    pub(crate) text: bool,
    /// Number of samples per call, for a module of mode `batch` [default: 8].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: Option<u32>,
    /// Map an asset name to a file.
    #[arg(long = "asset", value_name = "NAME=FILE")]
    pub(crate) assets: Vec<String>,
    /// Limit of CPU time for one sample.
    #[arg(long, value_name = "MS", default_value = "5000", value_parser = value_parser!(u32).range(1..=i64::from(DeadlineMs::MOST)))]
    pub(crate) deadline_ms: u32,
    /// Limit of memory for one instance.
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = value_parser!(u32).range(1..=i64::from(MemoryMib::MOST)))]
    pub(crate) memory_mib: u32,
    /// Limit of the output for one sample.
    #[arg(long, value_name = "MIB", default_value = "128", value_parser = value_parser!(u32).range(1..=i64::from(OutputMib::MOST)))]
    pub(crate) output_mib: u32,
    /// Seed, in place of the pipeline document's seed.
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) seed: u64,
    /// Print the whole report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Folder of compiled modules [default: ~/.cache/penstock].
    #[arg(long, value_name = "DIR", env = "PENSTOCK_CACHE_DIR", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) cache_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManifestArgs {
    /// Module, a WebAssembly file; an earlier manifest in it is replaced.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Manifest, a JSON file.
    #[arg(value_name = "MANIFEST")]
    pub(crate) manifest: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ModuleListArgs {
    /// Print the modules with their manifests as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// Module to inspect: a WebAssembly file, or a module of the program such as std/image.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
