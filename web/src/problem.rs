use std::borrow::Cow;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use penstock_server::{HistoryError, RunsError};
use penstock_types::fault::SpecFault;
use penstock_types::text::with_causes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Error response of the API, as `application/problem+json` (RFC 9457).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Stable identifier of the kind of problem: a path on this server, e.g. `/problems/invalid-document`.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// Standard reason phrase of the status.
    pub title: Cow<'static, str>,
    /// HTTP status code of the response.
    pub status: u16,
    /// Explanation: the value or state that was found, and what would be accepted.
    pub detail: String,
    /// All faults of the document in the request; left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<DocumentFault>,
}

/// One fault of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DocumentFault {
    /// Position in the document, as a JSON Pointer (RFC 6901); empty for the document itself.
    pub pointer: String,
    /// Explanation: the value or state that was found, and what would be accepted.
    pub detail: String,
}

/// Error that a handler returns, sent as a [`Problem`].
#[derive(Debug)]
pub(crate) struct ApiError {
    problem: Box<Problem>,
    retry_after_s: Option<u32>,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;
pub(crate) type JsonResult<T> = ApiResult<Json<T>>;

pub(crate) fn refuse<T>(kind: ProblemKind, detail: impl Into<String>) -> ApiResult<T> {
    Err(ApiError::new(kind, detail))
}

/// Kind of problem: the status of its responses, and the last part of the path that identifies it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProblemKind(StatusCode, &'static str);

impl ProblemKind {
    pub(crate) const BAD_REQUEST: Self = Self(StatusCode::BAD_REQUEST, "bad-request");
    pub(crate) const SIGN_IN_NEEDED: Self = Self(StatusCode::UNAUTHORIZED, "sign-in-needed");
    pub(crate) const TOKEN_NEEDED: Self = Self(StatusCode::FORBIDDEN, "token-needed");
    pub(crate) const ROLE_TOO_LOW: Self = Self(StatusCode::FORBIDDEN, "role-too-low");
    pub(crate) const NOT_OWNER: Self = Self(StatusCode::FORBIDDEN, "not-owner");
    pub(crate) const WRONG_ORIGIN: Self = Self(StatusCode::FORBIDDEN, "wrong-origin");
    pub(crate) const WRONG_HOST: Self = Self(StatusCode::MISDIRECTED_REQUEST, "wrong-host");
    pub(crate) const NOT_FOUND: Self = Self(StatusCode::NOT_FOUND, "not-found");
    pub(crate) const METHOD_NOT_ALLOWED: Self = Self(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed");
    pub(crate) const IN_USE: Self = Self(StatusCode::CONFLICT, "in-use");
    pub(crate) const RUN_DIFFERS: Self = Self(StatusCode::CONFLICT, "run-differs");
    pub(crate) const KEY_USED_OTHERWISE: Self = Self(StatusCode::UNPROCESSABLE_ENTITY, "key-used-otherwise");
    pub(crate) const TOO_LARGE: Self = Self(StatusCode::PAYLOAD_TOO_LARGE, "too-large");
    pub(crate) const TOO_SLOW: Self = Self(StatusCode::REQUEST_TIMEOUT, "too-slow");
    pub(crate) const WRONG_MEDIA_TYPE: Self = Self(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong-media-type");
    pub(crate) const INVALID_DOCUMENT: Self = Self(StatusCode::UNPROCESSABLE_ENTITY, "invalid-document");
    pub(crate) const REFUSED: Self = Self(StatusCode::UNPROCESSABLE_ENTITY, "refused");
    pub(crate) const QUEUE_FULL: Self = Self(StatusCode::TOO_MANY_REQUESTS, "queue-full");
    pub(crate) const QUOTA: Self = Self(StatusCode::TOO_MANY_REQUESTS, "quota");
    pub(crate) const BUSY: Self = Self(StatusCode::SERVICE_UNAVAILABLE, "busy");
    pub(crate) const STORE_FAILED: Self = Self(StatusCode::BAD_GATEWAY, "store-failed");
    pub(crate) const STORAGE_FAILED: Self = Self(StatusCode::INSUFFICIENT_STORAGE, "storage-failed");
    pub(crate) const DISK_FULL: Self = Self(StatusCode::INSUFFICIENT_STORAGE, "disk-full");
    pub(crate) const DEFECT: Self = Self(StatusCode::INTERNAL_SERVER_ERROR, "defect");
}

/// Reason phrase of a status in RFC 9110; the `http` crate has older phrases for two of them.
fn title(status: StatusCode) -> &'static str {
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => "Content Too Large",
        StatusCode::UNPROCESSABLE_ENTITY => "Unprocessable Content",
        _ => status.canonical_reason().unwrap_or_default(),
    }
}

impl ApiError {
    pub(crate) fn new(ProblemKind(status, name): ProblemKind, detail: impl Into<String>) -> Self {
        let problem = Problem {
            kind: format!("/problems/{name}").into(),
            title: title(status).into(),
            status: status.as_u16(),
            detail: detail.into(),
            errors: Vec::new(),
        };
        Self { problem: Box::new(problem), retry_after_s: None }
    }

    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Self::new(ProblemKind::NOT_FOUND, what)
    }

    pub(crate) fn defect() -> Self {
        Self::new(ProblemKind::DEFECT, "a defect of Penstock; the server's log has the details")
    }

    pub(crate) fn busy(detail: impl Into<String>, retry_after_s: u32) -> Self {
        Self { retry_after_s: Some(retry_after_s), ..Self::new(ProblemKind::BUSY, detail) }
    }

    pub(crate) fn invalid_document(faults: &[SpecFault]) -> Self {
        let detail = match faults.len() {
            1 => "1 fault was found".to_owned(),
            count => format!("{count} faults were found"),
        };
        let mut error = Self::new(ProblemKind::INVALID_DOCUMENT, detail);
        error.problem.errors = faults.iter().map(DocumentFault::from).collect();
        error
    }
}

impl From<RunsError> for ApiError {
    fn from(error: RunsError) -> Self {
        let (kind, retry_after_s) = match &error {
            RunsError::Invalid(faults) => return Self::invalid_document(faults),
            RunsError::NotFound { .. } => (ProblemKind::NOT_FOUND, None),
            RunsError::Refused(_) => (ProblemKind::REFUSED, None),
            RunsError::TooLarge { .. } => (ProblemKind::TOO_LARGE, None),
            RunsError::Conflict(_) => (ProblemKind::IN_USE, None),
            RunsError::NotOwner { .. } => (ProblemKind::NOT_OWNER, None),
            RunsError::Differs(_) => (ProblemKind::RUN_DIFFERS, None),
            RunsError::KeyReused => (ProblemKind::KEY_USED_OTHERWISE, None),
            RunsError::QueueFull { .. } => (ProblemKind::QUEUE_FULL, Some(30)),
            RunsError::Quota(_) => (ProblemKind::QUOTA, Some(30)),
            RunsError::DiskFull { .. } => (ProblemKind::DISK_FULL, None),
            RunsError::Busy(_) => (ProblemKind::BUSY, Some(5)),
            RunsError::Closed => (ProblemKind::BUSY, Some(10)),
            RunsError::Storage(..) => (ProblemKind::STORE_FAILED, None),
            RunsError::History(HistoryError::Defect) => (ProblemKind::DEFECT, None),
            RunsError::History(_) | RunsError::File { .. } => (ProblemKind::STORAGE_FAILED, None),
        };
        if matches!(error, RunsError::Storage(..) | RunsError::History(_) | RunsError::File { .. }) {
            // The response does not contain the causes.
            tracing::error!(error = with_causes(&error), "a request failed");
        }
        Self { retry_after_s, ..Self::new(kind, error.to_string()) }
    }
}

impl From<&SpecFault> for DocumentFault {
    fn from(fault: &SpecFault) -> Self {
        Self { pointer: fault.pointer.to_string(), detail: fault.message() }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use penstock_types::fault::Pointer;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_problem_lists_every_fault_with_its_pointer() {
        let faults =
            [SpecFault::new(Pointer::ROOT.key("sink"), "found 5"), SpecFault::new(Pointer::ROOT, "is empty")];
        let problem = serde_json::to_value(ApiError::invalid_document(&faults).problem).unwrap();
        let expected = json!({
            "type": "/problems/invalid-document", "title": "Unprocessable Content", "status": 422,
            "detail": "2 faults were found",
            "errors": [{ "pointer": "/sink", "detail": "found 5" }, { "pointer": "", "detail": "is empty" }]
        });
        assert_eq!(problem, expected);
    }

    #[test]
    fn a_closed_or_overloaded_history_is_unavailable_rather_than_out_of_storage() {
        let status = |error: HistoryError| ApiError::from(RunsError::from(error)).into_response().status();
        assert_eq!(status(HistoryError::Closed), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(HistoryError::Behind), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(HistoryError::Damaged(String::new())), StatusCode::INSUFFICIENT_STORAGE);
        assert_eq!(status(HistoryError::Defect), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn a_busy_response_has_retry_after_and_an_unauthorized_one_names_the_scheme() {
        let busy = ApiError::busy("later", 5).into_response();
        assert_eq!(
            (busy.status().as_u16(), &busy.headers()["retry-after"]),
            (503, &HeaderValue::from_static("5"))
        );
        assert_eq!(busy.headers()["content-type"], "application/problem+json");
        let closed = ApiError::new(ProblemKind::SIGN_IN_NEEDED, "no").into_response();
        assert_eq!(closed.headers()["www-authenticate"], "Bearer");
    }
}
