//! Options that all remote stores have.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

pub(crate) struct Options {
    pub(crate) store: Arc<str>,
    /// Description for the operator's logs.
    pub(crate) describe: String,
    /// Start of all keys of the store, with a `/` at its end; empty for all keys of the service.
    pub(crate) prefix: String,
    /// Set if the service is expected to list keys in the order of their bytes.
    pub(crate) is_sorted: bool,
    /// Set if the service lists only by prefixes that end with `/`.
    pub(crate) lists_folders_only: bool,
    pub(crate) timeouts: Timeouts,
    pub(crate) retries: Retries,
}

/// Time limits. `operation` applies to all attempts of a request together, the other limits apply to each attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit for opening a connection, including name lookup and TLS.
    pub connect: Duration,
    /// Limit from the start of the request to the start of the response.
    pub first_byte: Duration,
    /// Limit for a pause within a response.
    pub idle: Duration,
    /// Limit for one request of at most 16 MiB, including its response. The limit of a write is one second longer per MiB.
    pub attempt: Duration,
    /// Limit for a request with all its attempts and the waits between them; for a write, it is one second longer per MiB. In a
    /// read of a large object, the limit applies to the first request, and again to all further parts together.
    pub operation: Duration,
}

/// Number of attempts, and waits between them: the wait before an attempt is random between 0 and an upper bound, which is `base`
/// at first and doubles with each failure up to `cap`. If the service requests a longer wait, that wait is used, up to `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Maximum number of attempts, including the first one.
    pub attempts: NonZeroU32,
    /// Upper bound of the wait before the second attempt.
    pub base: Duration,
    pub cap: Duration,
}

impl Default for Timeouts {
    /// Default limits: 5 s, 20 s, 20 s, 60 s and 10 minutes, in the order of the fields.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connect: seconds(5),
            first_byte: seconds(20),
            idle: seconds(20),
            attempt: seconds(60),
            operation: seconds(600),
        }
    }
}

impl Default for Retries {
    /// Default: 5 attempts, with waits from 100 ms up to 5 s.
    fn default() -> Self {
        Self {
            attempts: NonZeroU32::new(5).expect("5 is not zero"),
            base: Duration::from_millis(100),
            cap: Duration::from_secs(5),
        }
    }
}

/// Parses the address of a service, which has no credentials. The error never repeats it.
pub(crate) fn check_endpoint(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "is not a URL")?;
    if !matches!(url.scheme(), "http" | "https") {
        Err("begins with neither `http://` nor `https://`")
    } else if !url.username().is_empty() || url.password().is_some() {
        Err("contains a user name or a password; set credentials separately")
    } else if url.query().is_some() || url.fragment().is_some() {
        Err("contains a query or a fragment")
    } else if url.host_str().is_none_or(str::is_empty) {
        Err("has no host")
    } else {
        Ok(url)
    }
}
