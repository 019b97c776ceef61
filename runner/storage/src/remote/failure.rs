//! Failures of attempts, classified by whether another attempt may succeed.

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use penstock_types::text::printable;

use crate::asked::{Asked, CHANGED};
use crate::error::StoreError;
use crate::remote::service::Service;

/// Maximum length, in bytes, of the part of a service's message that an error contains.
pub(crate) const MOST_MESSAGE: usize = 300;

/// Start of the TLS library's message that ends with host names.
const OTHER_NAME: &str = "invalid peer certificate: certificate not valid for name";

#[derive(Debug)]
pub(crate) enum Failure {
    /// Another attempt may succeed, preferably after the given time.
    Passing {
        cause: Cause,
        after: Option<Duration>,
    },
    /// Another attempt would fail in the same way.
    Lasting(Cause),
    NotFound,
    /// The credentials are missing, expired, invalid or lack the permission.
    Denied(Cause),
    /// The service may accept other credentials. `failure` applies if there are none.
    Refused {
        /// True if the credentials were valid before.
        is_expired: bool,
        failure: Box<Failure>,
    },
    /// The service denies the access for want of a permission.
    Forbidden(Cause),
    /// The service names the place of the objects. `failure` applies if the request cannot be made for that place.
    Moved {
        place: String,
        /// True if the service answers only elsewhere, whatever the place of the request.
        is_redirect: bool,
        failure: Box<Failure>,
    },
    /// The keys of a listing are not in the order of their bytes.
    Unsorted,
    /// The object ends before the first byte of the range.
    NothingThere,
    /// The object ends before the last byte of the range.
    OutOfRange {
        range: Range<u64>,
        size: u64,
    },
    TooLarge {
        size: u64,
    },
    /// The condition of the request is not met: the object has another version, or already exists.
    Unmet,
    NotImplemented(Cause),
}

/// Text of a failure: codes and messages, never headers, addresses or signatures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Cause(String);

impl Cause {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Failure {
    pub(crate) fn passing(text: impl Into<String>) -> Self {
        Self::Passing { cause: Cause::new(text), after: None }
    }

    pub(crate) fn lasting(text: impl Into<String>) -> Self {
        Self::Lasting(Cause::new(text))
    }

    pub(crate) fn refused(is_expired: bool, failure: Self) -> Self {
        Self::Refused { is_expired, failure: Box::new(failure) }
    }

    /// The failure of a request that was made for `place`.
    pub(crate) fn at_place(self, place: &str) -> Self {
        match self {
            Self::Moved { place: named, is_redirect: false, failure } if named == place => *failure,
            other => other,
        }
    }

    /// Adds a note to the failure's cause.
    pub(crate) fn with_note<'a>(mut self, note: impl Into<Option<&'a str>>) -> Self {
        if let (Some(Cause(cause)), Some(note)) = (self.cause_mut(), note.into()) {
            cause.push_str("; ");
            cause.push_str(note);
        }
        self
    }

    fn cause_mut(&mut self) -> Option<&mut Cause> {
        match self {
            Self::Denied(cause)
            | Self::Forbidden(cause)
            | Self::Lasting(cause)
            | Self::NotImplemented(cause)
            | Self::Passing { cause, .. } => Some(cause),
            Self::Refused { failure, .. } | Self::Moved { failure, .. } => failure.cause_mut(),
            _ => None,
        }
    }

    /// Converts the failure of a service into the store's error.
    pub(crate) fn of<S: Service>(self, asked: &Asked) -> StoreError {
        match self {
            Self::Refused { failure, .. } | Self::Moved { failure, .. } => failure.of::<S>(asked),
            Self::Forbidden(cause) | Self::Denied(cause) => asked.without_credentials(cause),
            Self::NotFound => asked.not_found(),
            Self::OutOfRange { range, size } => asked.out_of_range(range, size),
            Self::TooLarge { size } => asked.too_large(size),
            Self::NothingThere => {
                asked.failed(Cause::new("the service reports that the object ends before the range"))
            }
            Self::Unsorted => asked.failed(Cause::new(S::UNSORTED)),
            Self::Unmet => asked.failed(CHANGED),
            Self::Passing { cause, .. } | Self::Lasting(cause) | Self::NotImplemented(cause) => {
                asked.failed(cause)
            }
        }
    }
}

/// Text of the innermost cause of an error.
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let found = innermost.to_string();
    match found.starts_with(OTHER_NAME) {
        true => "the server's certificate is not valid for the host name of the request".to_owned(),
        false => printable(&found, MOST_MESSAGE),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn messages_of_servers_contain_no_control_characters_and_no_host_names() {
        let shown = |found: &str| innermost(&io::Error::other(found.to_owned()));
        assert_eq!(shown("reset\u{202e}\u{1b}[2J"), "reset\\u{202e}\\u{1b}[2J");
        assert_eq!(
            shown(&format!("{OTHER_NAME} \"inside.example\"; certificate is only valid for DnsName(\"a\")")),
            "the server's certificate is not valid for the host name of the request"
        );
        let unknown = "invalid peer certificate: UnknownIssuer";
        assert_eq!(shown(unknown), unknown);
    }
}
