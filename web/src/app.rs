use std::convert::Infallible;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use penstock_server::{ANYONE, Runs, SharedAmount};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::{Caller, RequestGuard, Role, client};

/// State that handlers share.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) runs: Runs,
    pub(crate) guard: Arc<RequestGuard>,
    /// Number of open event streams.
    pub(crate) streams: SharedAmount,
    /// Memory of request bodies.
    pub(crate) rooms: SharedAmount,
    /// Memory of answers and of event streams.
    pub(crate) answers: SharedAmount,
    /// Cancelled when the server shuts down, which ends event streams.
    pub(crate) ending: CancellationToken,
    /// Time at which the server started, by the wall clock and by the monotonic clock.
    pub(crate) started: (SystemTime, Instant),
}

impl FromRequestParts<App> for App {
    type Rejection = Infallible;

    /// Returns the state for one request: work counts against the shares of the client that sends the request, and only the
    /// stores that its token allows are accessible. Operations of the API get the state through this extractor only.
    async fn from_request_parts(parts: &mut Parts, app: &Self) -> Result<Self, Infallible> {
        let unknown = Caller { name: ANYONE.into(), role: Role::Read, stores: Some(Arc::default()) };
        let caller = Caller::of(&parts.extensions).unwrap_or(&unknown);
        let runs = app.runs.for_client(client(&parts.extensions));
        let mut runs = runs.for_token(&caller.name, caller.role == Role::Admin);
        if let Some(stores) = &caller.stores {
            runs = runs.limited_to(stores);
        }
        Ok(Self { runs, ..app.clone() })
    }
}
