use std::fs;

use anyhow::Result;
use penstock_server::ModuleUpload;
use ureq::http::Method;

use crate::COMPLETED;
use crate::args::PushArgs;
use crate::client::Client;
use crate::input::bad;
use crate::text::say;

/// Uploads a module.
pub(crate) fn push(args: &PushArgs) -> Result<u8> {
    let path = args.module.display();
    // All of it: how large a module may be is the server's to say.
    let bytes = fs::read(&args.module).map_err(|error| bad(format!("cannot read `{path}`: {error}")))?;
    let client = Client::new(&args.server)?;
    let address = match &args.alias {
        Some(alias) => format!("/modules?alias={}", encoded(alias)),
        None => "/modules".to_owned(),
    };
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

/// A word as a part of an address.
pub(crate) fn encoded(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    word.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
