use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use anyhow::{Context, Result};
use penstock_engine::memory::process_limit_bytes;
use penstock_pipeline::cores;
use penstock_server::{Budget, Runs, RunsError, RunsSettings};
use penstock_types::config::Config;
use penstock_wasm::SandboxSettings;
use penstock_web::{ANSWER_BYTES, HELD_BYTES, OperatorToken, ServeSettings, Server, TlsFiles, TokenFile};
use tokio::signal::unix::SignalKind;

use crate::announced::{Announcement, reachable};
use crate::args::ServeArgs;
use crate::commands::{compile_module, token};
use crate::input::{bad, module_bytes, own_folder};
use crate::interrupt::signalled;
use crate::stores;
use crate::text::{count, say, warn};

/// Default address to listen on.
const LISTEN: &str = "127.0.0.1:7700";
/// Memory of the server besides runs, documents and answers, in MiB.
const OWN_MIB: u64 = 64;

/// Folders and files that the start message of the server lists.
struct Place<'a> {
    data_dir: &'a Path,
    token_file: Option<&'a Path>,
    /// Set if the start message includes a sign-in link, which is only the case for a token that the server has created.
    prints_link: bool,
}

/// Serves until Ctrl-C, or until a supervisor asks the process to end.
pub(crate) async fn serve(args: &ServeArgs) -> Result<()> {
    let config = stores::config(args.stores.config.as_deref())?;
    let data_dir = data_dir(args.data_dir.as_deref(), &config)?;
    let (token, mut token_file) = if args.no_token { (None, None) } else { token(args, &config)? };
    let creates_token = token.is_none() && !args.no_token;
    let mut settings = ServeSettings {
        listen: listen(args, &config)?,
        token,
        tokens_file: Some(TokenFile::path(&data_dir)),
        tls: tls(args, &config),
        hosts: config.hosts.iter().map(|host| host.as_str().to_owned()).chain(args.hosts.clone()).collect(),
    };
    if args.no_token {
        settings.check().map_err(|error| bad(error.to_string()))?;
    }
    let mut end = std::pin::pin!(signalled(&[SignalKind::interrupt(), SignalKind::terminate()])?);
    let runs_settings = RunsSettings {
        budget: budget(args, &config),
        sandbox: SandboxSettings {
            compiler: compile_module::compiler(&config.limits.compile),
            gate: config.limits.modules.clone(),
            ..SandboxSettings::default()
        },
        bounds: config.limits.runs,
        clients: config.limits.clients,
        module_owners: config.module_owners.unwrap_or(true),
        disk_bytes: config.limits.disk_mib.map(|mib| u64::from(mib.get()) << 20),
        ..RunsSettings::new(&data_dir, stores::open(&args.stores, &config)?)
    };
    let handle = tokio::runtime::Handle::current();
    let runs = tokio::task::block_in_place(|| Runs::open(&handle, runs_settings))?;
    if creates_token {
        // The directory is locked, so no other server creates a token at the same time.
        settings.token = Some(OperatorToken::kept_in(&data_dir)?);
        token_file = Some(OperatorToken::file_in(&data_dir));
    }
    let place = Place { data_dir: &data_dir, token_file: token_file.as_deref(), prints_link: creates_token };
    let served = serve_runs(args, &config, settings, &runs, place, end.as_mut()).await;
    let ended = runs.shutdown().await;
    if !ended.unfinished.is_empty() {
        warn(&format!(
            "{} did not end in time and will be reported as `interrupted`",
            ended.unfinished.join(", ")
        ));
    }
    served
}

async fn serve_runs(
    args: &ServeArgs,
    config: &Config,
    settings: ServeSettings,
    runs: &Runs,
    place: Place<'_>,
    mut end: Pin<&mut impl Future<Output = ()>>,
) -> Result<()> {
    for module in &args.modules {
        tokio::select! {
            uploaded = upload(runs, module, config) => uploaded?,
            () = end.as_mut() => return Ok(()),
        }
    }
    let wants_token = settings.token.is_some();
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    // With TLS, the address in the start message has the host name, because certificates are issued for names.
    let name = settings.hosts.first().filter(|_| settings.tls.is_some()).cloned();
    let server = Server::bind(settings, runs.clone()).await?;
    let address = server.address();
    let _announced = place.token_file.and_then(|file| announce(address, file));
    let link = if place.prints_link { server.sign_in_code()? } else { None };
    let here = name.map_or(reachable(address).to_string(), |name| format!("{name}:{}", address.port()));
    let link = link.map(|code| format!("{scheme}://{here}{}", token::address(&code)));
    say(&welcome(&format!("{scheme}://{address}"), runs, &place, wants_token, link))?;
    server.run(end).await;
    Ok(())
}

fn announce(address: SocketAddr, token_file: &Path) -> Option<Announcement> {
    Announcement::new(address, token_file).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot announce the server to other programs of this user; pass `--token-file` to them");
        None
    })
}

fn welcome(address: &str, runs: &Runs, place: &Place<'_>, wants_token: bool, link: Option<String>) -> String {
    let used = runs.use_now();
    let stores = runs.stores();
    let names: Vec<&str> = stores.iter().map(|store| &*store.name).collect();
    let names = match names.join(", ") {
        none if none.is_empty() => "none; name some with `--store` or `--config`".to_owned(),
        names => names,
    };
    let who = if wants_token { "clients with a token" } else { "all users of this machine" };
    let mut told = format!("Penstock serves {address} to {who}\n");
    if let Some(link) = link {
        told.push_str(&format!(
            "  sign in {link}\n          valid once, for ten minutes; `penstock token link` prints another\n"
        ));
    }
    if let Some(file) = place.token_file {
        told.push_str(&format!("  token   {}\n", file.display()));
    }
    told.push_str(&format!(
        "  stores  {names}\n  budget  {} threads, {} MiB\n  data    {}\nStop it with Ctrl-C.",
        used.threads,
        count(used.memory_mib),
        place.data_dir.display()
    ));
    told
}

/// Uploads a module as a client would; a module that is already registered is left as it is.
async fn upload(runs: &Runs, path: &Path, config: &Config) -> Result<()> {
    let shown = path.display();
    let (own, bounds) = (path.to_owned(), config.limits.modules.clone());
    let bytes = tokio::task::spawn_blocking(move || module_bytes(&own, &bounds)).await??;
    let refused = |error: RunsError| match error {
        RunsError::Refused(_) | RunsError::TooLarge { .. } => bad(format!("`{shown}`: {error}")),
        other => anyhow::Error::from(other).context(format!("cannot keep `{shown}`")),
    };
    let mut draft = runs.begin_upload().await.map_err(refused)?;
    draft.write(&bytes).await.map_err(refused)?;
    let uploaded = draft.finish(None).await.map_err(refused)?;
    tracing::info!(name = uploaded.version.name, version = uploaded.version.version, "module is available");
    Ok(())
}

fn listen(args: &ServeArgs, config: &Config) -> Result<SocketAddr> {
    let usual = || LISTEN.parse().expect("it is an address");
    match &args.listen {
        Some(given) => given.parse().map_err(|_| {
            bad(format!(
                "`--listen {given}` is not an address with a port; use e.g. `{LISTEN}` or `0.0.0.0:7700`"
            ))
        }),
        None => Ok(config.listen.as_ref().map_or_else(usual, |listen| *listen.address())),
    }
}

/// Reads the token from the first of these that is set: a file named on the command line or in the environment, the environment
/// itself, or the file of the configuration. Returns also the path of the file that it was read from.
fn token(args: &ServeArgs, config: &Config) -> Result<(Option<OperatorToken>, Option<PathBuf>)> {
    let named = args.token_file.as_deref().filter(|file| !file.as_os_str().is_empty());
    let configured = config.token_file.as_ref().map(|file| file.as_path());
    let written = env::var("PENSTOCK_TOKEN").ok().filter(|token| !token.is_empty());
    let (token, file) = match (named, written, configured) {
        (Some(file), _, _) | (None, None, Some(file)) => {
            let unreadable = |error| bad(format!("cannot read the token in `{}`: {error}", file.display()));
            (fs::read_to_string(file).map_err(unreadable)?, Some(file.to_owned()))
        }
        (None, Some(written), _) => (written, None),
        (None, None, None) => return Ok((None, None)),
    };
    let token = OperatorToken::new(&token).map_err(|error| bad(error.to_string()))?;
    Ok((Some(token), file))
}

/// Data directory from the command line, else from the configuration, else the default directory.
pub(crate) fn data_dir(given: Option<&Path>, config: &Config) -> Result<PathBuf> {
    if let Some(given) = given.filter(|folder| !folder.as_os_str().is_empty()) {
        return Ok(given.to_owned());
    }
    if let Some(configured) = &config.data_dir {
        return Ok(configured.as_path().to_owned());
    }
    own_folder("XDG_DATA_HOME", ".local/share")
        .context("no home folder for the data directory; set `--data-dir`")
}

fn tls(args: &ServeArgs, config: &Config) -> Option<TlsFiles> {
    let given = args.tls_certificate.clone().zip(args.tls_key.clone());
    let configured =
        config.tls.as_ref().map(|tls| (tls.certificate.as_path().into(), tls.key.as_path().into()));
    given.or(configured).map(|(certificate, key)| TlsFiles { certificate, key })
}

fn budget(args: &ServeArgs, config: &Config) -> Budget {
    let usual = Budget::of_this_machine();
    let beside = ((HELD_BYTES + ANSWER_BYTES) >> 20) + OWN_MIB;
    let all = process_limit_bytes().map(|bytes| bytes >> 20);
    let threads = args.threads.or(config.budget.threads.map(|threads| threads.get()));
    let memory = args.memory_mib.or(config.budget.memory_mib.map(|memory| memory.get()));
    if let (Some(memory), Some(all)) = (memory, all)
        && u64::from(memory) + beside > all
    {
        warn(&format!(
            "runs may take {memory} MiB (`memory_mib`), and documents, answers and the server itself {beside} MiB more, but the system allows \
             {all} MiB; beyond that, it may end the server"
        ));
    }
    Budget {
        // The default is more threads than cores, because stages wait about as much as they compute.
        threads: threads.unwrap_or_else(|| cores().saturating_mul(4).max(32)),
        memory_mib: memory.map_or_else(|| usual_mib(usual.memory_mib, all, beside), u64::from),
        ..usual
    }
}

/// Memory of runs unless it is set: where the system allows `all`, less than `usual` if documents and answers, with `beside`, would
/// not fit beside that.
fn usual_mib(usual: u64, all: Option<u64>, beside: u64) -> u64 {
    all.map_or(usual, |all| usual.min(all.saturating_sub(beside).max(all / 4).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_answers_have_room_beside_the_usual_memory_of_runs() {
        let usual = |all: u64| usual_mib(all * 3 / 4, Some(all), 576);
        assert_eq!([16_384, 4_096, 2_304].map(usual), [12_288, 3_072, 1_728], "three quarters");
        assert_eq!([2_048, 1_024, 600].map(usual), [1_472, 448, 150], "what is left, but a quarter at least");
        assert_eq!(usual_mib(4_096, None, 576), 4_096);
    }
}
