//! HTTP client of a Penstock server.

use std::env;
use std::fs;
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

/// Timeout for a response to a complete request, and for a pause within a request body or a response body. It exceeds the three
/// seconds that stopping a run may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Body size, in bytes, from which the client sends `Expect: 100-continue`: a server may close the connection instead of reading
/// a body that it refuses.
pub(crate) const MIN_EXPECT_BYTES: usize = 1 << 20;
/// Maximum size of a response, in bytes.
const MAX_ANSWER: u64 = 256 << 20;

/// Connection settings of a server, with its token.
pub(crate) struct Client {
    agent: Agent,
    base: String,
    token: Option<String>,
}

/// HTTP client that follows no redirects and never waits without a limit.
pub(crate) fn agent() -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_recv_response(Some(RESPONSE_TIMEOUT))
        .timeout_per_read(Some(RESPONSE_TIMEOUT))
        .timeout_per_write(Some(RESPONSE_TIMEOUT))
        .user_agent(concat!("penstock/", env!("CARGO_PKG_VERSION")));
    config.build().new_agent()
}

/// Path with a query string of the parameters that have a value.
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

/// Request body: its content type and its bytes.
pub(crate) type Content<'a> = (&'static str, &'a [u8]);

impl Client {
    pub(crate) fn new(args: &ServerArgs) -> Result<Self> {
        let base = args.server.trim_end_matches('/').to_owned();
        let wrong = |reason: &str| {
            bad(format!("`--server`: {reason}; use an address such as `http://127.0.0.1:7700`"))
        };
        let address: Uri = base.parse().map_err(|_| wrong("invalid address"))?;
        if !matches!(address.scheme_str(), Some("http" | "https")) {
            return Err(wrong("the address starts with neither `http://` nor `https://`"));
        }
        if address.authority().is_none_or(|authority| authority.as_str().contains('@')) {
            return Err(wrong("the address has no host, or contains a user or a password"));
        }
        let token = match token(args.token_file.as_deref())? {
            None => announced::token_file(&address).map_or(Ok(None), |file| in_file(&file))?,
            given => given,
        };
        Ok(Self { agent: agent(), base, token })
    }

    /// Address of the web page with the same path.
    pub(crate) fn page(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.ask(Method::GET, path, None, &[])
    }

    /// Sends a request and reads the response. If the server responds with a problem document, the error contains all faults in
    /// it.
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
        if bytes.len() > MIN_EXPECT_BYTES {
            request = request.header("expect", "100-continue");
        }
        let sent = self.agent.run(request.body(bytes).map_err(|error| bad(error.to_string()))?);
        let mut answer = sent.map_err(|error| {
            anyhow!("no response from a server at {}: {error}; start one with `penstock serve`, or give its address with `--server`", self.base)
        })?;
        let bytes = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec();
        let bytes = bytes.with_context(|| format!("the response of {} is incomplete", self.base))?;
        if !answer.status().is_success() {
            return Err(refusal(answer.status().as_u16(), &bytes));
        }
        let bytes = if bytes.is_empty() { b"null" } else { &*bytes };
        serde_json::from_slice(bytes)
            .with_context(|| format!("{} is not a Penstock server of this version", self.base))
    }
}

/// Token from the file that the user named, or else from the environment.
fn token(file: Option<&Path>) -> Result<Option<String>> {
    match file.filter(|file| !file.as_os_str().is_empty()) {
        Some(file) => in_file(file),
        None => env::var("PENSTOCK_TOKEN").map_or(Ok(None), |token| checked(&token)),
    }
}

fn in_file(file: &Path) -> Result<Option<String>> {
    checked(&fs::read_to_string(file).map_err(|error| unreadable(file, &error))?)
}

pub(crate) fn checked(token: &str) -> Result<Option<String>> {
    let token = token.trim();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad("the token contains characters other than visible ASCII"));
    }
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

fn refusal(status: u16, bytes: &[u8]) -> anyhow::Error {
    let Ok(problem) = serde_json::from_slice::<Problem>(bytes) else {
        return anyhow!("the server returned status {status} without a Penstock error");
    };
    let mut told = format!("{}: {}", problem.title, problem.detail);
    for DocumentFault { pointer, detail } in &problem.errors {
        told.push_str(&format!("\n  {pointer}: {detail}"));
    }
    match status {
        // Not an error of the user's input: a later attempt may succeed.
        408 | 409 | 429 | 500.. => anyhow!(told),
        401 => bad(format!(
            "{told}\n  name the token file with `--token-file`, or set PENSTOCK_TOKEN; the token of your own server on this \
                 machine is found without either, by a numeric address such as `http://127.0.0.1:7700`"
        )),
        _ => bad(told),
    }
}
