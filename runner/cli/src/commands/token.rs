//! Tokens of a server, and sign-in links.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use penstock_types::spec::Name;
use penstock_types::text::shown;
use penstock_web::TokenFile;
use serde::Deserialize;
use ureq::http::Method;

use crate::args::{DataArgs, ServerArgs, TokenAddArgs, TokenRemoveArgs};
use crate::client::Client;
use crate::commands::serve::data_dir;
use crate::input::bad;
use crate::report::table;
use crate::stores;
use crate::text::say;

/// Maximum value of `--expires`, about 100 years.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

#[derive(Deserialize)]
struct SignInCode {
    code: String,
}

pub(crate) fn link(args: &ServerArgs) -> Result<()> {
    let client = Client::new(args)?;
    let SignInCode { code } = client.ask(Method::POST, "/session/code", None, &[])?;
    Ok(say(&client.page(&address(&code)))?)
}

/// Path of a page that signs a browser in. A browser does not send the part after `#` to the server, which keeps the code out of
/// logs.
pub(crate) fn address(code: &str) -> String {
    format!("/#sign-in={code}")
}

pub(crate) fn add(args: &TokenAddArgs) -> Result<()> {
    if args.expires.is_some_and(|time| time > LONGEST) {
        return Err(bad("`--expires` must be at most 100 years"));
    }
    let expires = args.expires.map(|time| SystemTime::now() + time);
    let stores = (!args.stores.is_empty()).then(|| args.stores.iter().cloned().collect());
    let add = |file: &mut TokenFile| file.add(args.name.clone(), args.role, stores, expires);
    Ok(say(&TokenFile::change(&folder(&args.data)?, add)?)?)
}

pub(crate) fn remove(args: &TokenRemoveArgs) -> Result<()> {
    if TokenFile::change(&folder(&args.data)?, |file| Ok(file.remove(&args.name)))? {
        return Ok(());
    }
    let name = shown(&args.name);
    Err(bad(format!("no token is named `{name}`; list tokens with `penstock token list`")))
}

pub(crate) fn list(args: &DataArgs) -> Result<()> {
    let file = TokenFile::read(&folder(args)?)?;
    if file.tokens.is_empty() {
        return Ok(say("none yet")?);
    }
    let rows = file.tokens.iter().map(|token| {
        let stores = token.stores.as_ref();
        let stores = stores.map(|names| names.iter().map(Name::as_str).collect::<Vec<_>>().join(", "));
        vec![
            token.name.to_string(),
            token.role.name().to_owned(),
            stores.unwrap_or("all".to_owned()),
            token.expires.clone().unwrap_or("never".to_owned()),
        ]
    });
    Ok(say(&table(&["token", "role", "stores", "expires"], rows))?)
}

fn folder(args: &DataArgs) -> Result<PathBuf> {
    data_dir(args.data_dir.as_deref(), &stores::config(args.config.as_deref())?)
}
