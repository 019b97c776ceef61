//! A bucket that answers, as the operations of a store use it.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::s3::attempts::attempts;
use crate::s3::client::connect;
use crate::s3::failure::Failure;
use crate::s3::settings::{S3Settings, S3Timeouts};

/// A bucket, and the client for it once somebody has asked for something.
pub(crate) struct Bucket {
    store: Arc<str>,
    settings: S3Settings,
    client: OnceCell<Client>,
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
    pub(crate) async fn client(&self) -> Result<&Client, Failure> {
        let client = self.client.get_or_try_init(|| connect(&self.settings)).await;
        client.map_err(|fault| Failure::lasting(fault.to_string()))
    }

    /// Does `attempt` as often as the settings allow; each may take `allowance` longer than they say.
    pub(crate) async fn attempts<T, A: Future<Output = Result<T, Failure>>>(
        &self,
        allowance: Duration,
        attempt: impl FnMut() -> A,
    ) -> Result<T, Failure> {
        attempts(self.settings.retries, self.settings.timeouts, allowance, attempt).await
    }

    /// The answer to a request, once it has begun.
    pub(crate) async fn answer<T, E: ProvideErrorMetadata>(
        &self,
        request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, Failure> {
        let most = self.settings.timeouts.first_byte;
        match timeout(most, request).await {
            Ok(answer) => answer.map_err(|error| Failure::of_request(&error)),
            Err(_) => Err(Failure::passing(format!("no answer within {most:?}"))),
        }
    }
}
