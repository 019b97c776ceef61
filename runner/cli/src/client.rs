//! A server of somebody's, by HTTP.

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use penstock_web::{DocumentFault, Problem};
use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::http::{Method, Request, Uri};

use crate::announced;
use crate::args::ServerArgs;
use crate::input::{bad, unreadable};

/// Until a server answers, once it has all of a request, and until something more of a body goes to it or comes from it. A stop
/// takes up to three seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Until a connection stands.
const CONNECT: Duration = Duration::from_secs(10);
/// From so many bytes on a server is asked first whether it takes them: it may not read what it refuses.
const ASKED_FIRST: usize = 1 << 20;
/// The most that an answer may have.
const MAX_ANSWER: u64 = 256 << 20;

/// A server, and what opens it.
pub(crate) struct Client {
    agent: Agent,
    base: String,
    token: Option<String>,
}

/// A path with the parameters that are given, as words.
pub(crate) fn query(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escaped = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    let given = parameters.iter().filter_map(|(name, word)| {
        Some(format!("{name}={}", word.as_ref()?.bytes().map(escaped).collect::<String>()))
    });
    let given: Vec<String> = given.collect();
    let separator = if given.is_empty() { "" } else { "?" };
    format!("{path}{separator}{}", given.join("&"))
}

/// Something to be sent: its type and its bytes.
pub(crate) type Content<'a> = (&'static str, &'a [u8]);

impl Client {
    pub(crate) fn new(args: &ServerArgs) -> Result<Self> {
        let base = args.server.trim_end_matches('/').to_owned();
        let wrong = |reason: &str| {
            bad(format!("`--server`: {reason}; wanted an address such as `http://127.0.0.1:7700`"))
        };
        let address: Uri = base.parse().map_err(|_| wrong("it is no address"))?;
        if !matches!(address.scheme_str(), Some("http" | "https")) {
            return Err(wrong("it begins with neither `http://` nor `https://`"));
        }
        if address.authority().is_none_or(|authority| authority.as_str().contains('@')) {
            return Err(wrong("it has no host, or a user or a password, which do not belong there"));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_per_read(Some(PATIENCE))
            .timeout_per_write(Some(PATIENCE))
            .user_agent(concat!("penstock/", env!("CARGO_PKG_VERSION")));
        let token = match token(args.token_file.as_deref())? {
            None => announced_token(&address)?,
            given => given,
        };
        Ok(Self { agent: config.build().new_agent(), base, token })
    }

    /// The page of the same path, for people.
    pub(crate) fn page(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.ask(Method::GET, path, None, &[])
    }

    /// Asks, and reads the answer. A problem that the server tells becomes an error with all its faults.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content: Option<Content<'_>>,
        headers: &[(&str, &str)],
    ) -> Result<T> {
        let mut request = Request::builder().method(method).uri(format!("{}/api/v1{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (kind, bytes) = content.unwrap_or(("application/json", b""));
        if content.is_some() {
            request = request.header("content-type", kind);
        }
        if bytes.len() > ASKED_FIRST {
            request = request.header("expect", "100-continue");
        }
        let sent = self.agent.run(request.body(bytes).map_err(|error| bad(error.to_string()))?);
        let mut answer = sent.map_err(|error| {
            anyhow!("no server answers at {}: {error}; start one with `penstock serve`, or name it with `--server`", self.base)
        })?;
        let bytes = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec();
        let bytes = bytes.with_context(|| format!("the answer of {} broke off", self.base))?;
        if !answer.status().is_success() {
            return Err(refusal(answer.status().as_u16(), &bytes));
        }
        let bytes = if bytes.is_empty() { b"null" } else { &*bytes };
        serde_json::from_slice(bytes).with_context(|| format!("{} is no server of this version", self.base))
    }
}

/// What stands in the file that the user names, or else in the environment.
fn token(file: Option<&Path>) -> Result<Option<String>> {
    match file.filter(|file| !file.as_os_str().is_empty()) {
        Some(file) => in_file(file),
        None => env::var("PENSTOCK_TOKEN").map_or(Ok(None), |token| checked(&token)),
    }
}

/// Token of a server that this user runs at the address. It goes to a number alone: a name may lead elsewhere.
fn announced_token(address: &Uri) -> Result<Option<String>> {
    let usual = if address.scheme_str() == Some("https") { 443 } else { 80 };
    let host = address.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let Ok(ip) = host.parse() else { return Ok(None) };
    let address = SocketAddr::new(ip, address.port_u16().unwrap_or(usual));
    announced::token_file(address).map_or(Ok(None), |file| in_file(&file))
}

fn in_file(file: &Path) -> Result<Option<String>> {
    checked(&fs::read_to_string(file).map_err(|error| unreadable(file, &error))?)
}

fn checked(token: &str) -> Result<Option<String>> {
    let token = token.trim();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad("the token has characters other than visible ASCII"));
    }
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

/// What a server refuses, in its words.
fn refusal(status: u16, bytes: &[u8]) -> anyhow::Error {
    let Ok(problem) = serde_json::from_slice::<Problem>(bytes) else {
        return anyhow!("the server answered with status {status}, and not as Penstock does");
    };
    let mut told = format!("{}: {}", problem.title, problem.detail);
    for DocumentFault { pointer, detail } in &problem.errors {
        told.push_str(&format!("\n  {pointer}: {detail}"));
    }
    match status {
        // The same may be done at another time: nothing is wrong with what the user gave.
        408 | 409 | 429 | 500.. => anyhow!(told),
        401 => bad(format!(
            "{told}\n  name the file that holds it with `--token-file`, or set PENSTOCK_TOKEN; the token of your own server on this \
                 machine is found without, by a numeric address such as `http://127.0.0.1:7700`"
        )),
        _ => bad(told),
    }
}
