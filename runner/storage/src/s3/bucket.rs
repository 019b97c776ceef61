//! A bucket with its client, as the operations of a store use it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};
use tracing::instrument::WithSubscriber;
use tracing::{Dispatch, debug};

use crate::observe::{note, now};
use crate::s3::attempts::attempts;
use crate::s3::client::{Connected, connect};
use crate::s3::credentials::Renewal;
use crate::s3::failure::{Cause, S3Failure};
use crate::s3::settings::{S3Settings, S3Timeouts};
use crate::s3::throttle::Throttle;

/// Time after a failed search for a region during which the search is not repeated.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// Maximum number of times that one request begins anew with other credentials.
const MOST_RENEWALS: u32 = 3;

/// Pauses between searches for credentials that replace expired ones, in milliseconds.
const LATE_MS: [u64; 4] = [100, 200, 400, 800];

/// A bucket, and its client once the first request was made.
pub(crate) struct Bucket {
    store: Arc<str>,
    settings: S3Settings,
    connected: OnceCell<Connected>,
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
            connected: OnceCell::new(),
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
    async fn connected(&self) -> Result<&Connected, S3Failure> {
        let most = self.settings.timeouts.attempt;
        // Only one search runs at a time; waiting requests get its result.
        let connect = || async {
            let last = self.refused().clone();
            if let Some((_, cause)) = last.filter(|(at, _)| at.elapsed() < REFUSED_FOR) {
                return Err(cause);
            }
            let cause = match timeout(most, connect(&self.settings).with_subscriber(Dispatch::none())).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(fault)) => Cause::new(fault.to_string()),
                Err(_) => {
                    Cause::new(format!("no region was found within {most:?}; set it in the store's settings"))
                }
            };
            *self.refused() = Some((now(), cause.clone()));
            Err(cause)
        };
        self.connected.get_or_try_init(connect).await.map_err(S3Failure::Lasting)
    }

    fn refused(&self) -> MutexGuard<'_, Option<(Instant, Cause)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Repeats `attempt` within the limits of the settings; the timeouts of each attempt and of all attempts together are
    /// extended by `allowance`. After a refusal of the credentials, begins anew if there are others.
    pub(crate) async fn attempts<'a, T, A: Future<Output = Result<T, S3Failure>>>(
        &'a self,
        allowance: Duration,
        attempt: impl Fn(&'a Client) -> A,
    ) -> Result<T, S3Failure> {
        // The client is created before the first attempt, so that its creation does not count towards the attempt's time.
        let connected = self.connected().await?;
        let Self { settings, throttle, .. } = self;
        let mut renewals = 0;
        loop {
            let generation = connected.generation();
            let attempt = || attempt(&connected.client);
            let tried = attempts(settings.retries, settings.timeouts, throttle, allowance, attempt).await;
            let Err(S3Failure::Refused { is_expired, failure }) = tried else { return tried };
            let note = match self.renew(connected, generation, is_expired).await {
                None => return Err(*failure),
                Some(Renewal::Other) if renewals < MOST_RENEWALS => {
                    renewals += 1;
                    debug!(store = &*self.store, "the credentials were renewed after a refusal");
                    continue;
                }
                Some(Renewal::Other) => {
                    "the credentials were renewed, and the new ones are refused, too".into()
                }
                Some(Renewal::Same) => "another search gives the same credentials".into(),
                Some(Renewal::Failed(absent)) => format!("they could not be renewed: {absent}"),
            };
            return Err(failure.with_note(&note));
        }
    }

    /// Renews credentials of `generation` that the service has refused. For expired ones, waits for a moment until there are others: a
    /// program that replaces them may be late. `None` for credentials of the settings, which never change.
    async fn renew(&self, connected: &Connected, generation: u64, is_expired: bool) -> Option<Renewal> {
        let (shared, search) = connected.renewable.as_ref()?;
        let mut pauses = LATE_MS.into_iter().map(Duration::from_millis);
        loop {
            // The messages of providers may contain secrets.
            let renewal = shared.renew(generation, search).with_subscriber(Dispatch::none()).await;
            match pauses.next() {
                Some(pause) if is_expired && renewal != Renewal::Other => sleep(pause).await,
                _ => return Some(renewal),
            }
        }
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
