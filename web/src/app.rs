use std::sync::Arc;

use penstock_server::Runs;
use penstock_types::config::{GateBounds, RunBounds};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::answer::LargeAnswers;
use crate::body::ByteBudget;
use crate::guard::RequestGuard;
use crate::settings::ServeLimits;

/// State that handlers share.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) runs: Runs,
    pub(crate) guard: RequestGuard,
    pub(crate) limits: ServeLimits,
    /// Bounds of modules, shown by `/system`; the registry enforces them.
    pub(crate) modules: Arc<GateBounds>,
    pub(crate) bounds: RunBounds,
    /// Permits of open event streams.
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) rooms: ByteBudget,
    pub(crate) answers: LargeAnswers,
    /// Cancelled when the server ends: event streams end with it.
    pub(crate) ending: CancellationToken,
    pub(crate) started: ServerStart,
}

/// Start of the server, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerStart {
    pub(crate) at: std::time::SystemTime,
    pub(crate) tick: tokio::time::Instant,
}
