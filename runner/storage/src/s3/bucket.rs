//! A bucket with its client, as the operations of a store use it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tracing::Dispatch;
use tracing::instrument::WithSubscriber;

use crate::observe::{note, now};
use crate::s3::attempts::attempts;
use crate::s3::client::connect;
use crate::s3::failure::{Cause, S3Failure};
use crate::s3::settings::{S3Settings, S3Timeouts};
use crate::s3::throttle::Throttle;

/// Time after a failed search for a region during which the search is not repeated.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// A bucket, and its client once the first request was made.
pub(crate) struct Bucket {
    store: Arc<str>,
    settings: S3Settings,
    client: OnceCell<Client>,
    throttle: Throttle,
    /// Time and reason of the last failure to create a client. The search for a region may take seconds, and would fail for
    /// immediately following requests, too.
    refused: Mutex<Option<(Instant, Cause)>>,
}

impl Bucket {
    pub(crate) fn new(store: Arc<str>, settings: S3Settings) -> Self {
        Self {
            store,
            settings,
            client: OnceCell::new(),
            throttle: Throttle::default(),
            refused: Mutex::default(),
        }
    }

    pub(crate) fn store(&self) -> &Arc<str> {
        &self.store
    }

    pub(crate) fn name(&self) -> &str {
        &self.settings.bucket
    }

    /// Prefix of each key of the store in the bucket.
    pub(crate) fn prefix(&self) -> &str {
        &self.settings.prefix
    }

    /// Converts a key or prefix of the store into a key or prefix of the bucket.
    pub(crate) fn full(&self, key: &str) -> String {
        format!("{}{key}", self.settings.prefix)
    }

    pub(crate) fn timeouts(&self) -> S3Timeouts {
        self.settings.timeouts
    }

    /// Returns the client, which the first call creates.
    async fn client(&self) -> Result<&Client, S3Failure> {
        let most = self.settings.timeouts.attempt;
        // Only one search runs at a time; waiting requests get its result.
        let connect = || async {
            let last = self.refused().clone();
            if let Some((_, cause)) = last.filter(|(at, _)| at.elapsed() < REFUSED_FOR) {
                return Err(cause);
            }
            let cause = match timeout(most, connect(&self.settings).with_subscriber(Dispatch::none())).await {
                Ok(Ok(client)) => return Ok(client),
                Ok(Err(fault)) => Cause::new(fault.to_string()),
                Err(_) => {
                    Cause::new(format!("no region was found within {most:?}; set it in the store's settings"))
                }
            };
            *self.refused() = Some((now(), cause.clone()));
            Err(cause)
        };
        self.client.get_or_try_init(connect).await.map_err(S3Failure::Lasting)
    }

    fn refused(&self) -> MutexGuard<'_, Option<(Instant, Cause)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Repeats `attempt` within the limits of the settings; the timeouts of each attempt and of all attempts together are
    /// extended by `allowance`.
    pub(crate) async fn attempts<'a, T, A: Future<Output = Result<T, S3Failure>>>(
        &'a self,
        allowance: Duration,
        mut attempt: impl FnMut(&'a Client) -> A,
    ) -> Result<T, S3Failure> {
        // The client is created before the first attempt, so that its creation does not count towards the attempt's time.
        let client = self.client().await?;
        let Self { settings, throttle, .. } = self;
        attempts(settings.retries, settings.timeouts, throttle, allowance, || attempt(client)).await
    }

    /// Waits for the start of the response to a request.
    pub(crate) async fn answer<T, E: ProvideErrorMetadata>(
        &self,
        request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, S3Failure> {
        let most = self.settings.timeouts.first_byte;
        let start = now();
        match timeout(most, request).await {
            Ok(Ok(answer)) => {
                note(|parts| parts.first_byte = start.elapsed().saturating_sub(parts.connect));
                Ok(answer)
            }
            Ok(Err(error)) => Err(S3Failure::of_request(&error)),
            Err(_) => Err(S3Failure::passing(format!("no response within {most:?}"))),
        }
    }
}
