//! Failures of attempts, classified by whether another attempt may succeed.

use std::error::Error;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ConnectorError, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::{ByteStreamError, DateTime, DateTimeFormat};
use penstock_types::text::printable;

use crate::asked::{Asked, CHANGED};
use crate::error::StoreError;
use crate::s3::answer::UnfitAnswer;
use crate::s3::credentials::Absent;

/// Maximum length, in bytes, of the part of a service's message that an error contains.
pub(crate) const MOST_MESSAGE: usize = 300;

/// Header with the region of the bucket that was asked for.
const REGION: &str = "x-amz-bucket-region";

/// Code of a request whose time differs too much from that of the service.
const TOO_SKEWED: &str = "RequestTimeTooSkewed";

/// Difference of the clocks from which on a service refuses requests.
const MOST_SKEW: Duration = Duration::from_secs(15 * 60);

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
    /// The service denies the access for want of a permission.
    Forbidden(Cause),
    /// The service names the region of the bucket. `failure` applies if the request cannot be made for that region.
    Moved {
        region: String,
        /// True if the service answers only elsewhere, whatever the region of the request.
        is_redirect: bool,
        failure: Box<S3Failure>,
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

    /// The failure of a request that was made for `region`.
    pub(crate) fn in_region(self, region: &str) -> Self {
        match self {
            Self::Moved { region: named, is_redirect: false, failure } if named == region => *failure,
            other => other,
        }
    }

    /// Names the variable that omits checksums, if the service may not know them.
    pub(crate) fn naming(self, variable: &str) -> Self {
        let note = format!("if the service does not know checksums, {variable}=when_required omits them");
        match &self {
            Self::NotImplemented(_) => self.with_note(&note),
            Self::Lasting(Cause(cause)) if cause.to_ascii_lowercase().contains("checksum") => {
                self.with_note(&note)
            }
            _ => self,
        }
    }

    /// Adds a note to the failure's cause.
    pub(crate) fn with_note(self, note: &str) -> Self {
        let with_note = |Cause(cause)| Cause(format!("{cause}; {note}"));
        match self {
            Self::Denied(cause) => Self::Denied(with_note(cause)),
            Self::Forbidden(cause) => Self::Forbidden(with_note(cause)),
            Self::Lasting(cause) => Self::Lasting(with_note(cause)),
            Self::NotImplemented(cause) => Self::NotImplemented(with_note(cause)),
            Self::Passing { cause, after } => Self::Passing { cause: with_note(cause), after },
            Self::Refused { is_expired, failure } => Self::refused(is_expired, failure.with_note(note)),
            Self::Moved { region, is_redirect, failure } => {
                Self::Moved { region, is_redirect, failure: Box::new(failure.with_note(note)) }
            }
            other => other,
        }
    }

    /// Converts the failure into the store's error.
    pub(crate) fn of(self, asked: &Asked) -> StoreError {
        match self {
            Self::Refused { failure, .. } | Self::Moved { failure, .. } => failure.of(asked),
            Self::Forbidden(cause) | Self::Denied(cause) => asked.without_credentials(cause),
            Self::NotFound => asked.not_found(),
            Self::OutOfRange { range, size } => asked.out_of_range(range, size),
            Self::TooLarge { size } => asked.too_large(size),
            Self::NothingThere => {
                asked.failed(Cause::new("the service reports that the object ends before the range"))
            }
            Self::Unsorted => asked.failed(Cause::new(
                "the service does not list keys in byte order, as S3 does, which showed after some of them were used: set `\"sorted\": \
                 false` of the store",
            )),
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

    /// Failure of a request that was not sent, for lack of credentials or a connection, or to which no usable response came.
    fn of_connection(error: &ConnectorError) -> Self {
        if let Some(unfit) = find::<UnfitAnswer>(error) {
            return Self::passing(unfit.to_string());
        }
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
        let cause = match (code, message) {
            (Some(code), Some(message)) => {
                format!("{}: {} (status {status})", bounded(code), bounded(message))
            }
            (Some(code), None) => format!("{} (status {status})", bounded(code)),
            (None, _) if answer.status().is_success() => {
                format!("the response is not in the format of S3 (status {status})")
            }
            (None, _) => format!("status {status} without an S3 error"),
        };
        let code = code.unwrap_or_default();
        let cause = match clocks(answer, code) {
            Some(clocks) => Cause::new(format!("{cause}; {clocks}")),
            None => Cause::new(cause),
        };
        let failure = Self::of_code(answer, code, cause);
        match region(answer, code) {
            Some(region) => Self::Moved { region, is_redirect: status != 400, failure: Box::new(failure) },
            None => failure,
        }
    }

    fn of_code(answer: &HttpResponse, code: &str, cause: Cause) -> Self {
        match (answer.status().as_u16(), code) {
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
                | TOO_SKEWED,
            ) => Self::Passing { cause, after: retry_after(answer) },
            // The SDK signs the next request with the time of the response.
            (403, "") if clocks(answer, code).is_some() => Self::Passing { cause, after: None },
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
            | (401, "") => Self::refused(false, Self::Denied(cause)),
            (403, "") => Self::refused(false, Self::Forbidden(cause)),
            (400, "") => Self::refused(false, Self::Lasting(cause)),
            (401 | 403, _) | (_, "AccessDenied") => Self::Forbidden(cause),
            _ => Self::Lasting(cause),
        }
    }
}

/// Difference between the clocks, in words, if it may be the reason of a refusal. A response without a body has no code.
fn clocks(answer: &HttpResponse, code: &str) -> Option<String> {
    let date = DateTime::from_str(answer.headers().get("date")?, DateTimeFormat::HttpDate).ok()?;
    let (service, machine) = (SystemTime::try_from(date).ok()?, SystemTime::now());
    let (apart, relation) = match service.duration_since(machine) {
        Ok(apart) => (apart, "behind"),
        Err(error) => (error.duration(), "ahead of"),
    };
    let is_reason = match code {
        TOO_SKEWED => apart > Duration::from_secs(60),
        "" => answer.status().as_u16() == 403 && apart > MOST_SKEW,
        _ => false,
    };
    let minutes = (apart.as_secs() + 30) / 60;
    is_reason.then(|| format!("the clock of this machine is {minutes} min {relation} that of the service"))
}

/// Region of the bucket in the response to a request that may have been sent to another region.
fn region(answer: &HttpResponse, code: &str) -> Option<String> {
    // Other responses name a region as well, whatever that of the request.
    match (answer.status().as_u16(), code) {
        (301 | 307, _)
        | (400, "" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {}
        _ => return None,
    }
    let in_body = || {
        let body = str::from_utf8(answer.body().bytes()?).ok()?;
        Some(body.split_once("<Region>")?.1.split_once("</Region>")?.0)
    };
    let region = answer.headers().get(REGION).or_else(in_body)?;
    is_region(region).then(|| region.to_owned())
}

/// True for the form of names of regions, such as `us-gov-west-1`. The name becomes a part of the host's, so it cannot have a dot.
fn is_region(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    text.len() <= 40
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.split('-').all(is_part)
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
    fn names_of_regions_are_parts_of_host_names() {
        for good in ["eu-west-1", "us-gov-west-1", "fr-par", "default", "us-iso-east-1"] {
            assert!(is_region(good), "{good}");
        }
        let long = "a".repeat(41);
        for bad in
            ["", "-", "eu-", "EU", "a.example", "eu-west-1/", "eu west", "a@b", "1", "\u{e9}", "a--b", &long]
        {
            assert!(!is_region(bad), "{bad}");
        }
    }

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
