//! `penstock push`: uploads a module to a server or to a registry.

use std::fs;

use anyhow::Result;
use penstock_server::ModuleUpload;
use penstock_types::config::CompileBounds;
use penstock_wasm::inspect;
use ureq::http::Method;

use crate::args::PushArgs;
use crate::client::{Client, query};
use crate::commands::compile_module;
use crate::commands::pull::Transferred;
use crate::input::{bad, module_bytes, unreadable};
use crate::oci::{Manifest, Reference, Repository, Version, config, digest};
use crate::stores;
use crate::text::say_as;

pub(crate) fn push(args: &PushArgs) -> Result<()> {
    if let Some(reference) = &args.reference {
        return push_to_registry(args, reference);
    }
    // The whole file is read without a limit, because the server enforces the limit of size.
    let bytes = fs::read(&args.module).map_err(|error| unreadable(&args.module, &error))?;
    let client = Client::new(&args.server)?;
    let address = query("/modules", &[("alias", args.alias.as_deref())]);
    let uploaded: ModuleUpload =
        client.ask(Method::POST, &address, Some(("application/wasm", &bytes)), &[])?;
    say_as(args.json, &uploaded, |uploaded| in_words(&client, uploaded))
}

fn in_words(client: &Client, uploaded: &ModuleUpload) -> String {
    let version = &uploaded.version;
    let known = if uploaded.created { "" } else { " (the server already had these bytes)" };
    let mut told = format!("{}@{} {}{known}", version.name, version.version, version.report.digest);
    for alias in &version.aliases {
        told.push_str(&format!("\n{}@{alias} is this version", version.name));
    }
    told + "\n" + &client.page(&format!("/modules/{}/{}", version.name, version.version))
}

fn push_to_registry(args: &PushArgs, reference: &str) -> Result<()> {
    let reference = Reference::read(reference).map_err(bad)?;
    let Version::Tag(tag) = &reference.version else {
        return Err(bad(
            "a module is pushed to a tag, because its digest follows from its bytes; use `oci://host/name:tag`",
        ));
    };
    let operator = stores::config(args.registries.config.as_deref())?;
    let mut repository = Repository::open(&reference, args.registries.allowed(&operator))?;
    let bounds = &operator.limits.modules;
    let path = &args.module;
    let module = module_bytes(path, bounds)?;
    // Inspected first, so that no registry gets a module that a server would refuse.
    let compiler = compile_module::compiler(&CompileBounds::default());
    let report = inspect(&module, bounds, &compiler);
    let report = report.map_err(|error| bad(format!("`{}`: {error}", path.display())))?;
    let written = fs::metadata(path).and_then(|metadata| metadata.modified());
    let written = written.map_err(|error| unreadable(path, &error))?;
    let config = serde_json::to_vec(&config(&report, written))?;
    let manifest = serde_json::to_vec(&Manifest::new(&config, &module))?;
    let pushed = Transferred {
        file: path.clone(),
        digest: report.digest,
        size_bytes: report.size_bytes,
        reference: reference.to_string(),
        pinned: reference.pinned(&digest(&manifest)),
    };
    for blob in [&module, &config] {
        repository.push_blob(blob)?;
    }
    repository.push_manifest(tag, &manifest)?;
    say_as(args.json, &pushed, Transferred::in_words)
}
