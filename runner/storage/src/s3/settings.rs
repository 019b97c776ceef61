//! An operator's settings for a bucket.

use std::env;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_types::config::SecretText;
use url::Url;

use crate::caching::ObjectPlace;
use crate::error::shown;
use crate::key::check_prefix;
use crate::remote::options::{Retries, Timeouts, check_endpoint};

/// Environment variables for the server's address; the first one that is set applies.
const ENDPOINT_VARIABLES: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];

/// Environment variables for the checksums of writes and reads.
pub(crate) const REQUEST_CHECKSUMS: &str = "AWS_REQUEST_CHECKSUM_CALCULATION";
pub(crate) const RESPONSE_CHECKSUMS: &str = "AWS_RESPONSE_CHECKSUM_VALIDATION";

#[derive(Clone, Debug, Default)]
pub struct S3Settings {
    pub bucket: String,
    /// Prefix of each key, such as `photos/train/`; a missing `/` at the end is added. Empty for the whole bucket.
    pub prefix: String,
    /// Address of the server, such as `http://127.0.0.1:9000`. With `None`, the address is taken from the environment
    /// (`AWS_ENDPOINT_URL_S3`, then `AWS_ENDPOINT_URL`), then from `endpoint_url` of the user's AWS configuration; without these, it is
    /// Amazon's address for the region.
    pub endpoint: Option<String>,
    /// Region of the bucket. With `None`, the region is taken from the environment or the user's AWS configuration. If neither
    /// sets a region, it is `us-east-1` if there is an endpoint, and otherwise the region that the machine's metadata service
    /// reports.
    pub region: Option<String>,
    /// Sends the bucket's name in the path instead of the host name. With `None`, the path is used only if there is an endpoint.
    pub path_style: Option<bool>,
    pub credentials: S3Credentials,
    /// Agrees to pay for requests and transfer, which some buckets require.
    pub requester_pays: bool,
    /// Set for a service that lists keys in no order: all keys of a listing are then read and sorted first. Such a service is usually
    /// noticed without this setting.
    pub is_unsorted: bool,
    pub timeouts: Timeouts,
    pub retries: Retries,
}

#[derive(Clone, Debug, Default)]
pub enum S3Credentials {
    /// Credentials from the environment, the user's AWS configuration, or the machine's metadata service, looked up at the first
    /// use. Profiles of `aws sso` are not supported.
    #[default]
    Chain,
    Static {
        access_key_id: String,
        secret_access_key: SecretText,
        session_token: Option<SecretText>,
    },
    /// A file in the format of `~/.aws/credentials`. The profile in `AWS_PROFILE` is used, or `default` if the variable is not
    /// set.
    File(PathBuf),
    /// Unsigned requests, for public buckets.
    Anonymous,
}

#[derive(Debug, thiserror::Error)]
pub enum S3Fault {
    #[error("store `{store}` has no bucket name")]
    Bucket { store: Arc<str> },
    /// The configured prefix is not a valid start of a key.
    #[error("store `{store}` has an invalid prefix: {reason}")]
    Prefix { store: Arc<str>, reason: &'static str },
    /// The endpoint is not repeated in the message, since it may contain a password.
    #[error("the endpoint of store `{store}` {reason}; use the form `https://host:port`")]
    Endpoint { store: Arc<str>, reason: &'static str },
    #[error("{variable} is {value}; expected `when_supported` or `when_required`")]
    Checksums { variable: &'static str, value: String },
    #[error("store `{store}` cannot open its credentials file `{}`", path.display())]
    CredentialsFile {
        store: Arc<str>,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl S3Settings {
    /// Checks the settings without a request, and adds a missing `/` at the end of the prefix.
    pub(crate) fn checked(mut self, store: &Arc<str>) -> Result<(Self, Option<Url>), S3Fault> {
        let store = || store.clone();
        if self.bucket.is_empty() {
            return Err(S3Fault::Bucket { store: store() });
        }
        if !self.prefix.is_empty() && !self.prefix.ends_with('/') {
            self.prefix.push('/');
        }
        check_prefix(&self.prefix).map_err(|reason| S3Fault::Prefix { store: store(), reason })?;
        if let S3Credentials::File(path) = &self.credentials {
            File::open(path).map_err(|source| S3Fault::CredentialsFile {
                store: store(),
                path: path.clone(),
                source,
            })?;
        }
        // The SDK would take another value for `when_supported`.
        for variable in [REQUEST_CHECKSUMS, RESPONSE_CHECKSUMS] {
            let value = env::var_os(variable).unwrap_or_default().to_string_lossy().into_owned();
            let known = ["", "when_supported", "when_required"];
            if !known.iter().any(|known| value.trim().eq_ignore_ascii_case(known)) {
                return Err(S3Fault::Checksums { variable, value: shown(&value).to_string() });
            }
        }
        self.endpoint = self.endpoint.or_else(|| ENDPOINT_VARIABLES.into_iter().find_map(variable));
        let endpoint = self.endpoint.as_deref().map(check_endpoint).transpose();
        let endpoint = endpoint.map_err(|reason| S3Fault::Endpoint { store: store(), reason })?;
        Ok((self, endpoint))
    }
}

impl S3Settings {
    /// Place of the objects of a store with these settings, whatever its name is.
    pub fn place(&self) -> Result<ObjectPlace, S3Fault> {
        let (Self { bucket, prefix, endpoint, region, .. }, _) = self.clone().checked(&Arc::from("data"))?;
        let service = endpoint.unwrap_or_else(|| {
            // The profile may name another service, and some regions have buckets of their own.
            let profile = variable("AWS_PROFILE").unwrap_or_default();
            format!("default service {profile} {}", region.unwrap_or_default()).trim_end().to_owned()
        });
        Ok(ObjectPlace { parts: vec!["s3".to_owned(), service, bucket], prefix })
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(settings: S3Settings) -> Result<S3Settings, String> {
        let store = Arc::from("photos");
        settings.checked(&store).map(|(settings, _)| settings).map_err(|fault| fault.to_string())
    }

    fn with_endpoint(endpoint: &str) -> S3Settings {
        S3Settings { bucket: "b".to_owned(), endpoint: Some(endpoint.to_owned()), ..S3Settings::default() }
    }

    #[test]
    fn an_endpoint_with_a_password_or_a_query_is_refused_and_not_repeated() {
        for bad in [
            "http://canary:canary@host:9000",
            "https://canary@host",
            "http://host/?key=canary",
            "http://host/#canary",
            "ftp://canary",
            "canary",
            "http://",
            "http://user:canary@",
        ] {
            let fault = checked(with_endpoint(bad)).unwrap_err();
            assert!(fault.starts_with("the endpoint of store `photos` "), "{fault}");
            assert!(!fault.contains("canary"), "{fault}");
        }
        for good in ["http://127.0.0.1:9000", "https://minio.example/", "http://[::1]:80", "https://host/s3"]
        {
            assert!(checked(with_endpoint(good)).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_prefix_gets_a_final_slash_and_cannot_lead_upwards() {
        let with_prefix = |prefix: &str| {
            let (bucket, prefix) = ("b".to_owned(), prefix.to_owned());
            checked(S3Settings { bucket, prefix, ..S3Settings::default() }).map(|settings| settings.prefix)
        };
        assert_eq!(with_prefix("").as_deref(), Ok(""));
        assert_eq!(with_prefix("a/b").as_deref(), Ok("a/b/"));
        assert_eq!(with_prefix("a/b/").as_deref(), Ok("a/b/"));
        let fault = with_prefix("a/../b").unwrap_err();
        assert!(fault.starts_with("store `photos` has an invalid prefix: it has a segment"), "{fault}");
    }

    #[test]
    fn a_bucket_needs_a_name_and_a_credentials_file_must_exist() {
        assert_eq!(checked(S3Settings::default()).unwrap_err(), "store `photos` has no bucket name");
        let credentials = S3Credentials::File(PathBuf::from("/nowhere/credentials"));
        let fault = checked(S3Settings { bucket: "b".to_owned(), credentials, ..S3Settings::default() });
        assert_eq!(
            fault.unwrap_err(),
            "store `photos` cannot open its credentials file `/nowhere/credentials`"
        );
    }
}
