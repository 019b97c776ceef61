//! Extractors whose rejections are problem documents.

use std::ops::Deref;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use bytes::Bytes;
use penstock_server::HeldAmount;
use penstock_types::fault::SpecFault;
use penstock_types::spec::{self, JsonBounds};
use penstock_types::text::printable;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::access::client;
use crate::app::App;
use crate::body::{BodyPace, BodyPieces, SMALL_BYTES, require_content_type};
use crate::limits::DOCUMENT_BYTES;
use crate::openapi::{Input, Operation};
use crate::problem::{ApiError, ApiResult, ProblemKind};

/// Parameters in the path of a request.
pub(crate) struct InPath<T>(T);

/// Parameters in the query string.
pub(crate) struct InQuery<T>(pub(crate) T);

/// JSON body of a known type, and the memory reserved for it until the request has been handled.
pub(crate) struct Sent<T>(pub(crate) T, pub(crate) HeldAmount);

/// Unparsed pipeline document, which the registry parses, and the memory reserved for it.
pub(crate) struct SentPipeline(pub(crate) Bytes, pub(crate) HeldAmount);

/// Module, whose bytes are processed as they arrive.
pub(crate) struct SentModule(pub(crate) BodyPieces);

/// Minimum rate at which a module must arrive, in bytes per second.
const MODULE_BYTES_PER_S: u64 = 32 << 10;
/// Minimum rate at which a document must arrive, in bytes per second. It is higher than for a module, because a document is held
/// in memory until it is complete.
const JSON_BYTES_PER_S: u64 = 256 << 10;

/// Type that clients send as a JSON document.
pub(crate) trait JsonBody: DeserializeOwned {
    /// Maximum size of a document, in bytes and in JSON nodes.
    fn bounds() -> JsonBounds {
        JsonBounds::of_bytes(SMALL_BYTES)
    }

    /// Converts the JSON document; fails with all faults of the document.
    fn read(document: Value) -> Result<Self, Vec<SpecFault>> {
        spec::read_value(document)
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let taken = Path::<T>::from_request_parts(parts, state).await;
        taken.map(|Path(taken)| Self(taken)).map_err(|error| {
            ApiError::not_found(format!("no resource has this path: {}", printable(&error.body_text(), 300)))
        })
    }
}

impl<T> Deref for InPath<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: JsonSchema> Input for InPath<T> {
    fn describe(operation: &mut Operation<'_>) {
        operation.parameters::<T>("path");
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for InQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Query::try_from_uri(&parts.uri)
            .map(|Query(taken)| Self(taken))
            .map_err(|error| ApiError::new(ProblemKind::BAD_REQUEST, printable(&error.body_text(), 500)))
    }
}

impl<T: JsonSchema> Input for InQuery<T> {
    fn describe(operation: &mut Operation<'_>) {
        operation.parameters::<T>("query");
    }
}

impl<T: JsonBody + Send + 'static> FromRequest<App> for Sent<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let most = T::bounds();
        let (bytes, room) = json_bytes(request, app, most).await?;
        if bytes.len() <= SMALL_BYTES {
            return read(bytes, most).map(|value| Self(value, room));
        }
        // The blocking task owns `room`, so the memory stays reserved even if the client disconnects.
        run_blocking(move || read(bytes, most).map(|value| Self(value, room))).await?
    }
}

/// Runs long work on a thread that does no I/O.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => ApiError::busy("the server is shutting down", 10),
    })
}

/// Parses a document; an empty body is treated like `{}`.
fn read<T: JsonBody>(bytes: Bytes, most: JsonBounds) -> ApiResult<T> {
    let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
    let document = spec::parse_within(&bytes, most);
    // The text is freed before the parsed values are copied into the result.
    drop(bytes);
    document.and_then(T::read).map_err(|faults| ApiError::invalid_document(&faults))
}

impl<T: JsonSchema> Input for Sent<T> {
    fn describe(operation: &mut Operation<'_>) {
        operation.json_body::<T>();
    }
}

impl FromRequest<App> for SentPipeline {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let (bytes, room) = json_bytes(request, app, JsonBounds::of_bytes(DOCUMENT_BYTES)).await?;
        Ok(Self(bytes, room))
    }
}

impl Input for SentPipeline {
    fn describe(operation: &mut Operation<'_>) {
        let description = "A pipeline document; its schema is at `/api/v1/schema/pipeline`.";
        operation.body("application/json", json!({ "type": "object", "description": description }));
    }
}

impl FromRequest<App> for SentModule {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        require_content_type(&parts.headers, &["application/wasm", "application/octet-stream"])?;
        let most = app.runs.settings().sandbox.gate.module_bytes;
        let pace = BodyPace::at_least(MODULE_BYTES_PER_S);
        BodyPieces::new(&parts.headers, body, most, "the module", pace).map(Self)
    }
}

impl Input for SentModule {
    fn describe(operation: &mut Operation<'_>) {
        operation.body("application/wasm", json!({ "type": "string", "format": "binary" }));
    }
}

async fn json_bytes(request: Request, app: &App, most: JsonBounds) -> ApiResult<(Bytes, HeldAmount)> {
    let (parts, body) = request.into_parts();
    let pace = BodyPace::at_least(JSON_BYTES_PER_S);
    let pieces = BodyPieces::new(&parts.headers, body, most.bytes as u64, "the document", pace)?;
    let (bytes, room) = pieces.whole_json(app.rooms.part(&client(&parts.extensions)), most.nodes).await?;
    if !bytes.is_empty() {
        require_content_type(&parts.headers, &["application/json"])?;
    }
    Ok((bytes, room))
}

#[cfg(test)]
mod tests {
    use axum::extract::rejection::QueryRejection;
    use penstock_server::RunQuery;
    use penstock_types::run::RunState;

    use super::*;

    impl JsonBody for Value {}

    #[test]
    fn a_document_is_read_within_the_bounds_of_its_type() {
        let read = |text: &str, most| read::<Value>(text.to_owned().into(), JsonBounds::of_bytes(most));
        assert_eq!(read("", 2).unwrap(), json!({}));
        let long = format!("\"{}\"", "x".repeat(5 << 20));
        assert!(read(&long, long.len()).is_ok());
        assert!(read(&long, long.len() - 1).is_err());
        assert!(read(r#"{"a": 1, "a": 2}"#, 100).is_err(), "duplicate names are refused");
    }

    #[test]
    fn a_list_of_states_accepts_known_names_and_surplus_commas() {
        let states = |query: &str| query_of::<RunQuery>(query).map(|query| query.states);
        assert_eq!(states("state=running,+,failed,").unwrap(), [RunState::Running, RunState::Failed]);
        assert_eq!(states("").unwrap(), []);
        assert!(states("state=running,done").is_err());
    }

    #[test]
    fn a_limit_is_between_1_and_200() {
        let limit = |query: &str| query_of::<RunQuery>(query).map(|query| query.limit);
        assert_eq!(limit("").unwrap(), None);
        assert_eq!((limit("limit=1").unwrap(), limit("limit=200").unwrap()), (Some(1), Some(200)));
        assert!(limit("limit=0").unwrap_err().to_string().contains("found `0`, expected 1 to 200"));
        assert!(limit("limit=201").is_err());
    }

    fn query_of<T: DeserializeOwned>(query: &str) -> Result<T, QueryRejection> {
        let uri = format!("/?{query}").parse().unwrap();
        Query::<T>::try_from_uri(&uri).map(|Query(query)| query)
    }
}
