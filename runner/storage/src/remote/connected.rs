//! A service with its connection, as the operations of a store use it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use penstock_engine::lock::locked;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};
use tracing::instrument::WithSubscriber;
use tracing::{Dispatch, debug};

use crate::observe::{note, now};
use crate::remote::attempts::attempts;
use crate::remote::failure::{Cause, Failure};
use crate::remote::options::Options;
use crate::remote::service::{Page, PageRequest, Renewal, Service};
use crate::remote::throttle::Throttle;

/// Time after a failed connection during which another one is not tried.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// Maximum number of times that one request begins anew with other credentials.
const MOST_RENEWALS: u32 = 3;

/// Pauses between searches for credentials that replace expired ones, in milliseconds.
const LATE_MS: [u64; 4] = [100, 200, 400, 800];

/// Connects to a service; called once, or again after a failure. Sends requests only if it has to look for settings.
pub(crate) type Connect<S> = Box<dyn Fn() -> BoxFuture<'static, Result<S, Cause>> + Send + Sync>;

/// A service, and its connection once the first request was made.
pub(crate) struct Remote<S> {
    pub(crate) options: Options,
    connect: Connect<S>,
    connected: OnceCell<S>,
    /// Connection to the place that the service has named instead of that of `connected`.
    moved: OnceLock<S>,
    throttle: Throttle,
    /// Set once the service has listed keys in another order than that of their bytes.
    is_unsorted: AtomicBool,
    /// Time and reason of the last failure to connect. A search for settings may take seconds, and would fail for immediately
    /// following requests, too.
    refused: Mutex<Option<(Instant, Cause)>>,
}

impl<S> Remote<S> {
    pub(crate) fn new(options: Options, connect: Connect<S>) -> Self {
        Self {
            options,
            connect,
            connected: OnceCell::new(),
            moved: OnceLock::new(),
            throttle: Throttle::default(),
            is_unsorted: AtomicBool::new(false),
            refused: Mutex::default(),
        }
    }

    /// True if listings are expected to be in the order of the bytes of keys.
    pub(crate) fn is_sorted(&self) -> bool {
        self.options.is_sorted && !self.is_unsorted.load(Ordering::Relaxed)
    }

    pub(crate) fn notice_disorder(&self) {
        if !self.is_unsorted.swap(true, Ordering::Relaxed) {
            debug!(store = &*self.options.store, "the service lists keys in no order; they are sorted here");
        }
    }

    /// Converts a key or prefix of the store into one of the service.
    pub(crate) fn full(&self, key: &str) -> String {
        format!("{}{key}", self.options.prefix)
    }
}

impl<S: Service> Remote<S> {
    /// Returns the connection, which the first call creates.
    async fn connected(&self) -> Result<&S, Failure> {
        if let Some(moved) = self.moved.get() {
            return Ok(moved);
        }
        // Only one search runs at a time; waiting requests get its result.
        let connect = || async {
            let last = locked(&self.refused).clone();
            if let Some((_, cause)) = last.filter(|(at, _)| at.elapsed() < REFUSED_FOR) {
                return Err(cause);
            }
            let connected = (self.connect)().with_subscriber(Dispatch::none()).await;
            connected.inspect_err(|cause| *locked(&self.refused) = Some((now(), cause.clone())))
        };
        self.connected.get_or_try_init(connect).await.map_err(Failure::Lasting)
    }

    /// Repeats `attempt` within the limits of the settings; the timeouts of each attempt and of all attempts together are
    /// extended by `allowance`. After a refusal of the credentials, begins anew if there are others.
    pub(crate) async fn attempts<'a, T, A: Future<Output = Result<T, Failure>>>(
        &'a self,
        allowance: Duration,
        attempt: impl Fn(&'a S) -> A,
    ) -> Result<T, Failure> {
        // The connection is created before the first attempt, so that its creation does not count towards the attempt's time.
        let mut connected = self.connected().await?;
        let Self { options: Options { retries, timeouts, .. }, throttle, .. } = self;
        let (mut renewals, mut has_moved) = (0, false);
        loop {
            let (service, generation) = (connected, connected.generation());
            let attempt =
                || async { attempt(service).await.map_err(|failure| failure.at_place(service.place())) };
            match attempts(*retries, *timeouts, throttle, allowance, attempt).await {
                Err(Failure::Moved { place, failure, .. }) => {
                    let is_tried = place == connected.place();
                    if is_tried || has_moved || !self.moves_to(&place) {
                        return Err(failure.with_note(&*S::elsewhere(&place, is_tried)));
                    }
                    (connected, has_moved) = (self.connected().await?, true);
                }
                Err(Failure::Refused { is_expired, failure }) => {
                    let note = match renew(connected, generation, is_expired).await {
                        Some(Renewal::Other) if renewals < MOST_RENEWALS => {
                            renewals += 1;
                            let store = &*self.options.store;
                            debug!(store, "the credentials were renewed after a refusal");
                            continue;
                        }
                        Some(Renewal::Other) => {
                            Some("the credentials were renewed, and the new ones are refused, too".to_owned())
                        }
                        Some(Renewal::Same) if is_expired => {
                            Some("another search gives the same credentials".to_owned())
                        }
                        Some(Renewal::Failed(absent)) => Some(format!("they could not be renewed: {absent}")),
                        Some(Renewal::Same) | None => None,
                    };
                    return Err(explained(connected, failure.with_note(note.as_deref())));
                }
                tried => return tried.map_err(|failure| explained(connected, failure)),
            }
        }
    }

    /// Uses `place` from now on. Returns false if another one was named before.
    fn moves_to(&self, place: &str) -> bool {
        let Some(connected) = self.connected.get() else { return false };
        self.moved.get_or_init(|| connected.at(place)).place() == place
    }

    pub(crate) async fn page(&self, wanted: PageRequest<'_>) -> Result<Page, Failure> {
        let wanted = &wanted;
        self.attempts(Duration::ZERO, |service| self.answer(service.page(wanted))).await
    }

    /// Waits for the start of the response to a request.
    pub(crate) async fn answer<T>(
        &self,
        request: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let most = self.options.timeouts.first_byte;
        let start = now();
        let no_answer = |_| Err(Failure::passing(format!("no response within {most:?}")));
        let answer = timeout(most, request).await.unwrap_or_else(no_answer)?;
        note(|parts| parts.first_byte = start.elapsed().saturating_sub(parts.connect));
        Ok(answer)
    }
}

/// Adds a possible reason of a refusal.
fn explained(service: &impl Service, failure: Failure) -> Failure {
    match failure {
        Failure::Forbidden(cause) => Failure::Denied(cause).with_note(service.permission_note()),
        failure => failure,
    }
}

/// Renews credentials of `generation` that the service has refused. For expired ones, waits for a moment until there are others: a
/// program that replaces them may be late. `None` for credentials that never change.
async fn renew<S: Service>(service: &S, generation: u64, is_expired: bool) -> Option<Renewal<S::Absent>> {
    let mut pauses = LATE_MS.into_iter().map(Duration::from_millis);
    loop {
        // The messages of providers may contain secrets.
        let renewal = service.renew(generation).with_subscriber(Dispatch::none()).await?;
        match pauses.next() {
            Some(pause) if is_expired && !matches!(renewal, Renewal::Other) => sleep(pause).await,
            _ => return Some(renewal),
        }
    }
}
