//! Arguments of the server, and of the commands that talk to one.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, value_parser};
use penstock_types::spec::Name;
use penstock_web::Role;

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
    /// Make a named token for others, and print it: there is no other copy. A running server knows it within a second.
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

/// The data directory of a server, which may be running or not.
#[derive(Debug, clap::Args)]
pub(crate) struct DataArgs {
    /// The server's data directory [default: ~/.local/share/penstock].
    #[arg(long, value_name = "DIR", env = "PENSTOCK_DATA_DIR", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) data_dir: Option<PathBuf>,
    /// The server's configuration, which may name the data directory.
    #[arg(long, value_name = "FILE", env = "PENSTOCK_CONFIG", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenAddArgs {
    /// The token's name in logs. A token that has it already is replaced.
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: Name,
    /// The token's role: `read` looks, `run` also uploads and runs, `admin` also deletes, moves aliases and reads the audit log.
    #[arg(long, value_name = "ROLE", default_value = "read", value_parser = role())]
    pub(crate) role: Role,
    /// A store that its documents may name; may be given several times [default: all stores].
    #[arg(long = "store", value_name = "STORE", value_parser = name)]
    pub(crate) stores: Vec<Name>,
    /// The time until it expires, e.g. `12h` or `90days` [default: it does not expire].
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
        .ok_or("a name has 1 to 128 letters, digits, `.`, `_` or `-`, and begins with a letter or a digit")
}

fn role() -> impl TypedValueParser<Value = Role> {
    let named = |name: String| Role::ALL.into_iter().find(|role| role.name() == name);
    PossibleValuesParser::new(Role::ALL.map(Role::name)).map(move |name| named(name).expect("one of these"))
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
    /// Speak TLS with the certificate in this file (PEM); those between it and one that clients trust follow it there.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The file with the key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
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
    /// Tag the run, e.g. `--tag nightly --tag lr=0.1`; 16 tags at most.
    #[arg(long = "tag", value_name = "TAG", value_delimiter = ',')]
    pub(crate) tags: Vec<String>,
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
    /// Only runs with this tag; several times for runs with all of them.
    #[arg(long = "tag", value_name = "TAG", value_delimiter = ',')]
    pub(crate) tags: Vec<String>,
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
