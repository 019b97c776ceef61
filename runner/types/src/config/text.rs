//! Texts of a configuration. No fault repeats one of them: a secret may have been written to the wrong place.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::spec::ObjectKey;

/// Upper bound of the duration in a setting.
const LONGEST: Duration = Duration::from_secs(3_660 * 86_400);

/// Declares text types: how each is stored, returned and parsed, and the form that its faults expect. A fault states the problem
/// without repeating the text.
macro_rules! texts {
    ($($(#[$attribute:meta])* $name:ident($kept:ty), $get:ident: $given:ty, $read:expr, $wanted:literal;)+) => { $(
        $(#[$attribute])*
        #[derive(Clone, PartialEq, Eq)]
        pub struct $name(pub(super) $kept);

        impl $name {
            /// Parses the text. The error describes the problem.
            pub fn new(text: &str) -> Result<Self, String> {
                let read: fn(&str) -> Result<$kept, String> = $read;
                read(text).map(Self)
            }

            /// Returns the checked text.
            pub fn $get(&self) -> &$given {
                &self.0
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserialize(deserializer, Self::new, $wanted)
            }
        }
    )+ };
}

texts! {
    /// Name of an S3 bucket.
    #[derive(Debug)]
    BucketName(String), as_str: str, bucket, "a bucket's name: 1 to 255 letters, digits, `.`, `_` or `-`";
    /// Prefix of all keys of a store in its bucket: empty, or ending in `/`.
    #[derive(Debug, Default)]
    KeyPrefix(String), as_str: str, prefix, "a prefix of keys: `folder/folder`";
    /// Address of an S3 service, without credentials.
    #[derive(Debug)]
    Endpoint(String), as_str: str, endpoint, "a service's address: `https://host` or `http://host:port`";
    /// Name of an S3 region.
    #[derive(Debug)]
    Region(String), as_str: str,
        |text| only(text, 64, |letter| letter.is_ascii_alphanumeric() || "_-".contains(letter)),
        "a region's name, such as `eu-central-1`";
    /// Path of a folder on this machine.
    #[derive(Debug)]
    FolderPath(PathBuf), as_path: Path, path, "a folder's path";
    /// Path of a file on this machine.
    #[derive(Debug)]
    FilePath(PathBuf), as_path: Path, path, "a file's path";
    /// A secret, never displayed. It becomes part of an HTTP header.
    SecretText(String), expose: str, |text| only(text, 16 * 1024, |letter| letter.is_ascii_graphic()), "a credential";
    /// Address and port that a server listens on.
    #[derive(Debug)]
    ListenAddress(SocketAddr), address: SocketAddr,
        |text| text.parse().map_err(|_| "not an address with a port".to_owned()),
        "an address and a port: `127.0.0.1:7700` or `[::1]:7700`";
    /// Host name of a server, in lower case.
    #[derive(Debug)]
    HostName(String), as_str: str,
        |text| {
            let allowed = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
            only(text, 253, allowed).map(|name| name.to_ascii_lowercase())
        },
        "a host's name without port, such as `penstock.example.org`";
    /// Host of an OCI registry in lower case, with the port if it is written.
    #[derive(Debug, PartialOrd, Ord)]
    RegistryHost(String), as_str: str, registry_host,
        "a registry's host, with its port if needed: `ghcr.io` or `127.0.0.1:5000`";
    /// A length of time, above zero.
    #[derive(Debug, Copy)]
    TimeSpan(Duration), get: Duration, time_span, "a length of time with its unit, such as `90s`, `12h` or `7days`";
}

/// Location of an index: `s3://bucket/key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexUrl {
    /// Bucket that holds the index.
    pub bucket: BucketName,
    /// Key of the index in the bucket.
    pub key: ObjectKey,
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl IndexUrl {
    fn new(text: &str) -> Result<Self, String> {
        let place = text.strip_prefix("s3://").ok_or("it does not begin with `s3://`")?;
        let (bucket, key) = place.split_once('/').ok_or("it has no key")?;
        let bucket = BucketName::new(bucket).map_err(|reason| format!("invalid bucket: {reason}"))?;
        let key = ObjectKey::new(key)
            .ok_or("its key is empty, longer than 1024 bytes or has control characters")?;
        Ok(Self { bucket, key })
    }
}

impl<'de> Deserialize<'de> for IndexUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize(deserializer, Self::new, "the address of an index: `s3://bucket/key`")
    }
}

fn bucket(text: &str) -> Result<String, String> {
    let name = only(text, 255, |letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))?;
    if matches!(text, "." | "..") { Err("`.` and `..` are not bucket names".to_owned()) } else { Ok(name) }
}

fn prefix(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let folder = only(text.strip_suffix('/').unwrap_or(text), 1000, |letter| !letter.is_control())?;
    match folder.split('/').find(|segment| matches!(*segment, "" | "." | "..")) {
        Some("") => Err("it begins with `/` or has `//`".to_owned()),
        Some(_) => Err("it has a segment `.` or `..`".to_owned()),
        None => Ok(folder + "/"),
    }
}

fn time_span(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|_| "not a number with a unit".to_owned())?;
    match time {
        Duration::ZERO => Err("the time is zero".to_owned()),
        time if time > LONGEST => Err("the time is longer than ten years".to_owned()),
        time => Ok(time),
    }
}

fn endpoint(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let address = address.ok_or("it begins with neither `https://` nor `http://`")?;
    if address.contains('@') {
        return Err("it contains a user or a password; put them into a credentials file".to_owned());
    }
    if address.contains(['?', '#']) {
        return Err("it has a query or a fragment".to_owned());
    }
    only(address, 1000, |letter| letter.is_ascii_graphic())?;
    let host = address.split('/').next().unwrap_or_default();
    // The colons of an IPv6 address are inside the brackets.
    let port = host.rsplit(']').next().and_then(|rest| rest.rsplit_once(':')).map(|(_, port)| port);
    if host.is_empty() || host.starts_with(':') {
        return Err("it has no host".to_owned());
    }
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err("the port is not a number up to 65535".to_owned());
    }
    Ok(text.to_owned())
}

fn registry_host(text: &str) -> Result<String, String> {
    only(text, 260, |letter| letter.is_ascii_alphanumeric() || ".-:[]".contains(letter))?;
    // The colons of an IPv6 address are inside the brackets.
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (text, None),
    };
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if port.is_some_and(|port| !digits(port) || !port.parse::<u16>().is_ok_and(|port| port > 0)) {
        return Err("the port is not a number from 1 to 65535".to_owned());
    }
    if let Some(address) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        address.parse::<Ipv6Addr>().map_err(|_| "no IPv6 address is in the brackets".to_owned())?;
    } else {
        only(name, 253, |letter| letter.is_ascii_alphanumeric() || ".-".contains(letter))?;
        if name.split('.').any(|label| label.is_empty() || label.starts_with('-') || label.ends_with('-')) {
            return Err("a part of the host name is empty, or starts or ends with `-`".to_owned());
        }
    }
    Ok(text.to_ascii_lowercase())
}

fn path(text: &str) -> Result<PathBuf, String> {
    only(text, 4096, |letter| letter != '\0').map(PathBuf::from)
}

/// Checks that a text has 1 to `most` bytes and contains allowed characters only.
fn only(text: &str, most: usize, allowed: impl Fn(char) -> bool) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.len() > most {
        return Err(format!("it has {} bytes, at most {most} are allowed", text.len()));
    }
    match text.chars().find(|letter| !allowed(*letter)) {
        Some(letter) => Err(format!("it has the character `{}`", letter.escape_debug())),
        None => Ok(text.to_owned()),
    }
}

/// Deserializes a text. serde's own error would repeat the value, so a value of another type is described only by its type.
fn deserialize<'de, T, D: Deserializer<'de>>(
    deserializer: D,
    read: fn(&str) -> Result<T, String>,
    wanted: &str,
) -> Result<T, D::Error> {
    let found = match Value::deserialize(deserializer)? {
        Value::String(text) => match read(&text) {
            Ok(read) => return Ok(read),
            Err(reason) => format!("an invalid text ({reason})"),
        },
        Value::Bool(_) => "`true` or `false`".to_owned(),
        Value::Number(_) => "a number".to_owned(),
        Value::Null => "`null`".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    Err(D::Error::custom(format_args!("found {found}, expected {wanted}")))
}
