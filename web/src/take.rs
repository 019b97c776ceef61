//! What handlers take from requests; what cannot be taken is a problem, told as all others.

use std::borrow::Cow;

use aide::OperationInput;
use aide::generate::GenContext;
use aide::openapi::{MediaType, Operation, RequestBody, SchemaObject};
use aide::operation::set_body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use bytes::Bytes;
use penstock_types::spec;
use penstock_types::text::printable;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde::de::value::StrDeserializer;
use tokio::time::Instant;

use crate::body::{Pace, Pieces, want_type};
use crate::problem::{ApiError, Kind};
use crate::router::App;
use crate::settings::ServeLimits;

/// The parts of a path that stand for something.
pub(crate) struct InPath<T>(pub(crate) T);

/// What stands behind the `?`.
pub(crate) struct InQuery<T>(pub(crate) T);

/// A small JSON document of a known shape.
pub(crate) struct Sent<T>(pub(crate) T);

/// A pipeline document as it was sent, read by those who know pipelines.
pub(crate) struct SentPipeline(pub(crate) Bytes);

/// A module as it is sent, not yet read.
pub(crate) struct SentModule(pub(crate) Pieces);

/// The largest JSON of a known shape that is not a trial.
const SMALL_BYTES: usize = 64 << 10;
/// A module may come this slowly, in bytes a second, when it is large.
const MODULE_BYTES_PER_S: u64 = 32 << 10;

/// A shape with a size of its own.
pub(crate) trait Limited {
    /// The most bytes that it may have.
    fn most(limits: &ServeLimits) -> usize;
}

/// For shapes of a few members.
macro_rules! small {
    ($($shape:ty),+ $(,)?) => { $(
        impl $crate::take::Limited for $shape {
            fn most(_: &$crate::settings::ServeLimits) -> usize {
                $crate::take::SMALL
            }
        }
    )+ };
}
pub(crate) use small;

/// For [`small`].
pub(crate) const SMALL: usize = SMALL_BYTES;

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let taken = Path::<T>::from_request_parts(parts, state).await;
        taken.map(|Path(taken)| Self(taken)).map_err(|error| {
            ApiError::not_found(format!("no such address: {}", printable(&error.body_text(), 300)))
        })
    }
}

impl<T: JsonSchema> OperationInput for InPath<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        Path::<T>::operation_input(ctx, operation);
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for InQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let taken = Query::<T>::try_from_uri(&parts.uri);
        taken
            .map(|Query(taken)| Self(taken))
            .map_err(|error| ApiError::new(Kind::BadRequest, printable(&error.body_text(), 500)))
    }
}

impl<T: JsonSchema> OperationInput for InQuery<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        Query::<T>::operation_input(ctx, operation);
    }
}

impl<T: DeserializeOwned + Limited> FromRequest<App> for Sent<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let bytes = json_bytes(request, app, T::most(&app.limits)).await?;
        let value = if bytes.is_empty() { serde_json::json!({}) } else { parsed(&bytes)? };
        spec::read_value(value).map(Self).map_err(|faults| ApiError::invalid_document(&faults))
    }
}

/// How many of a list; at least one, at most `MOST`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "u32")]
pub(crate) struct Limit<const MOST: u32>(u32);

impl<const MOST: u32> Limit<MOST> {
    pub(crate) fn get(self) -> u32 {
        self.0
    }
}

impl<const MOST: u32> TryFrom<u32> for Limit<MOST> {
    type Error = String;

    fn try_from(wanted: u32) -> Result<Self, String> {
        if (1..=MOST).contains(&wanted) {
            Ok(Self(wanted))
        } else {
            Err(format!("found `{wanted}`, wanted 1 to {MOST}"))
        }
    }
}

impl<const MOST: u32> JsonSchema for Limit<MOST> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("LimitOf{MOST}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": MOST })
    }
}

/// A word out of those that a field takes; an error lists them.
pub(crate) fn word<T: DeserializeOwned>(field: &str, word: &str) -> Result<T, ApiError> {
    let reader = StrDeserializer::<serde::de::value::Error>::new(word);
    T::deserialize(reader).map_err(|error| {
        let told = error.to_string().replacen("unknown variant", "unknown word", 1);
        ApiError::new(Kind::BadRequest, printable(&format!("`{field}`: {told}"), 500))
    })
}

/// Words that stand with commas between them.
pub(crate) fn words<T: DeserializeOwned>(field: &str, list: Option<&str>) -> Result<Vec<T>, ApiError> {
    let words = list.unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|found| word(field, found)).collect()
}

fn parsed(bytes: &[u8]) -> Result<serde_json::Value, ApiError> {
    spec::parse(bytes).map_err(|faults| ApiError::invalid_document(&faults))
}

impl<T: JsonSchema> OperationInput for Sent<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        axum::Json::<T>::operation_input(ctx, operation);
    }
}

impl FromRequest<App> for SentPipeline {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        json_bytes(request, app, app.limits.document_bytes).await.map(Self)
    }
}

impl OperationInput for SentPipeline {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        let schema = json_schema!({
            "type": "object", "description": "A pipeline document; its schema is at `/api/v1/schema/pipeline`."
        });
        body_of(ctx, operation, "application/json", schema);
    }
}

impl FromRequest<App> for SentModule {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        want_type(&parts.headers, &["application/wasm", "application/octet-stream"])?;
        let pace = Pace {
            until: Instant::now() + app.limits.body_time,
            stall: app.limits.stall_time,
            bytes_per_s: Some(MODULE_BYTES_PER_S),
        };
        // How large it may be is the gate's to say, while it comes.
        Pieces::new(&parts.headers, body, u64::MAX, "the module", pace).map(Self)
    }
}

impl OperationInput for SentModule {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        let schema = json_schema!({ "type": "string", "format": "binary" });
        body_of(ctx, operation, "application/wasm", schema);
    }
}

async fn json_bytes(request: Request, app: &App, most: usize) -> Result<Bytes, ApiError> {
    let (parts, body) = request.into_parts();
    let pace = Pace {
        until: Instant::now() + app.limits.body_time,
        stall: app.limits.stall_time,
        bytes_per_s: Some(MODULE_BYTES_PER_S),
    };
    let bytes = Pieces::new(&parts.headers, body, most as u64, "the document", pace)?.whole().await?;
    if !bytes.is_empty() {
        want_type(&parts.headers, &["application/json"])?;
    }
    Ok(bytes)
}

fn body_of(ctx: &mut GenContext, operation: &mut Operation, kind: &str, json_schema: Schema) {
    let schema = Some(SchemaObject { json_schema, example: None, external_docs: None });
    let body = RequestBody {
        content: [(kind.to_owned(), MediaType { schema, ..MediaType::default() })].into_iter().collect(),
        required: true,
        ..RequestBody::default()
    };
    set_body(ctx, operation, body);
}
