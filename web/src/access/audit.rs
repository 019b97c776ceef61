//! Checks of the sender's role, and the audit log, which has an entry for each request that changes something.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use penstock_server::Runs;
use penstock_types::text::printable;

use super::caller::{Caller, Role, sign_in_needed};
use crate::problem::ApiError;

/// Maximum length of the target of a request in an entry, in characters.
const MAX_TARGET: usize = 300;
const PREFIX: &str = "/api/v1/";
/// Operations that change nothing, although they require a higher role than `read`.
const UNRECORDED: [&str; 2] = ["inspect_module", "try_module"];

/// Operation of the API, guarded by a layer in front of its handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded {
    /// Minimum role of the sender; `None` if no token is required.
    pub(crate) role: Option<Role>,
    /// Id of the operation.
    pub(crate) action: &'static str,
}

/// Changes that a response has made. The audit log has an entry for each, which names it beside the target of the request.
#[derive(Clone, Debug)]
pub(crate) struct Recorded(pub(crate) Vec<String>);

/// Change in progress, recorded on drop even if there is no response: a change may be made although the client disconnects before
/// the response.
struct UnderWay {
    runs: Runs,
    token: Arc<str>,
    address: IpAddr,
    action: &'static str,
    target: String,
    /// Changes within the target; none if the request makes one change.
    parts: Vec<String>,
    /// Status of the response; `None` before there is one.
    status: Option<StatusCode>,
}

impl Guarded {
    /// Refuses senders whose role is too low, and records changes by all other senders.
    pub(crate) async fn enter(self, request: Request, next: Next) -> Response {
        let Some(role) = self.role else { return next.run(request).await };
        let extensions = request.extensions();
        let caller = Caller::of(extensions).ok_or_else(sign_in_needed);
        let caller = match caller.and_then(|caller| caller.needs(role).map(|()| caller)) {
            Ok(caller) => caller,
            Err(error) => return error.into_response(),
        };
        if !self.is_change(role, &request) {
            return next.run(request).await;
        }
        let (Some(runs), Some(ConnectInfo(address))) =
            (extensions.get::<Runs>(), extensions.get::<ConnectInfo<IpAddr>>())
        else {
            tracing::error!("refused a change because it cannot be recorded");
            return ApiError::defect().into_response();
        };
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        let mut change = UnderWay {
            runs: runs.clone(),
            token: caller.name.clone(),
            address: address.to_canonical(),
            action: self.action,
            target: printable(target.trim_start_matches(PREFIX), MAX_TARGET),
            parts: Vec::new(),
            status: None,
        };
        let response = next.run(request).await;
        change.status = Some(response.status());
        if let Some(Recorded(parts)) = response.extensions().get() {
            change.parts.clone_from(parts);
        }
        if let Some(made) = response.headers().get(header::LOCATION).and_then(|made| made.to_str().ok()) {
            change.target = format!("{} -> {}", change.target, made.trim_start_matches(PREFIX));
        }
        response
    }

    fn is_change(self, role: Role, request: &Request) -> bool {
        let mut words = request.uri().query().unwrap_or_default().split('&');
        let only_looks = request.method() == Method::GET
            || role == Role::Read
            || UNRECORDED.contains(&self.action)
            || words.any(|word| word == "validate_only=true");
        !only_looks
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // A request that failed with a client error has changed nothing.
        if self.status.is_some_and(|status| status.is_client_error()) {
            return;
        }
        let (address, status) = (self.address.to_string(), self.status.map(|status| status.as_u16()));
        let record = |target: &str| self.runs.record(&self.token, &address, self.action, target, status);
        if self.parts.is_empty() {
            record(&self.target);
        }
        for part in &self.parts {
            record(&printable(&format!("{} {part}", self.target), MAX_TARGET));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, pending, poll_fn};
    use std::task::Poll;

    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn;
    use axum::routing::post;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;
    use penstock_pipeline::Stores;
    use penstock_server::{AuditQuery, RunsSettings};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_change_is_recorded_when_its_client_disconnects_before_the_response() {
        let folder = tempfile::tempdir().unwrap();
        let settings = RunsSettings::new(folder.path(), Stores::default());
        let runs = Runs::open(&tokio::runtime::Handle::current(), settings).unwrap();
        let guarded = Guarded { role: Some(Role::Run), action: "clone_run" };
        let enter = from_fn(move |request, next| guarded.enter(request, next));
        let app = Router::new().route("/api/v1/runs/{id}/clone", post(pending::<()>).route_layer(enter));
        let mut request = Request::post("/api/v1/runs/a/clone").body(Body::empty()).unwrap();
        request.extensions_mut().insert(runs.clone());
        request.extensions_mut().insert(ConnectInfo(IpAddr::from([10, 0, 0, 1])));
        request.extensions_mut().insert(Caller::anyone());
        {
            let mut response = std::pin::pin!(TowerToHyperService::new(app).call(request));
            assert!(poll_fn(|context| Poll::Ready(response.as_mut().poll(context).is_pending())).await);
            assert!(runs.audit(AuditQuery::default()).await.unwrap().items.is_empty());
        }
        let entry = runs.audit(AuditQuery::default()).await.unwrap().items.remove(0);
        let text = [entry.token, entry.address, entry.action, entry.target].join(" ");
        assert_eq!((text.as_str(), entry.status), ("anyone 10.0.0.1 clone_run runs/a/clone", None));
    }
}
