//! Arguments of the server, and of the commands that talk to one.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Subcommand, value_parser};

use super::{DocumentArgs, StoreArgs};

/// Where a server is, and what opens it.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// The server's address.
    #[arg(long, value_name = "URL", env = "PENSTOCK_SERVER", default_value = "http://127.0.0.1:7700")]
    pub(crate) server: String,
    /// The file with the server's token; the variable PENSTOCK_TOKEN holds the token itself. Without both, the token of your own
    /// server on this machine is used.
    #[arg(long, value_name = "FILE", env = "PENSTOCK_TOKEN_FILE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) token_file: Option<PathBuf>,
}

/// Subcommands of `penstock token`.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Print a link that signs a browser in to a running server, once and within ten minutes.
    #[command(after_help = "Example:\n  penstock token link")]
    Link(ServerArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    /// Where to listen [default: 127.0.0.1:7700].
    #[arg(long, value_name = "ADDRESS:PORT", env = "PENSTOCK_LISTEN")]
    pub(crate) listen: Option<String>,
    /// A further name that the server goes by, e.g. behind a proxy.
    #[arg(long = "host", value_name = "NAME")]
    pub(crate) hosts: Vec<String>,
    /// The file with the operator's token; the variable PENSTOCK_TOKEN holds the token itself [default: `token` in
    /// the data directory, made if it is missing].
    #[arg(long, value_name = "FILE", env = "PENSTOCK_TOKEN_FILE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) token_file: Option<PathBuf>,
    /// Let every user of this machine in, without a token; for loopback addresses alone.
    #[arg(long, conflicts_with = "token_file")]
    pub(crate) no_token: bool,
    /// Where modules, runs and their history are kept [default: ~/.local/share/penstock].
    #[arg(long, value_name = "DIR", env = "PENSTOCK_DATA_DIR", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) data_dir: Option<PathBuf>,
    /// Upload this module at the start, unless it is there already.
    #[arg(long = "module", value_name = "FILE")]
    pub(crate) modules: Vec<PathBuf>,
    /// Worker threads that all runs may use at a time [default: four for each core, but at least 32].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) threads: Option<u32>,
    /// Memory that all runs may use at a time [default: three quarters of what the system lets it use].
    #[arg(long, value_name = "MIB", value_parser = value_parser!(u32).range(1..))]
    pub(crate) memory_mib: Option<u32>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PushArgs {
    /// The module, a WebAssembly file.
    #[arg(value_name = "MODULE")]
    pub(crate) module: PathBuf,
    /// Let this alias mean the version from now on, e.g. `stable`.
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print what was uploaded as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Watch the run to its end.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only let the server check the document.
    #[arg(long, conflicts_with_all = ["follow", "time"])]
    pub(crate) check: bool,
    /// End the run after this long, e.g. `10s` or `2m`; it ends as completed.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) time: Option<Duration>,
    /// Make the request safe to repeat: the same key gives the same run for a day.
    #[arg(long, value_name = "TEXT")]
    pub(crate) key: Option<String>,
    /// Print the run as JSON, alone, on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show neither progress nor tables.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunsArgs {
    /// Only runs in these states, separated by commas.
    #[arg(long, value_name = "STATES")]
    pub(crate) state: Option<String>,
    /// Only runs whose name or id has this in it.
    #[arg(long = "find", value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Most runs.
    #[arg(long, value_name = "N", default_value = "20", value_parser = value_parser!(u32).range(1..=200))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print them as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// The run's id.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ModulesArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print them as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
