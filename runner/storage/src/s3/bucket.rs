//! A bucket that answers, as the operations of a store use it.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tracing::Dispatch;
use tracing::instrument::WithSubscriber;

use crate::clock::now;
use crate::observe::note;
use crate::s3::attempts::attempts;
use crate::s3::client::connect;
use crate::s3::failure::{Cause, Failure};
use crate::s3::settings::{S3Settings, S3Timeouts};

/// A bucket, and the client for it once somebody has asked for something.
pub(crate) struct Bucket {
    store: Arc<str>,
    settings: S3Settings,
    /// Or why there is none: looking for a region may take seconds, and would end the same for every sample.
    client: OnceCell<Result<Client, Cause>>,
}

impl Bucket {
    pub(crate) fn new(store: Arc<str>, settings: S3Settings) -> Self {
        Self { store, settings, client: OnceCell::new() }
    }

    pub(crate) fn store(&self) -> &Arc<str> {
        &self.store
    }

    pub(crate) fn name(&self) -> &str {
        &self.settings.bucket
    }

    /// What stands before each key of the store.
    pub(crate) fn prefix(&self) -> &str {
        &self.settings.prefix
    }

    /// A key of the store, or a prefix, as the bucket has it.
    pub(crate) fn full(&self, key: &str) -> String {
        format!("{}{key}", self.settings.prefix)
    }

    pub(crate) fn timeouts(&self) -> S3Timeouts {
        self.settings.timeouts
    }

    /// The client, made at the first call.
    async fn client(&self) -> Result<&Client, Failure> {
        let most = self.settings.timeouts.attempt;
        let connect = || async {
            match timeout(most, connect(&self.settings).with_subscriber(Dispatch::none())).await {
                Ok(client) => client.map_err(|fault| Cause::new(fault.to_string())),
                Err(_) => Err(Cause::new(format!(
                    "no region was found within {most:?}; name it in the store's settings"
                ))),
            }
        };
        self.client.get_or_init(connect).await.as_ref().map_err(|cause| Failure::Lasting(cause.clone()))
    }

    /// Does `attempt` as often as the settings allow; each, and all together, may take `allowance` longer than they say.
    pub(crate) async fn attempts<'a, T, A: Future<Output = Result<T, Failure>>>(
        &'a self,
        allowance: Duration,
        mut attempt: impl FnMut(&'a Client) -> A,
    ) -> Result<T, Failure> {
        // Before the first attempt's time begins, which is for the request alone.
        let client = self.client().await?;
        attempts(self.settings.retries, self.settings.timeouts, allowance, || attempt(client)).await
    }

    /// The answer to a request, once it has begun.
    pub(crate) async fn answer<T, E: ProvideErrorMetadata>(
        &self,
        request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, Failure> {
        let most = self.settings.timeouts.first_byte;
        let start = now();
        match timeout(most, request).await {
            Ok(Ok(answer)) => {
                note(|parts| parts.first_byte = start.elapsed().saturating_sub(parts.connect));
                Ok(answer)
            }
            Ok(Err(error)) => Err(Failure::of_request(&error)),
            Err(_) => Err(Failure::passing(format!("no answer within {most:?}"))),
        }
    }
}
