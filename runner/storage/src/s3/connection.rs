//! Detects whether a request had to wait for a connection, and checks the responses.

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
use crate::s3::answer::Requested;

/// An HTTP client, or a connector of one, that checks responses.
#[derive(Debug)]
pub(crate) struct Checked<T> {
    pub(crate) inner: T,
    /// Records the connections opened for observed reads.
    pub(crate) is_watched: bool,
}

impl HttpClient for Checked<SharedHttpClient> {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let inner = self.inner.http_connector(settings, components);
        SharedHttpConnector::new(Checked { inner, is_watched: self.is_watched })
    }

    fn validate_base_client_config(
        &self,
        components: &RuntimeComponentsBuilder,
        config: &ConfigBag,
    ) -> Result<(), BoxError> {
        HttpClient::validate_base_client_config(&self.inner, components, config)
    }

    fn connector_metadata(&self) -> Option<ConnectorMetadata> {
        self.inner.connector_metadata()
    }
}

impl HttpConnector for Checked<SharedHttpConnector> {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        // The SDK sets this extension in order to close broken connections; here it shows which connection the request uses.
        let connection = request.extension::<CaptureSmithyConnection>();
        let connection = connection.filter(|_| self.is_watched && is_observed()).cloned();
        let requested = Requested::of(&request);
        let answer = self.inner.call(request);
        HttpConnectorFuture::new(async move {
            let answer = match connection {
                Some(connection) => watch(answer, connection).await?,
                None => answer.await?,
            };
            requested.checked(answer).await
        })
    }
}

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
