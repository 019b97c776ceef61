//! A bucket with its client, as the operations of a store use it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::config::{Config, RequestChecksumCalculation};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::types::{ChecksumMode, RequestPayer};
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};
use tracing::instrument::WithSubscriber;
use tracing::{Dispatch, debug, warn};

use crate::observe::{note, now};
use crate::s3::attempts::attempts;
use crate::s3::client::{Connected, connect};
use crate::s3::credentials::Renewal;
use crate::s3::failure::{Cause, S3Failure};
use crate::s3::settings::{S3Credentials, S3Settings, S3Timeouts};
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
    /// Client for the region that the service has named in place of that of `connected`.
    moved: OnceLock<Connected>,
    throttle: Throttle,
    /// Set once the service has listed keys in another order than that of their bytes.
    is_unsorted: AtomicBool,
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
            moved: OnceLock::new(),
            throttle: Throttle::default(),
            is_unsorted: AtomicBool::new(false),
            refused: Mutex::default(),
        }
    }

    /// True for a directory bucket of S3 Express One Zone. It lists keys in no order, and only by prefixes that end with `/`.
    pub(crate) fn is_directory(&self) -> bool {
        self.settings.bucket.ends_with("--x-s3")
    }

    /// True if listings are expected to be in the order of the bytes of keys.
    pub(crate) fn is_sorted(&self) -> bool {
        !self.settings.is_unsorted && !self.is_directory() && !self.is_unsorted.load(Ordering::Relaxed)
    }

    pub(crate) fn notice_disorder(&self) {
        if !self.is_unsorted.swap(true, Ordering::Relaxed) {
            debug!(store = &*self.store, "the service lists keys in no order; they are sorted here");
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

    /// Parameter of requests that agree to pay.
    pub(crate) fn payer(&self) -> Option<RequestPayer> {
        self.settings.requester_pays.then_some(RequestPayer::Requester)
    }

    /// Parameter of reads of whole objects that ask for their checksums.
    pub(crate) fn checksum_mode(&self) -> Option<ChecksumMode> {
        self.connected.get().is_some_and(|connected| connected.validates).then_some(ChecksumMode::Enabled)
    }

    /// True if writes have checksums although the service need not know them.
    pub(crate) fn adds_checksums(&self) -> bool {
        let config = self.connected.get().map(|connected| connected.client.config());
        config.and_then(Config::request_checksum_calculation)
            == Some(&RequestChecksumCalculation::WhenSupported)
    }

    /// Returns the client, which the first call creates.
    async fn connected(&self) -> Result<&Connected, S3Failure> {
        if let Some(moved) = self.moved.get() {
            return Ok(moved);
        }
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
        let mut connected = self.connected().await?;
        let Self { settings, throttle, .. } = self;
        let (mut renewals, mut has_moved) = (0, false);
        loop {
            let (client, generation) = (&connected.client, connected.generation());
            let attempt =
                || async { attempt(client).await.map_err(|failure| failure.in_region(&connected.region)) };
            match attempts(settings.retries, settings.timeouts, throttle, allowance, attempt).await {
                Err(S3Failure::Moved { region, failure, .. }) => {
                    if region == connected.region {
                        return Err(failure.with_note(&format!(
                            "the bucket is in the region `{region}`, which was tried: set `region` of the store, and, if it has one, its \
                             `endpoint` to that of the region"
                        )));
                    }
                    if has_moved || !self.moves_to(&region) {
                        return Err(failure.with_note(&format!(
                            "the bucket is in the region `{region}`: set `region` of the store"
                        )));
                    }
                    (connected, has_moved) = (self.connected().await?, true);
                }
                Err(S3Failure::Refused { is_expired, failure }) => {
                    let renewal = self.renew(connected, generation, is_expired).await;
                    let note = match renewal {
                        None => return Err(self.explained(*failure)),
                        Some(Renewal::Other) if renewals < MOST_RENEWALS => {
                            renewals += 1;
                            debug!(store = &*self.store, "the credentials were renewed after a refusal");
                            continue;
                        }
                        Some(Renewal::Other) => {
                            "the credentials were renewed, and the new ones are refused, too".to_owned()
                        }
                        Some(Renewal::Same) if is_expired => {
                            "another search gives the same credentials".to_owned()
                        }
                        Some(Renewal::Same) => return Err(self.explained(*failure)),
                        Some(Renewal::Failed(absent)) => format!("they could not be renewed: {absent}"),
                    };
                    return Err(self.explained(failure.with_note(&note)));
                }
                tried => return tried.map_err(|failure| self.explained(failure)),
            }
        }
    }

    /// Uses `region` from now on. Returns false if another one was named before.
    fn moves_to(&self, region: &str) -> bool {
        let Some(connected) = self.connected.get() else { return false };
        let moved = self.moved.get_or_init(|| {
            warn!(
                store = &*self.store,
                region,
                "the bucket is in another region, which is used from now on; set `region` of the store"
            );
            connected.in_region(region)
        });
        moved.region == region
    }

    /// Adds what may have been the reason of a refusal.
    fn explained(&self, failure: S3Failure) -> S3Failure {
        match failure {
            S3Failure::Forbidden(cause) => {
                let denied = S3Failure::Denied(cause);
                let S3Settings { requester_pays, credentials, .. } = &self.settings;
                match *requester_pays || matches!(credentials, S3Credentials::Anonymous) {
                    true => denied,
                    false => denied.with_note(
                        "a bucket whose requesters pay needs `\"requester_pays\": true` of the store",
                    ),
                }
            }
            failure => failure,
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
