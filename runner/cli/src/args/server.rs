//! Arguments of the server, and of the commands that send requests to a server.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, value_parser};
use penstock_types::config::RegistryHost;
use penstock_types::spec::Name;
use penstock_web::Role;

use super::{DocumentArgs, StoreArgs};

/// Address and token of a server.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// Address of the server.
    #[arg(long, value_name = "URL", env = "PENSTOCK_SERVER", default_value = "http://127.0.0.1:7700")]
    pub(crate) server: String,
    /// File with the server's token; the variable PENSTOCK_TOKEN holds the token itself. Without both, the token of your own
    /// server on this machine is used.
    #[arg(long, value_name = "FILE", env = "PENSTOCK_TOKEN_FILE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) token_file: Option<PathBuf>,
}

/// Subcommands of `penstock token`.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Print a link that signs a browser in to a running server; it works once, for ten minutes.
    #[command(after_help = "Example:\n  penstock token link")]
    Link(ServerArgs),
    /// Create a named token and print it; the token is not stored in readable form. A running server accepts it within a second.
    #[command(after_help = "Examples:\n  \
        penstock token add ci --role run --store photos --store out --expires 90days > ci.token\n  \
        penstock token add grafana --role read")]
    Add(TokenAddArgs),
    /// List the named tokens.
    #[command(after_help = "Example:\n  penstock token list")]
    List(DataArgs),
    /// Remove a named token. A running server refuses it, and the browsers that signed in with it, within a second.
    #[command(after_help = "Example:\n  penstock token remove ci")]
    Remove(TokenRemoveArgs),
}

/// Data directory of a server, running or stopped.
#[derive(Debug, clap::Args)]
pub(crate) struct DataArgs {
    /// Data directory of the server [default: ~/.local/share/penstock].
    #[arg(long, value_name = "DIR", env = "PENSTOCK_DATA_DIR", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) data_dir: Option<PathBuf>,
    /// Configuration file of the server, which may name the data directory.
    #[arg(long, value_name = "FILE", env = "PENSTOCK_CONFIG", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenAddArgs {
    /// Name of the token in logs. An existing token of this name is replaced.
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: Name,
    /// Role of the token: `read` views, `run` also uploads and runs, `admin` also deletes, moves aliases and reads the audit log.
    #[arg(long, value_name = "ROLE", default_value = "read", value_parser = role())]
    pub(crate) role: Role,
    /// Store that documents submitted with the token may name; may be repeated [default: all stores].
    #[arg(long = "store", value_name = "STORE", value_parser = name)]
    pub(crate) stores: Vec<Name>,
    /// Time until the token expires, e.g. `12h` or `90days` [default: never].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) expires: Option<Duration>,
    #[command(flatten)]
    pub(crate) data: DataArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenRemoveArgs {
    /// Name of the token to remove.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) data: DataArgs,
}

fn name(text: &str) -> Result<Name, &'static str> {
    Name::new(text)
        .ok_or("a name has 1 to 128 letters, digits, `.`, `_` or `-`, and starts with a letter or a digit")
}

fn role() -> impl TypedValueParser<Value = Role> {
    let named = |name: String| Role::ALL.into_iter().find(|role| role.name() == name);
    PossibleValuesParser::new(Role::ALL.map(Role::name)).map(move |name| named(name).expect("one of these"))
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    /// Address to listen on [default: 127.0.0.1:7700].
    #[arg(long, value_name = "ADDRESS:PORT", env = "PENSTOCK_LISTEN")]
    pub(crate) listen: Option<String>,
    /// Additional host name of the server, e.g. behind a proxy.
    #[arg(long = "host", value_name = "NAME")]
    pub(crate) hosts: Vec<String>,
    /// File with the operator's token; the variable PENSTOCK_TOKEN holds the token itself [default: `token` in the data
    /// directory, created if it is missing].
    #[arg(long, value_name = "FILE", env = "PENSTOCK_TOKEN_FILE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) token_file: Option<PathBuf>,
    /// Admit every user of this machine without a token; for loopback addresses only.
    #[arg(long, conflicts_with = "token_file")]
    pub(crate) no_token: bool,
    /// Serve TLS with the certificate in this file (PEM), followed by its intermediate certificates.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// File with the private key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Folder of modules, runs and their history [default: ~/.local/share/penstock].
    #[arg(long, value_name = "DIR", env = "PENSTOCK_DATA_DIR", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) data_dir: Option<PathBuf>,
    /// Upload this module at the start, unless the server has it already.
    #[arg(long = "module", value_name = "FILE")]
    pub(crate) modules: Vec<PathBuf>,
    /// Worker threads that all runs together may use [default: four for each core, but at least 32].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) threads: Option<u32>,
    /// Memory that all runs together may use [default: three quarters of the memory available to the process, less where documents and
    /// answers would not fit beside that].
    #[arg(long, value_name = "MIB", value_parser = value_parser!(u32).range(1..))]
    pub(crate) memory_mib: Option<u32>,
}

/// Registries that a command may send requests to.
#[derive(Debug, clap::Args)]
pub(crate) struct RegistryArgs {
    /// Registry that this command may send requests to, in addition to those of the configuration; may be repeated.
    #[arg(long = "registry", value_name = "HOST", value_parser = RegistryHost::new)]
    pub(crate) registries: Vec<RegistryHost>,
    /// Configuration file of the operator, which lists registries.
    #[arg(long, value_name = "FILE", env = "PENSTOCK_CONFIG", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PushArgs {
    /// Module to upload, a WebAssembly file.
    #[arg(value_name = "MODULE")]
    pub(crate) module: PathBuf,
    /// Registry to push to instead of a server: `oci://host[:port]/name[:tag]`.
    #[arg(value_name = "REFERENCE", conflicts_with = "alias")]
    pub(crate) reference: Option<String>,
    /// Point this alias at the uploaded version, e.g. `stable`.
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) registries: RegistryArgs,
    /// Print the uploaded version as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PullArgs {
    /// Module in a registry: `oci://host[:port]/name[:tag]` or `oci://host[:port]/name@sha256:...`.
    #[arg(value_name = "REFERENCE")]
    pub(crate) reference: String,
    /// File to write; an existing file is replaced [default: last part of the name, with `.wasm`].
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) registries: RegistryArgs,
    /// Print the file and the digests as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Watch the run until it ends.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Check the document on the server without running it.
    #[arg(long, conflicts_with_all = ["follow", "time"])]
    pub(crate) check: bool,
    /// Stop the run after this time, e.g. `10s` or `2m`; it ends as completed.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) time: Option<Duration>,
    /// Idempotency key: a repeated request of the same token with the same key returns the same run for a day.
    #[arg(long, value_name = "TEXT")]
    pub(crate) key: Option<String>,
    /// Tag the run, e.g. `--tag nightly --tag lr=0.1`; 16 tags at most.
    #[arg(long = "tag", value_name = "TAG", value_delimiter = ',')]
    pub(crate) tags: Vec<String>,
    /// Print only the run, as JSON, on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no progress and no tables.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunsArgs {
    /// List only runs in these states, separated by commas.
    #[arg(long, value_name = "STATES")]
    pub(crate) state: Option<String>,
    /// List only runs whose name or id contains this text.
    #[arg(long = "find", value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// List only runs with this tag; repeat the option for runs that have several tags.
    #[arg(long = "tag", value_name = "TAG", value_delimiter = ',')]
    pub(crate) tags: Vec<String>,
    /// Maximum number of runs to list.
    #[arg(long, value_name = "N", default_value = "20", value_parser = value_parser!(u32).range(1..=200))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print the runs as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SetArgs {
    /// Id of the run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Settings with their new values.
    #[arg(value_name = "POINTER=VALUE", required = true)]
    pub(crate) settings: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print the changes as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// Id of the run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// Id of the run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Resume although a module or the data differs.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ModulesArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print the modules as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
