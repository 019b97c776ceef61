//! References to modules in OCI registries: `oci://host[:port]/name[:tag|@sha256:...]`.

use std::fmt;
use std::net::IpAddr;

use penstock_types::config::RegistryHost;

/// Maximum length of a repository name, in bytes; registries refuse longer ones.
const MAX_NAME: usize = 255;
/// Maximum length of a tag, in bytes, by the distribution specification.
const MAX_TAG: usize = 128;
const FORM: &str = "use `oci://host[:port]/name[:tag]` or `oci://host[:port]/name@sha256:...`";

/// Module in a registry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) host: RegistryHost,
    pub(crate) name: String,
    pub(crate) version: Version,
}

/// Version of a module within its repository.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Tag(String),
    /// SHA-256 of the manifest as 64 hexadecimal digits in lower case.
    Digest(String),
}

impl Reference {
    /// Reads a reference. The tag is `latest` if the reference has neither a tag nor a digest. The error states the reason and
    /// the accepted form.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let wrong = |reason: &str| format!("`{text}`: {reason}; {FORM}");
        let rest = text.strip_prefix("oci://").ok_or_else(|| wrong("does not start with `oci://`"))?;
        // A digest follows the last slash; any other `@` may follow a password, which the message must not repeat.
        let (before, _) = rest.rsplit_once('/').unwrap_or((rest, ""));
        if before.contains('@') {
            return Err(format!(
                "the reference contains a user or a password; use `docker login`, or the environment; {FORM}"
            ));
        }
        let (host, path) = rest.split_once('/').ok_or_else(|| wrong("has no name after the host"))?;
        let host =
            RegistryHost::new(host).map_err(|reason| wrong(&format!("has an invalid host: {reason}")))?;
        let (name, version) = if let Some((name, digest)) = path.split_once('@') {
            let hex =
                digest.strip_prefix("sha256:").ok_or_else(|| wrong("the digest is not `sha256:...`"))?;
            if hex.len() != 64 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                return Err(wrong("the digest does not have 64 hexadecimal digits in lower case"));
            }
            if name.contains(':') {
                return Err(wrong("has a tag and a digest"));
            }
            (name, Version::Digest(hex.to_owned()))
        } else {
            let (name, tag) = path.split_once(':').unwrap_or((path, "latest"));
            if !tag_is_valid(tag) {
                return Err(wrong(
                    "the tag has a character other than letters, digits, `_`, `.` and `-`, starts with `.` or `-`, or is empty or too long",
                ));
            }
            (name, Version::Tag(tag.to_owned()))
        };
        if name.len() > MAX_NAME || !name.split('/').all(part_is_valid) {
            return Err(wrong(
                "the name has a part other than lower-case letters and digits, separated by `.`, `_`, `__` or `-`",
            ));
        }
        Ok(Self { host, name: name.to_owned(), version })
    }

    /// Reference to the manifest with this digest, `sha256:...`, in the same repository.
    pub(crate) fn pinned(&self, digest: &str) -> String {
        format!("oci://{}/{}@{digest}", self.host.as_str(), self.name)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if matches!(self.version, Version::Tag(_)) { ':' } else { '@' };
        write!(f, "oci://{}/{}{separator}{}", self.host.as_str(), self.name, self.version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Digest(digest) => write!(f, "sha256:{digest}"),
        }
    }
}

/// True if `host`, which may have a port, is certainly this machine. Only such hosts are reached without TLS.
pub(crate) fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    };
    let address: Option<IpAddr> = name.trim_start_matches('[').trim_end_matches(']').parse().ok();
    name == "localhost" || address.is_some_and(|address| address.is_loopback())
}

fn tag_is_valid(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= MAX_TAG
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|byte| word(byte) || byte == b'.' || byte == b'-')
}

/// Checks one part of a name: runs of lower-case letters and digits, with `.`, `_`, `__` or hyphens between them.
fn part_is_valid(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separator = |run: &str| matches!(run, "" | "." | "_" | "__") || run.bytes().all(|byte| byte == b'-');
    part.starts_with(plain) && part.ends_with(plain) && part.split(plain).all(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str, reason: &str) {
        let error = Reference::read(text).unwrap_err();
        assert!(error.contains(reason) && error.ends_with(FORM), "{text}: {error}");
    }

    #[test]
    fn tags_and_digests_are_read() {
        let read = |text| Reference::read(text).unwrap();
        let tagged = read("oci://GHCR.io/team/a__b-c.d:v1.2-RC");
        assert_eq!((tagged.host.as_str(), &*tagged.name), ("ghcr.io", "team/a__b-c.d"));
        assert_eq!(tagged.version, Version::Tag("v1.2-RC".into()));
        assert_eq!(read("oci://127.0.0.1:5000/a").to_string(), "oci://127.0.0.1:5000/a:latest");
        let digest = "0a".repeat(32);
        let exact = read(&format!("oci://[::1]:5000/a@sha256:{digest}"));
        assert_eq!(exact.to_string(), exact.pinned(&format!("sha256:{digest}")));
        assert_eq!((exact.host.as_str(), exact.version), ("[::1]:5000", Version::Digest(digest)));
    }

    #[test]
    fn only_the_loopback_is_reached_without_tls() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.9.9.9", "[::1]", "[::1]:5000"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["localhost.example.org", "127.0.0.1.example.org", "10.0.0.1:5000", "0.0.0.0", "[::2]:5000"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn malformed_references_are_refused_with_a_reason() {
        refused("https://host/a", "does not start with");
        refused("oci://host", "has no name");
        for host in ["", "-a", "a..b", "a:", "a:0", "a:65536", "a:+5", "::1", "[::1", "a b", "a?b"] {
            refused(&format!("oci://{host}/a"), "invalid host: ");
        }
        for name in
            ["", "A", "a//b", "../a", "a/..", "a___b", "a._b", "-a", "a/", "a?b", "a%2fb", &"a".repeat(256)]
        {
            refused(&format!("oci://host/{name}"), "the name has a part");
        }
        for tag in ["", "-a", ".a", "a/b", "a:b", "a?b", &"a".repeat(129)] {
            refused(&format!("oci://host/a:{tag}"), "the tag has");
        }
        refused("oci://host/a@sha512:00", "not `sha256:...`");
        refused(&format!("oci://host/a@sha256:{}", "0A".repeat(32)), "64 hexadecimal digits");
        refused("oci://host/a@sha256:00", "64 hexadecimal digits");
        refused(&format!("oci://host/a:b@sha256:{}", "0a".repeat(32)), "a tag and a digest");
    }

    #[test]
    fn passwords_are_refused_and_not_repeated() {
        for text in [
            "oci://user:secret@host/a",
            "oci://user:secret@host",
            "oci://user:/secret@host/a",
            "oci://u@sha256:secret/a",
        ] {
            let error = Reference::read(text).unwrap_err();
            assert!(error.contains("`docker login`") && !error.contains("secret"), "{error}");
        }
    }
}
