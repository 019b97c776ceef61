//! What one read consisted of, told to whoever asks for it.

use std::cell::Cell;
use std::time::{Duration, Instant};

tokio::task_local! {
    /// Parts of the read that is being observed. A blocking thread has to bring its times back into the task.
    static PARTS: Cell<ReadParts>;
}

/// What one read consisted of, as far as its store tells.
///
/// The times follow each other and never overlap, so that their sum is at most the read's. What is missing in it is waiting
/// for a place among the reads, finding out a bucket's region at the first request of all, being woken. Of a read that
/// failed they tell how far its last attempt came.
///
/// Of a large object that is read in parts side by side, `retry`, `connect` and `first_byte` are those of the first request,
/// and everything after them, until all parts are there, is `body`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadParts {
    /// Requests that were made, whether answered or not: one for an object of at most 16 MiB, one for each part of a larger
    /// one, and each that had to be made again. A read of a folder or of memory counts as one.
    pub attempts: u32,
    /// Requests made because another one had failed.
    pub retries: u32,
    /// Connections that a bucket's client began to open for it, for there was none at rest.
    pub new_connections: u32,
    /// From the beginning of the first attempt to that of the last one: failed attempts and the pauses between.
    pub retry: Duration,
    /// Waiting for the connection that was opened (name lookup, TCP and TLS), or for another one that came free before.
    pub connect: Duration,
    /// From making the request until its answer began, without waiting for a connection. In a folder: going to a blocking
    /// thread and opening the file. In memory: its latency.
    pub first_byte: Duration,
    /// From there until the last byte was here. Where the checksum of a whole object comes with it, which the service has of
    /// most objects of at most 16 MiB, checking it is part of this.
    pub body: Duration,
    /// Calculating the checksum of an object that was read in parts.
    pub verify: Duration,
}

impl ReadParts {
    /// Begins an attempt `after_first` the first one; `None` is the first itself. The times of the previous attempt
    /// become part of `retry`.
    pub(crate) fn begin_attempt(&mut self, after_first: Option<Duration>) {
        *self = Self {
            attempts: self.attempts + 1,
            retries: self.retries + u32::from(after_first.is_some()),
            new_connections: self.new_connections,
            retry: after_first.unwrap_or_default(),
            ..Self::default()
        };
    }

    /// Adds the requests of another read, not its times.
    pub(crate) fn add_counts(&mut self, other: Self) {
        self.attempts += other.attempts;
        self.retries += other.retries;
        self.new_connections += other.new_connections;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one reading of time here; ops report what their reads took"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Runs `read` and returns the parts of the read in it. Of several reads the counts are sums, and the times mean nothing.
pub async fn observe<T>(read: impl Future<Output = T>) -> (T, ReadParts) {
    let observed = async {
        let read = read.await;
        (read, PARTS.with(Cell::get))
    };
    PARTS.scope(Cell::default(), observed).await
}

pub(crate) fn is_observed() -> bool {
    PARTS.try_with(|_| ()).is_ok()
}

/// Changes the parts of the read, if it is observed.
pub(crate) fn note(change: impl FnOnce(&mut ReadParts)) {
    let noted = PARTS.try_with(|known| {
        let mut parts = known.get();
        change(&mut parts);
        known.set(parts);
    });
    // An error says that nobody observes.
    noted.unwrap_or_default();
}
