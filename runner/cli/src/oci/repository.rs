//! Client of one repository: the requests of the distribution protocol that a module needs.

use std::collections::BTreeSet;
use std::io::Read;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use penstock_types::config::RegistryHost;
use penstock_types::text::printable;
use serde::Deserialize;
use ureq::http::request::Builder;
use ureq::http::{Method, Request, Response, Uri};
use ureq::{Agent, Body, Error, SendBody};

use super::credentials::Credentials;
use super::manifest::{Blob, MANIFEST, Manifest, digest};
use super::reference::{Reference, Version, is_loopback};
use super::transfer::{MIN_RATE, Transfer};
use crate::client::{MIN_EXPECT_BYTES, agent, query};
use crate::input::bad;

/// Maximum number of attempts for one request: redirects, and the repetition with credentials.
const MAX_ATTEMPTS: u32 = 5;
/// Maximum size of a manifest, in bytes; registries accept no larger ones.
const MAX_MANIFEST: u64 = 4 << 20;
/// Maximum size of the other responses that are not blobs, in bytes.
const MAX_TEXT: u64 = 1 << 20;
/// Maximum number of bytes that a message shows of a text of the registry.
const MAX_SHOWN: usize = 300;
/// Time limit of a request with its response, without the time for the bytes of a blob.
const REQUEST_TIME: Duration = Duration::from_secs(120);

/// Repository in a registry, with the hosts that the user and the operator allow.
pub(crate) struct Repository<'a> {
    agent: Agent,
    reference: &'a Reference,
    hosts: BTreeSet<RegistryHost>,
    credentials: Option<Credentials>,
    /// Header `Authorization` for the registry, after its first challenge.
    authorization: Option<String>,
}

/// HTTP request to the registry, before redirects and credentials.
struct Ask<'a> {
    method: Method,
    /// Description for messages, such as `the upload`.
    what: &'static str,
    address: String,
    headers: &'a [(&'a str, &'a str)],
    body: &'a [u8],
    /// Number of bytes of the blob that the request sends or receives.
    blob_bytes: u64,
}

/// Problem as a registry reports it.
#[derive(Deserialize)]
struct Problem {
    errors: Vec<ProblemDetail>,
}

#[derive(Deserialize)]
struct ProblemDetail {
    code: String,
    #[serde(default)]
    message: String,
}

/// Token of a registry's service of tokens, under one of two names or both.
#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl<'a> Repository<'a> {
    /// Opens the repository without a request. Refuses a host that is not in `hosts`.
    pub(crate) fn open(reference: &'a Reference, hosts: BTreeSet<RegistryHost>) -> Result<Self> {
        let (agent, host) = (agent(), reference.host.as_str());
        let opened = Self { agent, reference, hosts, credentials: None, authorization: None };
        opened.admit(&opened.address(""))?;
        Ok(Self { credentials: Credentials::find(host)?, ..opened })
    }

    /// Receives the manifest that the reference names, and its digest.
    pub(crate) fn manifest(&mut self) -> Result<(Manifest, String)> {
        let version = self.reference.version.to_string();
        let headers = [("accept", MANIFEST)];
        let ask =
            self.ask(Method::GET, "the request for the manifest", &format!("manifests/{version}"), &headers);
        let mut answer = self.send_expecting(&ask, 200)?;
        let bytes = answer.body_mut().with_config().limit(MAX_MANIFEST).read_to_vec();
        let bytes = bytes.with_context(|| format!("the manifest of `{}` cannot be read", self.reference))?;
        let found = digest(&bytes);
        if matches!(self.reference.version, Version::Digest(_)) && found != version {
            bail!("the registry sent another manifest than `{}`: its digest is {found}", self.reference);
        }
        let manifest = serde_json::from_slice(&bytes).map_err(|error| self.no_module(&error.to_string()))?;
        Ok((manifest, found))
    }

    /// Receives the module of an image, at most `max_bytes` large, and compares its bytes with their size and digest.
    pub(crate) fn module(&mut self, manifest: &Manifest, max_bytes: u64) -> Result<Vec<u8>> {
        let Blob { digest: wanted, size, .. } =
            manifest.module().map_err(|reason| self.no_module(&reason.to_string()))?;
        if *size > max_bytes {
            return Err(bad(format!(
                "the module of `{}` has {size} bytes, at most {max_bytes} are allowed (`limits.modules.module_bytes`)",
                self.reference
            )));
        }
        let ask = self.ask(Method::GET, "the request for the module", &format!("blobs/{wanted}"), &[]);
        let mut answer = self.send_expecting(&Ask { blob_bytes: *size, ..ask }, 200)?;
        let body = answer.body_mut().as_reader();
        let mut bytes = Vec::new();
        // One byte more shows that the blob is longer; the rest is not read.
        let read = Transfer::new(body, "pulling", *size).take(size + 1).read_to_end(&mut bytes);
        read.with_context(|| {
            format!("the transfer of the module ended after {} of {size} bytes", bytes.len())
        })?;
        match bytes.len() as u64 {
            more if more > *size => bail!("the registry sent more than the {size} bytes of the module"),
            less if less < *size => bail!("the registry sent {less} of the {size} bytes of the module"),
            _ => {}
        }
        let found = digest(&bytes);
        ensure!(found == *wanted, "the registry sent other bytes than `{wanted}`: their digest is {found}");
        Ok(bytes)
    }

    /// Sends a blob, unless the repository has it already.
    pub(crate) fn push_blob(&mut self, bytes: &[u8]) -> Result<()> {
        let digest = digest(bytes);
        let look = self.ask(Method::HEAD, "the request for a blob", &format!("blobs/{digest}"), &[]);
        match self.send(&look)? {
            found if found.status() == 200 => return Ok(()),
            missing if missing.status() == 404 => {}
            other => return Err(self.refusal(&look, other)),
        }
        let begin = self.ask(Method::POST, "the start of an upload", "blobs/uploads/", &[]);
        let begun = self.send_expecting(&begin, 202)?;
        let address = self.location(&begin.address, &begun)?;
        let separator = if address.contains('?') { '&' } else { '?' };
        let address = format!("{address}{separator}digest={digest}");
        let headers = &[("content-type", "application/octet-stream")];
        let upload = self.ask(Method::PUT, "the upload", "", headers);
        let upload = Ask { address, body: bytes, blob_bytes: bytes.len() as u64, ..upload };
        self.send_expecting(&upload, 201).map(drop)
    }

    /// Sends the manifest of blobs that the repository has, and points the tag at it.
    pub(crate) fn push_manifest(&mut self, tag: &str, manifest: &[u8]) -> Result<()> {
        let headers = [("content-type", MANIFEST)];
        let ask = self.ask(Method::PUT, "the upload of the manifest", &format!("manifests/{tag}"), &headers);
        self.send_expecting(&Ask { body: manifest, ..ask }, 201).map(drop)
    }

    fn no_module(&self, reason: &str) -> anyhow::Error {
        bad(format!("`{}` is not a module: {}", self.reference, printable(reason, MAX_SHOWN)))
    }

    fn host(&self) -> &str {
        self.reference.host.as_str()
    }

    /// Address of a part of the repository.
    fn address(&self, path: &str) -> String {
        let (host, name) = (self.host(), &self.reference.name);
        let scheme = if is_loopback(host) { "http" } else { "https" };
        format!("{scheme}://{host}/v2/{name}/{path}")
    }

    fn ask<'b>(
        &self,
        method: Method,
        what: &'static str,
        path: &str,
        headers: &'b [(&'b str, &'b str)],
    ) -> Ask<'b> {
        Ask { method, what, address: self.address(path), headers, body: &[], blob_bytes: 0 }
    }

    fn send_expecting(&mut self, ask: &Ask<'_>, status: u16) -> Result<Response<Body>> {
        let answer = self.send(ask)?;
        if answer.status() == status { Ok(answer) } else { Err(self.refusal(ask, answer)) }
    }

    /// Sends a request, again with credentials if the registry asks for them. Only requests that read follow redirects, and only
    /// to hosts that are allowed.
    fn send(&mut self, ask: &Ask<'_>) -> Result<Response<Body>> {
        let (mut address, mut challenged) = (ask.address.clone(), false);
        let reads = matches!(ask.method, Method::GET | Method::HEAD);
        for _ in 0..MAX_ATTEMPTS {
            // Credentials stay with the registry: a redirect often leads to a storage service with a signed address.
            let own = self.admit(&address)? == self.host();
            let authorization = self.authorization.as_deref().filter(|_| own);
            let answer = self.run(ask, &address, authorization)?;
            match answer.status().as_u16() {
                401 if own && !challenged => {
                    challenged = true;
                    self.authorization = Some(self.authorize(&answer)?);
                }
                301 | 302 | 303 | 307 | 308 if reads => address = self.location(&address, &answer)?,
                _ => return Ok(answer),
            }
        }
        bail!("`{}` redirects {} too often", self.host(), ask.what)
    }

    fn run(&self, ask: &Ask<'_>, address: &str, authorization: Option<&str>) -> Result<Response<Body>> {
        let mut request = Request::builder().method(&ask.method).uri(address);
        let headers = ask.headers.iter().copied();
        for (name, value) in headers.chain(authorization.map(|value| ("authorization", value))) {
            request = request.header(name, value);
        }
        let time = REQUEST_TIME + Duration::from_secs(ask.blob_bytes / MIN_RATE);
        let answer = if ask.body.is_empty() {
            self.run_with(request, SendBody::none(), time)
        } else {
            request = request.header("content-length", ask.body.len());
            if ask.body.len() > MIN_EXPECT_BYTES {
                request = request.header("expect", "100-continue");
            }
            let mut reader = Transfer::new(ask.body, "pushing", ask.body.len() as u64);
            self.run_with(request, SendBody::from_reader(&mut reader), time)
        };
        answer.with_context(|| format!("no response of `{}` to {}", self.host(), ask.what))
    }

    fn run_with(
        &self,
        request: Builder,
        body: SendBody<'_>,
        time: Duration,
    ) -> Result<Response<Body>, Error> {
        let request = self.agent.configure_request(request.body(body)?).timeout_global(Some(time)).build();
        self.agent.run(request)
    }

    /// Host of an address, if it is allowed. Messages contain no more of the address than that: it may be signed.
    fn admit(&self, address: &str) -> Result<String> {
        let registry = self.host();
        let uri: Option<Uri> = address.parse().ok();
        let host = uri.as_ref().and_then(Uri::authority).map(|host| host.as_str().to_ascii_lowercase());
        let (Some(uri), Some(host)) = (&uri, host.filter(|host| !host.contains('@'))) else {
            bail!("`{registry}` refers to an invalid address");
        };
        let from =
            if host == registry { String::new() } else { format!("`{registry}` refers to `{host}`: ") };
        if !self.hosts.iter().any(|allowed| allowed.as_str() == host) {
            return Err(bad(format!(
                "{from}`{host}` is not a registry that this command may send requests to; allow it with `--registry {host}`, or \
                 in `registries` of the configuration"
            )));
        }
        if uri.scheme_str() != Some("https") && !is_loopback(&host) {
            return Err(bad(format!("{from}only this machine is reached over `http://`")));
        }
        Ok(host)
    }

    /// Address in the header `Location`, which may be a path.
    fn location(&self, base: &str, answer: &Response<Body>) -> Result<String> {
        let location = answer.headers().get("location").and_then(|location| location.to_str().ok());
        joined(base, location.unwrap_or_default())
            .ok_or_else(|| anyhow!("`{}` refers to an invalid address", self.host()))
    }

    /// Header `Authorization` that answers a challenge.
    fn authorize(&self, answer: &Response<Body>) -> Result<String> {
        let challenges = answer.headers().get_all("www-authenticate").iter();
        let challenges: Vec<_> = challenges.filter_map(|challenge| challenge.to_str().ok()).collect();
        let challenge = |wanted: &str| {
            let mut split =
                challenges.iter().map(|challenge| challenge.split_once(' ').unwrap_or((challenge, "")));
            split.find(|(scheme, _)| scheme.eq_ignore_ascii_case(wanted)).map(|(_, parameters)| parameters)
        };
        match (challenge("bearer"), challenge("basic"), &self.credentials) {
            (Some(_), _, Some(Credentials::Bearer(token))) => Ok(format!("Bearer {token}")),
            (Some(parameters), ..) => Ok(format!("Bearer {}", self.token(parameters)?)),
            (None, Some(_), Some(Credentials::Basic(pair))) => Ok(format!("Basic {pair}")),
            _ => Err(bad(format!("`{}` requires credentials; {}", self.host(), self.login()))),
        }
    }

    /// Requests a token from the service that a challenge names.
    fn token(&self, challenge: &str) -> Result<String> {
        let named = |name: &str| parameter(challenge, name);
        let realm = named("realm").unwrap_or_default();
        let parameters = query("", &[("service", named("service")), ("scope", named("scope"))]);
        let parameters = if realm.contains('?') { parameters.replacen('?', "&", 1) } else { parameters };
        let address = format!("{realm}{parameters}");
        self.admit(&address)?;
        let authorization = match &self.credentials {
            Some(Credentials::Basic(pair)) => Some(format!("Basic {pair}")),
            _ => None,
        };
        let ask = self.ask(Method::GET, "the request for a token", "", &[]);
        let mut answer = self.run(&ask, &address, authorization.as_deref())?;
        if answer.status() != 200 {
            return Err(self.refusal(&ask, answer));
        }
        let bytes = answer.body_mut().with_config().limit(MAX_TEXT).read_to_vec();
        // The cause is left out: it may repeat a part of the token.
        let token = bytes.ok().and_then(|bytes| serde_json::from_slice::<TokenAnswer>(&bytes).ok());
        let token = token.and_then(|TokenAnswer { token, access_token }| token.or(access_token));
        token.with_context(|| format!("the service of tokens of `{}` sent no token", self.host()))
    }

    fn login(&self) -> String {
        format!(
            "run `docker login {}` (without a credential helper), or set PENSTOCK_REGISTRY_USER and \
             PENSTOCK_REGISTRY_PASSWORD, or PENSTOCK_REGISTRY_TOKEN",
            self.host()
        )
    }

    fn refusal(&self, ask: &Ask<'_>, mut answer: Response<Body>) -> anyhow::Error {
        let status = answer.status().as_u16();
        let bytes = answer.body_mut().with_config().limit(MAX_TEXT).read_to_vec().unwrap_or_default();
        let mut told = format!("`{}` answered {} with status {status}", self.host(), ask.what);
        if let Ok(Problem { errors }) = serde_json::from_slice(&bytes)
            && let Some(ProblemDetail { code, message }) = errors.first()
        {
            told += &printable(&format!(": {code} {message}"), MAX_SHOWN);
        }
        match status {
            401 | 403 => bad(format!("{told}; {}", self.login())),
            408 | 429 | 500.. => anyhow!(told),
            _ => bad(told),
        }
    }
}

/// Address that `location` names, as a full address or as a path on the host of `base`.
fn joined(base: &str, location: &str) -> Option<String> {
    if location.starts_with("https://") || location.starts_with("http://") {
        return Some(location.to_owned());
    }
    let host = base.find("://")? + "://".len();
    let end = base[host..].find('/').map_or(base.len(), |slash| host + slash);
    let is_path = location.starts_with('/') && !location.starts_with("//");
    is_path.then(|| format!("{}{location}", &base[..end]))
}

/// Value of a parameter of a challenge: `realm="...",service="..."`.
fn parameter<'a>(challenge: &'a str, wanted: &str) -> Option<&'a str> {
    let mut rest = challenge;
    loop {
        let (name, after) = rest.split_once("=\"")?;
        let (value, next) = after.split_once('"')?;
        if name.trim_matches([' ', ',']).eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_addresses_or_paths() {
        let base = "https://host:5000/v2/a/blobs/uploads/";
        assert_eq!(joined(base, "/v2/x?y=1").unwrap(), "https://host:5000/v2/x?y=1");
        assert_eq!(joined(base, "https://other/x").unwrap(), "https://other/x");
        for location in ["", "x", "//other/x", "file:///etc/passwd"] {
            assert_eq!(joined(base, location), None, "{location}");
        }
    }

    #[test]
    fn parameters_of_a_challenge_may_contain_commas() {
        let challenge = r#"realm="https://auth/token",Service="a b", scope="repository:a/b:pull,push""#;
        assert_eq!(parameter(challenge, "realm"), Some("https://auth/token"));
        assert_eq!(parameter(challenge, "service"), Some("a b"));
        assert_eq!(parameter(challenge, "scope"), Some("repository:a/b:pull,push"));
        assert_eq!(parameter(challenge, "error"), None);
        assert_eq!(parameter("realm=\"open", "realm"), None);
    }
}
