use std::fs;

use anyhow::Result;
use penstock_server::ModuleUpload;
use ureq::http::Method;

use crate::args::PushArgs;
use crate::client::{Client, query};
use crate::input::unreadable;
use crate::text::say_as;

pub(crate) fn push(args: &PushArgs) -> Result<()> {
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
