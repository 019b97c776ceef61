//! Classes of the errors of S3.

use std::error::Error;
use std::time::{Duration, SystemTime};

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ConnectorError, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use penstock_types::text::printable;

use crate::remote::failure::{Cause, Failure, MOST_MESSAGE, innermost};
use crate::s3::answer::UnfitAnswer;
use crate::s3::credentials::Absent;

/// Header with the region of the bucket that was asked for.
const REGION: &str = "x-amz-bucket-region";

/// Code of a request whose time differs too much from that of the service.
const TOO_SKEWED: &str = "RequestTimeTooSkewed";

/// Difference of the clocks from which on a service refuses requests.
const MOST_SKEW: Duration = Duration::from_secs(15 * 60);

impl Failure {
    /// Names the variable that omits checksums, if the service may not know them.
    pub(crate) fn naming(self, variable: &str) -> Self {
        let note = format!("if the service does not know checksums, {variable}=when_required omits them");
        let may_be_reason = match &self {
            Self::NotImplemented(_) => true,
            Self::Lasting(cause) => cause.as_str().to_ascii_lowercase().contains("checksum"),
            _ => false,
        };
        if may_be_reason { self.with_note(&*note) } else { self }
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
            Some(place) => Self::Moved { place, is_redirect: status != 400, failure: Box::new(failure) },
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
            (_, "NoSuchKey") | (404, "NotFound" | "") => Self::NotFound,
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
    // Other responses name a region as well, also that of the request.
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

#[cfg(test)]
mod tests {
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
}
