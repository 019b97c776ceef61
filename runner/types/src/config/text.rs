//! The texts of a configuration. No fault repeats one: a secret may have been written to the wrong place.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

use super::server::{HostName, ListenAddress};
use crate::spec::ObjectKey;

/// Name of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketName(String);

/// What all keys of a store begin with in its bucket: empty, or ending in `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPrefix(String);

/// Address of a service, without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

/// Name of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region(String);

/// Where an index lies: `s3://bucket/key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexUrl {
    /// The bucket.
    pub bucket: BucketName,
    /// Its key in the bucket.
    pub key: ObjectKey,
}

/// Path of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderPath(pub(super) PathBuf);

/// Path of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(pub(super) PathBuf);

/// A text that is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

/// A text of the configuration that knows what it may be.
trait Text: Sized {
    const WANTED: &'static str;
    /// Reads it; else what is wrong with it, without repeating it.
    fn read(text: &str) -> Result<Self, String>;
}

impl BucketName {
    /// The name, or what is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        <Self as Text>::read(text)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl KeyPrefix {
    /// The prefix, with or without `/` at its end, or what is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        <Self as Text>::read(text)
    }

    /// Empty, or ending in `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Endpoint {
    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Region {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FolderPath {
    /// The path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl FilePath {
    /// The path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl SecretText {
    /// The secret, or what is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        <Self as Text>::read(text)
    }

    /// The secret itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Text for BucketName {
    const WANTED: &'static str = "a bucket's name: 1 to 255 letters, digits, `.`, `_` or `-`";

    fn read(text: &str) -> Result<Self, String> {
        only(text, 255, |letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))?;
        match text {
            "." | ".." => Err("it is a folder's name".to_owned()),
            _ => Ok(Self(text.to_owned())),
        }
    }
}

impl Text for KeyPrefix {
    const WANTED: &'static str = "what keys begin with: `folder/folder`";

    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let folder = text.strip_suffix('/').unwrap_or(text);
        only(folder, 1000, |letter| !letter.is_control())?;
        match folder.split('/').find(|segment| matches!(*segment, "" | "." | "..")) {
            Some("") => Err("it begins with `/` or has `//`".to_owned()),
            Some(_) => Err("it has a segment `.` or `..`".to_owned()),
            None => Ok(Self(format!("{folder}/"))),
        }
    }
}

impl Text for Endpoint {
    const WANTED: &'static str = "a service's address: `https://host` or `http://host:port`";

    fn read(text: &str) -> Result<Self, String> {
        let address = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let Some(address) = address else {
            return Err("it begins with neither `https://` nor `http://`".to_owned());
        };
        if address.contains('@') {
            return Err("it holds a user or a password, which belong into a file of credentials".to_owned());
        }
        if address.contains(['?', '#']) {
            return Err("it has a query or a fragment".to_owned());
        }
        only(address, 1000, |letter| letter.is_ascii_graphic())?;
        let host = address.split('/').next().unwrap_or_default();
        // In brackets an IPv6 address has colons of its own.
        let port = host.rsplit(']').next().and_then(|rest| rest.rsplit_once(':')).map(|(_, port)| port);
        if host.is_empty() || host.starts_with(':') {
            return Err("it has no host".to_owned());
        }
        if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err("its port is no number up to 65535".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl Text for Region {
    const WANTED: &'static str = "a region's name, such as `eu-central-1`";

    fn read(text: &str) -> Result<Self, String> {
        only(text, 64, |letter| letter.is_ascii_alphanumeric() || "_-".contains(letter))?;
        Ok(Self(text.to_owned()))
    }
}

impl Text for IndexUrl {
    const WANTED: &'static str = "the address of an index: `s3://bucket/key`";

    fn read(text: &str) -> Result<Self, String> {
        let Some(place) = text.strip_prefix("s3://") else {
            return Err("it does not begin with `s3://`".to_owned());
        };
        let Some((bucket, key)) = place.split_once('/') else { return Err("it has no key".to_owned()) };
        let bucket = BucketName::new(bucket).map_err(|reason| format!("of its bucket, {reason}"))?;
        let key = ObjectKey::new(key)
            .ok_or("its key is empty, longer than 1024 bytes or has control characters")?;
        Ok(Self { bucket, key })
    }
}

impl Text for FolderPath {
    const WANTED: &'static str = "a folder's path";

    fn read(text: &str) -> Result<Self, String> {
        path(text).map(Self)
    }
}

impl Text for FilePath {
    const WANTED: &'static str = "a file's path";

    fn read(text: &str) -> Result<Self, String> {
        path(text).map(Self)
    }
}

impl Text for SecretText {
    const WANTED: &'static str = "a credential";

    fn read(text: &str) -> Result<Self, String> {
        // It becomes part of a header.
        only(text, 16 * 1024, |letter| letter.is_ascii_graphic())?;
        Ok(Self(text.to_owned()))
    }
}

impl Text for ListenAddress {
    const WANTED: &'static str = "an address and a port: `127.0.0.1:7700` or `[::1]:7700`";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| "it is no address with a port".to_owned())
    }
}

impl Text for HostName {
    const WANTED: &'static str = "a host's name without port, such as `penstock.example.org`";

    fn read(text: &str) -> Result<Self, String> {
        only(text, 253, |letter| letter.is_ascii_alphanumeric() || ".-_".contains(letter))?;
        Ok(Self(text.to_ascii_lowercase()))
    }
}

fn path(text: &str) -> Result<PathBuf, String> {
    only(text, 4096, |letter| letter != '\0')?;
    Ok(PathBuf::from(text))
}

/// Whether a text has 1 to `most` bytes and these letters alone.
fn only(text: &str, most: usize, allowed: impl Fn(char) -> bool) -> Result<(), String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.len() > most {
        return Err(format!("it has {} bytes, at most {most} are allowed", text.len()));
    }
    match text.chars().find(|letter| !allowed(*letter)) {
        Some(letter) => Err(format!("it has the character `{}`", letter.escape_debug())),
        None => Ok(()),
    }
}

fn read_text<'de, T: Text, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct Unquoted<T>(PhantomData<T>);

    impl<T: Text> Unquoted<T> {
        fn refuse<E: Error>(found: &str) -> Result<T, E> {
            Err(E::custom(format_args!("found {found}, wanted {}", T::WANTED)))
        }
    }

    impl<T: Text> Visitor<'_> for Unquoted<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(T::WANTED)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            T::read(text).or_else(|reason| Self::refuse(&format!("a text that will not do ({reason})")))
        }

        // What serde says by itself about these would repeat the value.
        fn visit_bool<E: Error>(self, _: bool) -> Result<T, E> {
            Self::refuse("`true` or `false`")
        }

        fn visit_u64<E: Error>(self, _: u64) -> Result<T, E> {
            Self::refuse("a number")
        }

        fn visit_i64<E: Error>(self, _: i64) -> Result<T, E> {
            Self::refuse("a number")
        }

        fn visit_f64<E: Error>(self, _: f64) -> Result<T, E> {
            Self::refuse("a number")
        }
    }

    deserializer.deserialize_str(Unquoted(PhantomData))
}

macro_rules! readable {
    ($($name:ident),+) => { $(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                read_text(deserializer)
            }
        }
    )+ };
}

readable!(
    BucketName,
    KeyPrefix,
    Endpoint,
    Region,
    IndexUrl,
    FolderPath,
    FilePath,
    SecretText,
    ListenAddress,
    HostName
);
