//! Reasons why data cannot be read.

use penstock_engine::ports::SourceFault;
use penstock_storage::interrupted;
use tokio::task::spawn_blocking;

/// Reason why a value, or what contains it, cannot be read: the end of a sentence about it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Reason(String);

impl From<String> for Reason {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

impl From<&str> for Reason {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

impl From<Reason> for String {
    fn from(Reason(reason): Reason) -> Self {
        reason
    }
}

/// Result of `work`, which runs on a blocking thread; `name` says for messages what it does.
pub(crate) async fn blocking<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SourceFault> {
    spawn_blocking(work).await.map_err(|error| interrupted(name, error))
}
