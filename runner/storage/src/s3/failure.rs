//! Failures of attempts, classified by whether another attempt may succeed.

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ConnectorError, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStreamError;
use penstock_types::text::printable;

use crate::asked::{Asked, CHANGED};
use crate::error::StoreError;
use crate::s3::credentials::Absent;

/// Maximum length, in bytes, of the part of a service's message that an error contains.
const MOST_MESSAGE: usize = 300;

/// Header with the region of the bucket that was asked for.
const REGION: &str = "x-amz-bucket-region";

/// Start of the TLS library's message that ends with host names.
const OTHER_NAME: &str = "invalid peer certificate: certificate not valid for name";

#[derive(Debug)]
pub(crate) enum S3Failure {
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
        failure: Box<S3Failure>,
    },
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
}

impl S3Failure {
    pub(crate) fn passing(text: impl Into<String>) -> Self {
        Self::Passing { cause: Cause::new(text), after: None }
    }

    pub(crate) fn lasting(text: impl Into<String>) -> Self {
        Self::Lasting(Cause::new(text))
    }

    fn refused(is_expired: bool, failure: Self) -> Self {
        Self::Refused { is_expired, failure: Box::new(failure) }
    }

    /// Adds a note to the failure's cause.
    pub(crate) fn with_note(self, note: &str) -> Self {
        let with_note = |Cause(cause)| Cause(format!("{cause}; {note}"));
        match self {
            Self::Denied(cause) => Self::Denied(with_note(cause)),
            Self::Lasting(cause) => Self::Lasting(with_note(cause)),
            other => other,
        }
    }

    /// Converts the failure into the store's error.
    pub(crate) fn of(self, asked: &Asked) -> StoreError {
        match self {
            Self::Refused { failure, .. } => failure.of(asked),
            Self::NotFound => asked.not_found(),
            Self::Denied(cause) => asked.without_credentials(cause),
            Self::OutOfRange { range, size } => asked.out_of_range(range, size),
            Self::TooLarge { size } => asked.too_large(size),
            Self::NothingThere => {
                asked.failed(Cause::new("the service reports that the object ends before the range"))
            }
            Self::Unmet => asked.failed(CHANGED),
            Self::Passing { cause, .. } | Self::Lasting(cause) | Self::NotImplemented(cause) => {
                asked.failed(cause)
            }
        }
    }

    /// Failure of a request without a response, or with an error response.
    pub(crate) fn of_request<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> Self {
        match error {
            SdkError::ConstructionFailure(_) => {
                Self::lasting("no request could be built from the store's settings")
            }
            SdkError::TimeoutError(_) => Self::passing("the connection timed out"),
            SdkError::DispatchFailure(failure) => match failure.as_connector_error() {
                Some(error) => Self::of_connection(error),
                None => Self::passing("the connection failed"),
            },
            SdkError::ResponseError(answer) => Self::of_answer(answer.raw(), None, None),
            SdkError::ServiceError(answer) => {
                let found = answer.err().meta();
                Self::of_answer(answer.raw(), found.code(), found.message())
            }
            _ => Self::lasting("the SDK failed with an unknown error"),
        }
    }

    /// Failure of a response body.
    pub(crate) fn of_body(error: &ByteStreamError) -> Self {
        Self::passing(format!("the response ended early: {}", innermost(error)))
    }

    /// Failure of a request that was not sent, for lack of credentials or a connection, or to which no response began.
    fn of_connection(error: &ConnectorError) -> Self {
        match find::<Absent>(error) {
            Some(absent @ Absent::TimedOut) => Self::passing(absent.to_string()),
            Some(absent) => Self::Denied(Cause::new(absent.to_string())),
            None if error.is_user() => Self::lasting("no request could be built from the store's settings"),
            None if error.is_timeout() => Self::passing("no connection within the time limit"),
            None => Self::passing(format!("the connection failed: {}", innermost(error))),
        }
    }

    fn of_answer(answer: &HttpResponse, code: Option<&str>, message: Option<&str>) -> Self {
        let status = answer.status().as_u16();
        let bounded = |text| printable(text, MOST_MESSAGE);
        let mut cause = match (code, message) {
            (Some(code), Some(message)) => {
                format!("{}: {} (status {status})", bounded(code), bounded(message))
            }
            (Some(code), None) => format!("{} (status {status})", bounded(code)),
            (None, _) => format!("status {status} without an S3 error"),
        };
        // A bucket is found only in its own region.
        if let (301 | 307 | 400, Some(region)) = (status, answer.headers().get(REGION)) {
            cause +=
                &format!("; the bucket is in the region `{}`: set `region` of the store", bounded(region));
        }
        let cause = Cause::new(cause);
        match (status, code.unwrap_or_default()) {
            (200..=299, _)
            | (408 | 429 | 500 | 502..=599, _)
            | (
                _,
                "SlowDown"
                | "RequestTimeout"
                | "InternalError"
                | "ServiceUnavailable"
                | "Throttling"
                | "ThrottlingException"
                | "RequestThrottled"
                | "TooManyRequests"
                | "RequestLimitExceeded"
                | "OperationAborted"
                | "ConditionalRequestConflict"
                // A request may succeed later, because the clock may be corrected in the meantime.
                | "RequestTimeTooSkewed",
            ) => Self::Passing { cause, after: retry_after(answer) },
            (_, "NoSuchKey") => Self::NotFound,
            (404, "NotFound" | "") => Self::NotFound,
            (416, _) => Self::NothingThere,
            (412, _) => Self::Unmet,
            (501, _) => Self::NotImplemented(cause),
            (_, "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired") => {
                Self::refused(true, Self::Denied(cause))
            }
            (_, "InvalidToken" | "InvalidTokenId" | "InvalidAccessKeyId" | "SignatureDoesNotMatch")
            // The response to a request for metadata has no body, and so no code.
            | (401 | 403, "") => Self::refused(false, Self::Denied(cause)),
            (400, "") => Self::refused(false, Self::Lasting(cause)),
            (401 | 403, _) | (_, "AccessDenied") => Self::Denied(cause),
            _ => Self::Lasting(cause),
        }
    }
}

fn retry_after(answer: &HttpResponse) -> Option<Duration> {
    answer.headers().get("retry-after")?.trim().parse().ok().map(Duration::from_secs)
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn innermost(error: &(dyn Error + 'static)) -> String {
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
