//! Values that the sources of a mixture find, each its own, and of which each source needs all.

use tokio::sync::watch;

/// Values of several sources. Each source adds its own, and may wait for those of the others.
#[derive(Clone, Debug)]
pub struct Gathered<T> {
    values: watch::Sender<Vec<T>>,
    sources: usize,
}

impl<T: Clone> Gathered<T> {
    /// Creates the values of this number of sources, none of which has added its own.
    pub fn of(sources: usize) -> Self {
        Self { values: watch::Sender::new(Vec::new()), sources }
    }

    pub fn add(&self, value: T) {
        self.values.send_modify(|values| values.push(value));
    }

    /// Waits for the values of all sources, in the order in which they were added. A source that fails adds none: its failure must end the
    /// wait.
    pub async fn all(&self) -> Vec<T> {
        let mut values = self.values.subscribe();
        let all = values.wait_for(|values| values.len() >= self.sources).await;
        all.map(|all| all.clone()).unwrap_or_default()
    }
}
