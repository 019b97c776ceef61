use anyhow::Result;
use serde::Deserialize;
use ureq::http::Method;

use crate::args::ServerArgs;
use crate::client::Client;
use crate::text::say;

#[derive(Deserialize)]
struct SignInCode {
    code: String,
}

/// Prints a link that signs a browser in.
pub(crate) fn link(args: &ServerArgs) -> Result<()> {
    let client = Client::new(args)?;
    let SignInCode { code } = client.ask(Method::POST, "/session/code", None, &[])?;
    Ok(say(&client.page(&address(&code)))?)
}

/// Address of the page that signs a browser in. What stands behind `#` is sent to no server and stays out of its logs.
pub(crate) fn address(code: &str) -> String {
    format!("/#sign-in={code}")
}
