use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use penstock_engine::lock::locked;
use penstock_engine::ports::StopFlag;
use penstock_storage::BoundedStore;
use penstock_types::config::ClientBounds;
use penstock_types::run::RunId;
use penstock_types::spec::Spec;
use penstock_types::stats::share;
use penstock_wasm::{Sandbox, SandboxSettings};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use penstock_pipeline::Stores;

use crate::admission::Budget;
use crate::benching::Benching;
use crate::error::{OpenError, RunsError};
use crate::fair::{ClientId, Shares};
use crate::feed::Feed;
use crate::history::History;
use crate::history::modules::Uploader;
use crate::live::{LiveRun, Totals};
use crate::owner::{Message, Owner, Shutdown, View};
use crate::private;
use crate::profiles::Profiles;
use crate::settings::RunsSettings;
use crate::sharing::{HeldAmount, SharedAmount};
use crate::wire::{BudgetUse, ClientUse};
use crate::workshop::{CACHE, Workshop};

/// Name of the operator's own token, in logs.
pub const OPERATOR: &str = "operator";
/// Name of every client of a server without tokens.
pub const ANYONE: &str = "anyone";
/// Maximum number of messages that wait for the owner.
const MESSAGES: usize = 1024;
/// Maximum time that a request waits for a permit.
const TURN: Duration = Duration::from_secs(10);
/// Number of permits for large answers; one client gets two.
const LARGE_ANSWERS: u64 = 3;
/// Number of permits for checks of documents.
const CHECKS: u64 = 2;
/// Number of permits for trials of modules.
const TRIALS: u64 = 2;
/// Number of permits for surveys of dead letters.
const SURVEYS: u64 = 2;
/// Number of permits for inspections and compilations of modules.
const COMPILATIONS: u64 = 2;
/// Maximum number of instances of one trial at a time: the one in use, and the one for comparison.
const TRIAL_INSTANCES: u32 = 2;
/// Maximum time that an upload waits for a permit to compile its module; shorter than clients wait for a response.
pub(crate) const COMPILE_TURN: Duration = Duration::from_secs(45);

/// Handle to all runs and modules of a server, on behalf of one caller. Cheap to clone. When the last clone is dropped, all runs
/// are stopped as by [`Self::shutdown`].
#[derive(Clone, Debug)]
pub struct Runs(pub(crate) Arc<Registry>, RunsCaller);

/// A handle that does not keep the runs alive.
#[derive(Clone, Debug)]
pub(crate) struct WeakRuns(Weak<Registry>, RunsCaller);

/// Caller on whose behalf a handle acts: by default, the operator.
#[derive(Clone, Debug)]
struct RunsCaller {
    client: ClientId,
    token: Arc<str>,
    /// True if the caller may change everything, also what belongs to other tokens.
    is_admin: bool,
    /// Stores that the caller may use; all if `None`.
    stores: Option<Arc<Stores>>,
    /// Memory of the answer to the caller, which grows before a large answer is made; not counted if `None`.
    room: Option<Arc<HeldAmount>>,
}

/// State that all handles to the runs of a server share.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) epoch: String,
    /// Thread that owns all runs, until it is joined.
    owner: Mutex<Option<JoinHandle<()>>>,
    /// Channel to the owner thread.
    pub(crate) messages: SyncSender<Message>,
    /// State that the owner thread publishes.
    pub(crate) view: watch::Receiver<Arc<View>>,
    pub(crate) workshop: Arc<Workshop>,
    pub(crate) feed: Feed,
    pub(crate) totals: Arc<Totals>,
    pub(crate) permits: Permits,
    pub(crate) benching: Benching,
    pub(crate) profiles: Profiles,
    /// Set when the server shuts down, which ends trials and replays, too.
    pub(crate) ending: StopFlag,
}

/// Permits for expensive work, for which clients take turns.
#[derive(Debug)]
pub(crate) struct Permits {
    /// Limit on waiting runs; a run holds its permit until it starts.
    pub(crate) waiting: SharedAmount,
    /// Limit on waiting and active runs of each client; a run holds its permit until it ends.
    pub(crate) open: SharedAmount,
    /// Serializes submissions with an idempotency key. A repeated submission whose run is found at once needs no permit.
    pub(crate) keyed: SharedAmount,
    pub(crate) answers: SharedAmount,
    pub(crate) trials: SharedAmount,
    pub(crate) profiles: SharedAmount,
    pub(crate) checks: SharedAmount,
    pub(crate) replays: SharedAmount,
    pub(crate) surveys: SharedAmount,
    pub(crate) benchmarks: SharedAmount,
}

impl Permits {
    fn new(settings: &RunsSettings) -> Self {
        let ClientBounds { share_percent, runs, .. } = settings.clients;
        let turns = |permits: u64| SharedAmount::new(permits, share_percent);
        Self {
            waiting: turns(settings.bounds.queued.get().into()),
            open: SharedAmount::of(Shares::of_parts(runs.map_or(u64::MAX, |runs| runs.get().into()))),
            keyed: turns(1),
            answers: turns(LARGE_ANSWERS),
            trials: turns(TRIALS),
            profiles: turns(1),
            checks: turns(CHECKS),
            replays: turns(1),
            surveys: turns(SURVEYS),
            benchmarks: turns(1),
        }
    }
}

impl Runs {
    /// Opens the data directory and starts the owner thread. Storage reads run on `runtime`, which must outlive this handle.
    pub fn open(runtime: &Handle, settings: RunsSettings) -> Result<Self, OpenError> {
        let data_dir = &settings.data_dir;
        let unusable = |path: &Path, source| OpenError::Unusable { path: path.to_owned(), source };
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir);
        created.map_err(|source| unusable(data_dir, source))?;
        let history = History::open(data_dir, runtime)?;
        let cache = data_dir.join(CACHE);
        private::folder(&cache).map_err(|source| unusable(&cache, source))?;
        let SandboxSettings { cache_bytes: most, .. } = settings.sandbox;
        let sandbox = Sandbox::new(SandboxSettings {
            cache_dir: Some(cache),
            // Compiled code can be produced again, so the cache may use only a part of the disk limit.
            cache_bytes: settings.disk_bytes.map_or(most, |disk| most.min(disk / 4)),
            instances: settings.budget.instances.saturating_add(TRIALS as u32 * TRIAL_INSTANCES),
            ..settings.sandbox.clone()
        })?;
        let shares = Shares::new(settings.budget.amounts(), settings.clients.share_percent);
        let permits = Permits::new(&settings);
        let compiling = SharedAmount::new(COMPILATIONS, settings.clients.share_percent);
        let workshop = Arc::new(Workshop::open(runtime.clone(), history, sandbox, settings, compiling)?);
        let feed = Feed::new();
        let channel = sync_channel(MESSAGES);
        let messages = channel.0.clone();
        let (owner, view) = Owner::new(shares, channel, workshop.clone(), feed.clone());
        let thread =
            Builder::new().name("runs".to_owned()).spawn(|| owner.run()).map_err(OpenError::Thread)?;
        let registry = Registry {
            epoch: uuid::Uuid::now_v7().simple().to_string(),
            owner: Mutex::new(Some(thread)),
            messages,
            view,
            workshop,
            feed,
            totals: Arc::default(),
            permits,
            benching: Benching::default(),
            profiles: Profiles::default(),
            ending: StopFlag::default(),
        };
        let (client, token) = (ClientId::default(), OPERATOR.into());
        Ok(Self(Arc::new(registry), RunsCaller { client, token, is_admin: true, stores: None, room: None }))
    }

    pub fn settings(&self) -> &RunsSettings {
        &self.0.workshop.settings
    }

    /// Returns a handle for the requests of a client; they count against the shares of this client.
    #[must_use]
    pub fn for_client(&self, client: ClientId) -> Self {
        Self(self.0.clone(), RunsCaller { client, ..self.1.clone() })
    }

    /// Returns a handle for the holder of the token with this name. Keys of submissions and names of modules belong to this token;
    /// an admin may also upload modules with names of other tokens.
    #[must_use]
    pub fn for_token(&self, name: &Arc<str>, is_admin: bool) -> Self {
        Self(self.0.clone(), RunsCaller { token: name.clone(), is_admin, ..self.1.clone() })
    }

    /// Returns a handle whose large answers take their memory from `room`.
    #[must_use]
    pub fn within(&self, room: Arc<HeldAmount>) -> Self {
        Self(self.0.clone(), RunsCaller { room: Some(room), ..self.1.clone() })
    }

    pub(crate) fn room(&self) -> Option<Arc<HeldAmount>> {
        self.1.room.clone()
    }

    /// Creates an amount that clients share as they share the budget of runs.
    pub fn shared(&self, whole: u64) -> SharedAmount {
        SharedAmount::new(whole, self.settings().clients.share_percent)
    }

    pub async fn turn_to_answer(&self) -> Result<HeldAmount, RunsError> {
        turn(&self.0.permits.answers, self.client(), "large answers").await
    }

    pub(crate) fn downgraded(&self) -> WeakRuns {
        WeakRuns(Arc::downgrade(&self.0), self.1.clone())
    }

    pub(crate) fn token(&self) -> &str {
        &self.1.token
    }

    pub(crate) fn uploader(&self) -> Uploader {
        let RunsCaller { token, is_admin, .. } = &self.1;
        let token = (**token != *ANYONE).then(|| token.clone());
        Uploader { token, is_free: *is_admin || !self.settings().module_owners }
    }

    pub fn client(&self) -> &ClientId {
        &self.1.client
    }

    /// Returns a handle for a caller that may use only the given stores. Other stores are unknown in documents of the caller, and
    /// dead letters and batches of runs that use other stores are not accessible.
    #[must_use]
    pub fn limited_to(&self, stores: &BTreeSet<String>) -> Self {
        let stores = Some(Arc::new(self.allowed_stores().among(stores)));
        Self(self.0.clone(), RunsCaller { stores, ..self.1.clone() })
    }

    pub(crate) fn allowed_stores(&self) -> &Stores {
        self.1.stores.as_deref().unwrap_or(&self.settings().stores)
    }

    pub(crate) fn store(&self, name: &str) -> Result<&BoundedStore, RunsError> {
        self.allowed_stores().get(name).ok_or_else(|| RunsError::not_found("store", name))
    }

    /// Fails if a document names a store that the caller may not use.
    pub(crate) fn check_stores(&self, spec: &Spec) -> Result<(), RunsError> {
        if self.1.stores.is_none() {
            return Ok(());
        }
        spec.stores().try_for_each(|name| self.store(name.as_str()).map(drop))
    }

    /// Identifier of this start of the server, from which events are numbered.
    pub fn epoch(&self) -> &str {
        &self.0.epoch
    }

    pub fn last_event(&self) -> u64 {
        self.0.feed.last()
    }

    /// Stops all active and waiting runs, which end as stopped, and writes the history; takes at most 3 s. Afterwards every call
    /// fails.
    pub async fn shutdown(&self) -> Shutdown {
        self.0.ending.set();
        let (reply, answer) = oneshot::channel();
        if self.0.messages.try_send(Message::Shutdown(reply)).is_err() {
            return Shutdown::default();
        }
        let Ok(ended) = answer.await else { return Shutdown::default() };
        let registry = self.0.clone();
        let joined = self.0.workshop.runtime.spawn_blocking(move || registry.join()).await;
        if joined.is_err() {
            tracing::error!("the owner of all runs panicked; this is a defect of Penstock");
        }
        ended
    }

    pub fn use_now(&self) -> BudgetUse {
        let (view, Budget { threads, memory_mib, .. }) = (self.view(), self.settings().budget);
        let [threads_used, memory_mib_used, _] = view.shares.used();
        BudgetUse {
            threads,
            memory_mib,
            threads_used: u32::try_from(threads_used).unwrap_or(u32::MAX),
            memory_mib_used,
            threads_share: share(threads_used, threads.into()),
            memory_share: share(memory_mib_used, memory_mib),
            runs_alive: view.alive,
            runs_queued: view.waiting.len() as u64,
        }
    }

    /// Returns the use of the budget by each client, with the number of its waiting runs.
    pub fn clients(&self) -> Vec<ClientUse> {
        self.view().clients.values().cloned().collect()
    }

    pub(crate) fn view(&self) -> Arc<View> {
        self.0.view.borrow().clone()
    }

    pub(crate) fn live(&self, id: &RunId) -> Option<Arc<LiveRun>> {
        self.0.view.borrow().runs.get(id).cloned()
    }

    pub(crate) fn history(&self) -> &History {
        &self.0.workshop.history
    }
}

impl WeakRuns {
    pub(crate) fn upgrade(&self) -> Option<Runs> {
        Some(Runs(self.0.upgrade()?, self.1.clone()))
    }
}

impl Registry {
    fn join(&self) {
        self.benching.end();
        let owner = locked(&self.owner).take();
        if let Some(owner) = owner
            && owner.join().is_err()
        {
            tracing::error!("the owner of all runs panicked; this is a defect of Penstock");
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.ending.set();
        let (reply, _) = oneshot::channel();
        // The send fails if the owner thread has already ended after a shutdown.
        if self.messages.send(Message::Shutdown(reply)).is_ok() {
            self.join();
        }
    }
}

/// Waits for a permit for expensive work of a client. `what` names the work in the error.
pub(crate) async fn turn(
    places: &SharedAmount,
    client: &ClientId,
    what: &str,
) -> Result<HeldAmount, RunsError> {
    places.take(client, 0, TURN).await.ok_or_else(|| RunsError::no_place(what))
}

/// Runs blocking work off the I/O threads. The work runs to its end even if the future is dropped.
pub(crate) async fn apart<T: Send + 'static>(
    runs: &Runs,
    work: impl FnOnce() -> Result<T, RunsError> + Send + 'static,
) -> Result<T, RunsError> {
    match runs.0.workshop.runtime.spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(RunsError::Closed),
        },
    }
}
