//! Detects whether a request had to wait for a connection.

use std::future::poll_fn;
use std::pin::pin;

use aws_sdk_s3::config::http::{HttpRequest, HttpResponse};
use aws_sdk_s3::config::{
    ConfigBag, HttpClient, RuntimeComponents, RuntimeComponentsBuilder, SharedHttpClient,
};
use aws_sdk_s3::error::ConnectorError;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::connection::CaptureSmithyConnection;
use aws_smithy_runtime_api::client::connector_metadata::ConnectorMetadata;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};

use crate::observe::{is_observed, note, now};

/// An HTTP client that records the connections opened for observed reads.
#[derive(Debug)]
pub(crate) struct WatchedClient(pub(crate) SharedHttpClient);

#[derive(Debug)]
struct WatchedConnector(SharedHttpConnector);

impl HttpClient for WatchedClient {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(WatchedConnector(self.0.http_connector(settings, components)))
    }

    fn validate_base_client_config(
        &self,
        components: &RuntimeComponentsBuilder,
        config: &ConfigBag,
    ) -> Result<(), BoxError> {
        HttpClient::validate_base_client_config(&self.0, components, config)
    }

    fn connector_metadata(&self) -> Option<ConnectorMetadata> {
        self.0.connector_metadata()
    }
}

impl HttpConnector for WatchedConnector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        // The SDK sets this extension in order to close broken connections; here it shows which connection the request uses.
        let connection = request.extension::<CaptureSmithyConnection>().filter(|_| is_observed()).cloned();
        let answer = self.0.call(request);
        match connection {
            Some(connection) => HttpConnectorFuture::new(watch(answer, connection)),
            None => answer,
        }
    }
}

/// State of a request's connection.
#[derive(Clone, Copy)]
enum Connection {
    Unasked,
    Opening,
    There,
}

/// Waits for the response. At its first poll the client takes an idle connection. If there is none, the client opens one and
/// sends the request on the first connection that becomes usable: the new one or one that becomes idle.
async fn watch(
    answer: HttpConnectorFuture,
    connection: CaptureSmithyConnection,
) -> Result<HttpResponse, ConnectorError> {
    let mut answer = pin!(answer);
    let start = now();
    let mut state = Connection::Unasked;
    poll_fn(|context| {
        let polled = answer.as_mut().poll(context);
        state = match state {
            Connection::There => Connection::There,
            Connection::Unasked if connection.get().is_some() => Connection::There,
            Connection::Unasked => {
                note(|parts| parts.new_connections += 1);
                Connection::Opening
            }
            Connection::Opening if connection.get().is_some() => {
                note(|parts| parts.connect = start.elapsed());
                Connection::There
            }
            Connection::Opening => Connection::Opening,
        };
        polled
    })
    .await
}
