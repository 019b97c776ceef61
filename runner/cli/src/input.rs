//! Document, stores and modules that the command line names, and errors for the faults in them.

use std::collections::BTreeSet;
use std::env;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use penstock_pipeline::{Modules, Outlets, Prepared, Runner, StdModule};
use penstock_types::amount::plural;
use penstock_types::config::GateBounds;
use penstock_types::fault::{FaultKind, SpecFault, listed};
use penstock_types::spec::{self, STD_PREFIX, Spec};
use penstock_wasm::{Sandbox, SandboxSettings};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::args::{DocumentArgs, ModuleArgs, PipelineArgs, StoreArgs};
use crate::commands::compile_module;
use crate::stores;

/// Invalid input from the user; the process ends with exit code 2.
#[derive(Debug)]
pub(crate) struct BadInput(String);

/// A pipeline document with the changes of the command line applied.
#[derive(Debug)]
pub(crate) struct Document {
    /// Source of the document, for messages.
    pub(crate) origin: String,
    pub(crate) spec: Spec,
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

pub(crate) fn bad(message: impl Into<String>) -> anyhow::Error {
    BadInput(message.into()).into()
}

/// Error for a document, with all its faults.
pub(crate) fn faults(origin: &str, faults: &[SpecFault]) -> anyhow::Error {
    all(&format!("{origin} cannot run as written"), faults)
}

/// Error for a configuration, with all its faults.
pub(crate) fn unusable(origin: &str, faults: &[SpecFault]) -> anyhow::Error {
    all(&format!("{origin} is not valid as written"), faults)
}

fn all(what: &str, faults: &[SpecFault]) -> anyhow::Error {
    let count = plural(faults.len() as u64, "fault");
    let lines: Vec<String> = faults.iter().map(|fault| format!("  {}", fault.clone().hinted(hint))).collect();
    bad(format!("{what}, {count}:\n{}", lines.join("\n")))
}

/// Option of the command line that would mend a fault; `None` if there is none.
fn hint(kind: &FaultKind) -> Option<String> {
    Some(match kind {
        FaultKind::UnknownStore(name) => format!("add the store with `--store {name}=DIR`"),
        // `--module` maps names only, not digests and not the names of the program's modules.
        FaultKind::UnknownModule(name) if !name.starts_with("sha256:") && !name.starts_with(STD_PREFIX) => {
            format!("add the module with `--module {name}=PATH`")
        }
        FaultKind::NoIndex => {
            "set `index` to the key of a JSON array of keys, as `penstock index create` writes it".to_owned()
        }
        FaultKind::NoOutput => "set one with `--out DIR`, or use `skip`".to_owned(),
        FaultKind::NeedsServer => {
            "submit the pipeline to a server (`penstock serve`, `penstock submit`), or use `discard`, `simulate` or \
             `files`"
                .to_owned()
        }
        FaultKind::UnknownModule(_) | FaultKind::MissingField(_) | FaultKind::Other => return None,
    })
}

/// Runs `work` with a runtime for storage reads. Afterwards, the runtime ends without waiting for reads that hang in the
/// operating system.
pub(crate) fn with_runtime<T>(work: impl FnOnce(&Runtime) -> Result<T>) -> Result<T> {
    let runtime = Builder::new_multi_thread().thread_name("io").enable_all().build();
    let runtime = runtime.context("cannot start the I/O threads")?;
    let done = work(&runtime);
    runtime.shutdown_background();
    done
}

/// Applies the `--set` flags to a document.
pub(crate) fn change(document: &mut Value, settings: &[String]) -> Result<()> {
    let mut set = |setting: &String| {
        let (pointer, value) = spec::parse_setting(setting)?;
        spec::set(document, &pointer, value)
    };
    let broken: Vec<SpecFault> = settings.iter().filter_map(|setting| set(setting).err()).collect();
    if broken.is_empty() { Ok(()) } else { Err(faults("the document with what `--set` changes", &broken)) }
}

impl Document {
    /// Reads a document, applies the changes of the command line, and prepares the document with its stores and modules for a run
    /// with the given outlets.
    pub(crate) fn prepared(
        args: &PipelineArgs,
        runtime: &Runtime,
        outlets: Outlets,
    ) -> Result<(Self, Prepared)> {
        let (origin, document) = Self::document(&args.document)?;
        Self::prepare(origin, document, args, runtime, outlets)
    }

    /// Prepares the document from `origin` with the stores and modules of the command line.
    pub(crate) fn prepare(
        origin: String,
        document: Value,
        args: &PipelineArgs,
        runtime: &Runtime,
        outlets: Outlets,
    ) -> Result<(Self, Prepared)> {
        let spec = Spec::from_value(document).map_err(|found| faults(&origin, &found))?;
        let document = Self { origin, spec };
        let prepared =
            document.runner(&args.stores, &args.modules, runtime)?.prepare(&document.spec, outlets);
        let prepared = prepared.map_err(|found| faults(&document.origin, &found))?;
        Ok((document, prepared))
    }

    /// Reads the document as unchecked JSON. Returns a name of its source for messages, and the JSON value.
    pub(crate) fn document(args: &DocumentArgs) -> Result<(String, Value)> {
        let origin = if is_stdin(&args.file) {
            "standard input".to_owned()
        } else {
            format!("`{}`", args.file.display())
        };
        let mut document = spec::parse(&bytes(&args.file)?).map_err(|found| faults(&origin, &found))?;
        change(&mut document, &args.settings)?;
        if let Some(threads) = args.threads {
            spec::set(&mut document, "/threads", threads.into())
                .map_err(|fault| faults(&origin, &[fault]))?;
        }
        Ok((origin, document))
    }

    /// Opens the stores and loads the modules named on the command line.
    pub(crate) fn runner(
        &self,
        stores: &StoreArgs,
        modules: &ModuleArgs,
        runtime: &Runtime,
    ) -> Result<Runner> {
        let config = stores::config(stores.config.as_deref())?;
        let stores = stores::open(stores, &config)?;
        let needs_cache = !modules.named.is_empty() || !StdModule::named_in(&self.spec).is_empty();
        let settings = SandboxSettings {
            // A folder that the user names must be usable. If the default folder is not usable, modules are compiled at every start.
            cache_dir: needs_cache.then(|| cache_folder(modules.cache_dir.as_deref())).flatten(),
            instances: Runner::instances(&self.spec).max(1),
            compiler: compile_module::compiler(&config.limits.compile),
            gate: config.limits.modules.clone(),
            ..SandboxSettings::default()
        };
        let mut loaded = Modules::new(Sandbox::new(settings)?);
        for given in pairs(&modules.named, "--module", "NAME=PATH") {
            let (name, path) = given?;
            if let Some(refusal) = StdModule::refusal(name) {
                return Err(bad(format!("`--module {name}=...`: {refusal}")));
            }
            let code = read_bounded(Path::new(path), config.limits.modules.module_bytes)
                .map_err(|error| bad(format!("the module `{name}` cannot be read at `{path}`: {error}")))?;
            loaded
                .add(name, &code)
                .map_err(|error| bad(format!("the module `{name}` (`{path}`): {error}")))?;
        }
        loaded
            .add_std(&self.spec)
            .map_err(|(name, error)| bad(format!("the module `{name}` of the program: {error}")))?;
        Ok(Runner::new(runtime.handle().clone(), stores, loaded))
    }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads the bytes of a document, at most one byte more than the size limit.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>> {
    let limit = spec::MAX_DOCUMENT_BYTES as u64;
    let read = if is_stdin(path) { bounded(io::stdin(), limit) } else { read_bounded(path, limit) };
    read.map_err(|error| unreadable(path, &error))
}

/// Reads a file, at most one byte more than `limit`.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    bounded(File::open(path)?, limit)
}

fn bounded(reader: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn unreadable(path: &Path, error: &io::Error) -> anyhow::Error {
    bad(format!("cannot read `{}`: {error}", path.display()))
}

/// Splits the values of a flag of the form `NAME=VALUE`, whose names must differ.
pub(crate) fn pairs<'a>(
    given: &'a [String],
    flag: &str,
    form: &str,
) -> impl Iterator<Item = Result<(&'a str, &'a str)>> {
    let mut names = BTreeSet::new();
    given.iter().map(move |given| match given.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => match names.insert(name) {
            true => Ok((name, value)),
            false => Err(bad(format!("`{flag} {name}=...` is given twice; use each name once"))),
        },
        // The value is not printed, because an address may contain a password.
        _ if given.contains("://") => Err(bad(format!("a `{flag}` has no name; use {flag} {form}"))),
        _ => Err(bad(format!("`{flag} {given}` has no name or no value; use {flag} {form}"))),
    })
}

/// Reads the bytes of a module of the program, such as `std/image`, or of a file.
pub(crate) fn std_or_file_bytes(named: &Path, bounds: &GateBounds) -> Result<Vec<u8>> {
    let Some(written) = named.to_str().filter(|written| written.starts_with(STD_PREFIX)) else {
        return module_bytes(named, bounds);
    };
    StdModule::find(written).map(|module| module.bytes().to_vec()).ok_or_else(|| {
        let known = listed(StdModule::all().iter().map(StdModule::name));
        bad(format!("the program has no module `{written}`; its modules: {known}; `./{written}` is a file"))
    })
}

/// Reads the bytes of a module, at most one byte more than the size limit.
pub(crate) fn module_bytes(path: &Path, bounds: &GateBounds) -> Result<Vec<u8>> {
    read_bounded(path, bounds.module_bytes).map_err(|error| unreadable(path, &error))
}

/// Folder of compiled modules: the folder that the user names, or else the default folder.
pub(crate) fn cache_folder(named: Option<&Path>) -> Option<PathBuf> {
    let named = named.filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned);
    named.or_else(|| {
        let usual = own_folder("XDG_CACHE_HOME", ".cache")?;
        match fs::create_dir_all(&usual) {
            Ok(()) => Some(usual),
            Err(error) => {
                tracing::warn!(folder = %usual.display(), %error, "no cache: modules are compiled at every start");
                None
            }
        }
    })
}

/// Folder of Penstock in the folder that the environment variable names, or else in the folder `usual` of the home folder.
pub(crate) fn own_folder(variable: &str, usual: &str) -> Option<PathBuf> {
    let base = env::var_os(variable).filter(|base| !base.is_empty()).map(PathBuf::from);
    Some(base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(usual)))?.join("penstock"))
}
