//! Credentials of registries, from the environment or from docker's configuration.

use std::collections::BTreeMap;
use std::env;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use crate::client::checked;
use crate::input::{bad, read_bounded, unreadable};

/// Maximum size of docker's configuration, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Key of the entry for Docker Hub in docker's configuration, and the host of its registry.
const DOCKER_HUB: (&str, &str) = ("index.docker.io", "registry-1.docker.io");

pub(crate) enum Credentials {
    /// User and password, joined by a colon and encoded in base64.
    Basic(String),
    /// Token that the registry itself accepts.
    Bearer(String),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DockerConfig {
    auths: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    identitytoken: String,
    registrytoken: String,
}

impl Credentials {
    /// Credentials for `host`; `None` if there are none, as for public modules.
    pub(crate) fn find(host: &str) -> Result<Option<Self>> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(token) = variable("PENSTOCK_REGISTRY_TOKEN") {
            return Ok(checked(&token)?.map(Self::Bearer));
        }
        match (variable("PENSTOCK_REGISTRY_USER"), variable("PENSTOCK_REGISTRY_PASSWORD")) {
            (Some(user), Some(password)) => {
                Ok(Some(Self::Basic(BASE64_STANDARD.encode(format!("{user}:{password}")))))
            }
            (None, None) => in_docker_config(host),
            _ => Err(bad(
                "only one of PENSTOCK_REGISTRY_USER and PENSTOCK_REGISTRY_PASSWORD is set; set both, or none",
            )),
        }
    }
}

/// Credentials that `docker login` wrote into its configuration.
fn in_docker_config(host: &str) -> Result<Option<Credentials>> {
    let folder = env::var_os("DOCKER_CONFIG").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".docker")));
    let Some(path) = folder.map(|folder| folder.join("config.json")) else { return Ok(None) };
    let bytes = match read_bounded(&path, MAX_FILE) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(unreadable(&path, &error)),
    };
    // The cause is left out: it may repeat a credential.
    let config = serde_json::from_slice(&bytes)
        .map_err(|_| bad(format!("`{}` is not docker's configuration", path.display())))?;
    Ok(entry(config, host))
}

fn entry(config: DockerConfig, host: &str) -> Option<Credentials> {
    let (name, registry) = DOCKER_HUB;
    let named = if host == registry { name } else { host };
    // Docker writes a host, or the address of its API: `https://index.docker.io/v1/`.
    let host_of = |key: &str| {
        let rest = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
        rest.split('/').next().unwrap_or_default().to_ascii_lowercase()
    };
    let (_, entry) = config.auths.into_iter().find(|(key, _)| host_of(key) == named)?;
    if !entry.registrytoken.is_empty() {
        return Some(Credentials::Bearer(entry.registrytoken));
    }
    // Beside an identity token, `auth` has no password.
    let has_password = !entry.auth.is_empty() && entry.identitytoken.is_empty();
    has_password.then_some(Credentials::Basic(entry.auth))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_docker_are_found_by_host() {
        let find = |host: &str| {
            let config = r#"{"auths": {"ghcr.io": {"auth": "dTpw"}, "https://index.docker.io/v1/": {"auth": "aHVi"},
                "helped.example": {}, "azure.example": {"auth": "MDA6", "identitytoken": "x"},
                "Token.example:5000": {"registrytoken": "t0k"}}, "credsStore": "desktop"}"#;
            match entry(serde_json::from_str(config).unwrap(), host) {
                Some(Credentials::Basic(pair)) => format!("basic {pair}"),
                Some(Credentials::Bearer(token)) => format!("bearer {token}"),
                None => "none".to_owned(),
            }
        };
        assert_eq!(find("ghcr.io"), "basic dTpw");
        assert_eq!(find("registry-1.docker.io"), "basic aHVi");
        assert_eq!(find("token.example:5000"), "bearer t0k");
        for host in
            ["io", "ghcr.io:5000", "evil.ghcr.io", "helped.example", "azure.example", "index.docker.io.evil"]
        {
            assert_eq!(find(host), "none", "{host}");
        }
    }
}
