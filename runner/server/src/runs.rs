use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use penstock_engine::ports::StopFlag;
use penstock_types::config::RunBounds;
use penstock_types::run::RunId;
use penstock_types::spec::Spec;
use penstock_types::stats::share;
use penstock_wasm::{Sandbox, SandboxSettings};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::timeout;

use penstock_pipeline::Stores;

use crate::admission::Budget;
use crate::error::{OpenError, RunsError};
use crate::feed::Feed;
use crate::history::History;
use crate::live::{LiveRun, Totals};
use crate::owner::{Message, Owner, Shutdown, View};
use crate::private;
use crate::wire::BudgetUse;
use crate::workshop::{CACHE, Workshop};

/// Most messages that wait for the owner.
const MESSAGES: usize = 1024;
/// Most documents that are checked at a time.
const CHECKS: usize = 2;
/// Longest wait for a turn.
const TURN: Duration = Duration::from_secs(10);
/// Modules that are tried at a time.
const TRIALS: usize = 2;
/// Default limit of the time of a trial.
const TRIAL_TIME: Duration = Duration::from_secs(30);
/// Instances that one trial has at a time: the one that is used, and the one it is compared with.
const TRIAL_INSTANCES: u32 = 2;
/// Runs whose dead letters are counted at a time.
const SURVEYS: usize = 2;
/// Modules that are looked at and compiled at a time.
const UPLOADS: usize = 2;

#[derive(Clone, Debug)]
pub struct RunsSettings {
    /// Where everything is kept; made if it is missing. One server at a time uses it.
    pub data_dir: PathBuf,
    pub stores: Stores,
    pub budget: Budget,
    /// How modules are compiled and how large they may be. Where compiled ones are kept and how many instances there are
    /// follows from the rest.
    pub sandbox: SandboxSettings,
    /// What a run may ask for, and how many may wait.
    pub bounds: RunBounds,
    pub trial_time: Duration,
}

/// All runs and modules of a server, for a caller who may use all stores or some. Cheap to clone. When the last clone is dropped,
/// all runs are stopped as by [`Self::shutdown`].
#[derive(Clone, Debug)]
pub struct Runs(pub(crate) Arc<Parts>, Option<Arc<Stores>>);

#[derive(Debug)]
pub(crate) struct Parts {
    /// All stores of the operator; [`Runs::allowed_stores`] has those of a caller.
    all_stores: Stores,
    pub(crate) epoch: String,
    pub(crate) budget: Budget,
    pub(crate) bounds: RunBounds,
    pub(crate) messages: SyncSender<Message>,
    pub(crate) owner: Mutex<Option<JoinHandle<()>>>,
    pub(crate) view: watch::Receiver<Arc<View>>,
    pub(crate) workshop: Arc<Workshop>,
    pub(crate) feed: Feed,
    pub(crate) totals: Arc<Totals>,
    /// Places of runs that wait.
    pub(crate) places: Arc<Semaphore>,
    /// Submissions with a key, one after the other: what repeats one of them takes no place.
    pub(crate) keyed: Semaphore,
    pub(crate) trials: Arc<Semaphore>,
    pub(crate) checks: Arc<Semaphore>,
    pub(crate) trial_time: Duration,
    pub(crate) replays: Arc<Semaphore>,
    pub(crate) surveys: Arc<Semaphore>,
    pub(crate) uploads: Arc<Semaphore>,
    /// Set when the server ends: what is tried or replayed ends too.
    pub(crate) ending: StopFlag,
}

impl RunsSettings {
    pub fn new(data_dir: impl Into<PathBuf>, stores: Stores) -> Self {
        Self {
            data_dir: data_dir.into(),
            stores,
            budget: Budget::of_this_machine(),
            sandbox: SandboxSettings::default(),
            bounds: RunBounds::default(),
            trial_time: TRIAL_TIME,
        }
    }
}

impl Runs {
    /// Opens the data directory and starts the owner. Reads on storage go to `runtime`, which must live as long as this.
    pub fn open(runtime: &Handle, settings: RunsSettings) -> Result<Self, OpenError> {
        let RunsSettings { data_dir, stores, budget, sandbox, bounds, trial_time } = settings;
        let runs_queued = bounds.queued.get() as usize;
        let unusable = |path: &PathBuf, source| OpenError::Unusable { path: path.clone(), source };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&data_dir)
            .map_err(|source| unusable(&data_dir, source))?;
        let history = History::open(&data_dir, runtime)?;
        let cache = data_dir.join(CACHE);
        private::folder(&cache).map_err(|source| unusable(&cache, source))?;
        let gate = sandbox.gate.clone();
        let instances = budget.instances.saturating_add(TRIALS as u32 * TRIAL_INSTANCES);
        let sandbox = Sandbox::new(SandboxSettings { cache_dir: Some(cache), instances, ..sandbox })?;
        let workshop = Workshop::open(runtime.clone(), history.clone(), sandbox, (gate, bounds), data_dir)?;
        let workshop = Arc::new(workshop);
        let feed = Feed::new();
        let (show, view) = watch::channel(Arc::new(View::default()));
        let channel = sync_channel(MESSAGES);
        let messages = channel.0.clone();
        let owner = Owner::new(budget, channel, workshop.clone(), history, feed.clone(), show);
        let owner =
            Builder::new().name("runs".to_owned()).spawn(|| owner.run()).map_err(OpenError::Thread)?;
        let parts = Parts {
            all_stores: stores,
            epoch: uuid::Uuid::now_v7().simple().to_string(),
            budget,
            bounds,
            messages,
            owner: Mutex::new(Some(owner)),
            view,
            workshop,
            feed,
            totals: Arc::default(),
            places: Arc::new(Semaphore::new(runs_queued.clamp(1, Semaphore::MAX_PERMITS))),
            keyed: Semaphore::new(1),
            trials: Arc::new(Semaphore::new(TRIALS)),
            checks: Arc::new(Semaphore::new(CHECKS)),
            trial_time,
            replays: Arc::new(Semaphore::new(1)),
            surveys: Arc::new(Semaphore::new(SURVEYS)),
            uploads: Arc::new(Semaphore::new(UPLOADS)),
            ending: StopFlag::default(),
        };
        Ok(Self(Arc::new(parts), None))
    }

    /// The same runs for a caller who may use no other stores than these: documents name no others, and dead letters and batches of
    /// runs over others stay where they are.
    #[must_use]
    pub fn limited_to(&self, stores: &BTreeSet<String>) -> Self {
        Self(self.0.clone(), Some(Arc::new(self.allowed_stores().among(stores))))
    }

    /// The stores that the caller may use.
    pub(crate) fn allowed_stores(&self) -> &Stores {
        self.1.as_deref().unwrap_or(&self.0.all_stores)
    }

    /// Fails if a document names a store that the caller may not use.
    pub(crate) fn check_stores(&self, spec: &Spec) -> Result<(), RunsError> {
        let Some(allowed) = &self.1 else { return Ok(()) };
        match spec.stores().find(|name| allowed.get(name.as_str()).is_none()) {
            Some(name) => Err(RunsError::not_found("store", name.as_str())),
            None => Ok(()),
        }
    }

    /// Names this start of the server: numbers of events count from it.
    pub fn epoch(&self) -> &str {
        &self.0.epoch
    }

    /// Number of the last event of this epoch.
    pub fn last_event(&self) -> u64 {
        self.0.feed.last()
    }

    /// Stops all runs, those that wait too, and writes everything down; takes at most 3 s. They end as stopped. Afterwards
    /// nothing works any more.
    pub async fn shutdown(&self) -> Shutdown {
        self.0.ending.set();
        let (reply, answer) = oneshot::channel();
        if self.send(Message::Shutdown(reply)).is_err() {
            return Shutdown::default();
        }
        let Ok(ended) = answer.await else { return Shutdown::default() };
        let parts = self.0.clone();
        let joined = self.0.workshop.runtime.spawn_blocking(move || parts.join()).await;
        if joined.is_err() {
            tracing::error!("the owner of all runs panicked; this is a defect of Penstock");
        }
        ended
    }

    pub fn use_now(&self) -> BudgetUse {
        let view = self.view();
        BudgetUse {
            threads: self.0.budget.threads,
            memory_mib: self.0.budget.memory_mib,
            threads_used: view.used.threads,
            memory_mib_used: view.used.memory_mib,
            threads_share: share(view.used.threads.into(), self.0.budget.threads.into()),
            memory_share: share(view.used.memory_mib, self.0.budget.memory_mib),
            runs_alive: view.alive,
            runs_queued: view.waiting.len() as u64,
        }
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

    pub(crate) fn send(&self, message: Message) -> Result<(), RunsError> {
        Ok(self.0.messages.try_send(message)?)
    }
}

impl Parts {
    fn join(&self) {
        let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(owner) = owner
            && owner.join().is_err()
        {
            tracing::error!("the owner of all runs panicked; this is a defect of Penstock");
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.ending.set();
        let (reply, _) = oneshot::channel();
        // It is gone already after a shutdown.
        if self.messages.send(Message::Shutdown(reply)).is_ok() {
            self.join();
        }
    }
}

/// Takes a place among those who do something dear; `busy` says why there is none.
pub(crate) async fn turn(places: &Arc<Semaphore>, busy: &str) -> Result<OwnedSemaphorePermit, RunsError> {
    let place = timeout(TURN, places.clone().acquire_owned()).await;
    place.map_err(|_| RunsError::Busy(busy.to_owned()))?.map_err(|_| RunsError::Closed)
}

/// Does blocking work apart from the I/O threads, to its end even if the future is dropped.
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
