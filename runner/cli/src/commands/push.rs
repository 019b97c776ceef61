use std::fs;

use anyhow::Result;
use penstock_server::ModuleUpload;
use ureq::http::Method;

use crate::COMPLETED;
use crate::args::PushArgs;
use crate::client::{Client, query};
use crate::input::bad;
use crate::text::say;

/// Uploads a module.
pub(crate) fn push(args: &PushArgs) -> Result<u8> {
    let path = args.module.display();
    // All of it: how large a module may be is the server's to say.
    let bytes = fs::read(&args.module).map_err(|error| bad(format!("cannot read `{path}`: {error}")))?;
    let client = Client::new(&args.server)?;
    let address = query("/modules", &[("alias", args.alias.as_deref())]);
    let uploaded: ModuleUpload =
        client.ask(Method::POST, &address, Some(("application/wasm", &bytes)), &[])?;
    if args.json {
        say(&serde_json::to_string_pretty(&uploaded)?)?;
        return Ok(COMPLETED);
    }
    let version = &uploaded.version;
    let known = if uploaded.created { "" } else { " (the same bytes were there already)" };
    let mut told = format!("{}@{} {}{known}", version.name, version.version, version.report.digest);
    for alias in &version.aliases {
        told.push_str(&format!("\n{}@{alias} means it", version.name));
    }
    told.push_str(&format!("\n{}", client.page(&format!("/modules/{}/{}", version.name, version.version))));
    say(&told)?;
    Ok(COMPLETED)
}
