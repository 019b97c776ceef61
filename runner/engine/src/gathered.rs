//! Values that the sources of a mixture find, each its own, and of which each source needs all.

use tokio::sync::watch;

/// Values of several sources. Each source adds its own, and may wait for those of the others.
#[derive(Clone, Debug)]
pub struct Gathered<T>(watch::Sender<Parts<T>>);

#[derive(Debug)]
struct Parts<T> {
    /// Number of sources that have not added their value.
    missing: usize,
    values: Vec<T>,
}

impl<T: Clone> Gathered<T> {
    /// Creates the values of this number of sources, none of which has added its own.
    pub fn of(sources: usize) -> Self {
        Self(watch::Sender::new(Parts { missing: sources, values: Vec::new() }))
    }

    /// Adds the value of a source.
    pub fn add(&self, value: T) {
        self.0.send_modify(|parts| {
            parts.values.push(value);
            parts.missing = parts.missing.saturating_sub(1);
        });
    }

    /// Waits for the values of all sources, in the order in which they were added. A source that fails adds none: its failure must end the
    /// wait.
    pub async fn all(&self) -> Vec<T> {
        let mut parts = self.0.subscribe();
        let all = parts.wait_for(|parts| parts.missing == 0).await;
        all.map(|all| all.values.clone()).unwrap_or_default()
    }
}
