//! Durations of the phases of one read, for callers that request them.

use std::cell::Cell;
use std::time::{Duration, Instant};

tokio::task_local! {
    /// Phases of the read being observed. Times measured on a blocking thread have to be passed back to the task.
    static PARTS: Cell<ReadParts>;
}

/// Phases of one read; phases that the store does not report are zero.
///
/// The times are consecutive and never overlap, so that their sum is at most the duration of the read. The rest is spent waiting
/// for a permit, finding a bucket's region at the very first request, and being woken. For a failed read, the times are those
/// of its last attempt.
///
/// For a large object that is read in parallel parts, `retry`, `connect` and `first_byte` are those of the first request, and
/// all further time, until all parts have arrived, is `body`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadParts {
    /// Number of requests, with or without a response: one for an object of at most 16 MiB or one for each part of a larger
    /// object, plus one for each repetition. A read from a folder or from memory counts as one.
    pub attempts: u32,
    /// Number of requests that repeated a failed request.
    pub retries: u32,
    /// Number of connections that a bucket's client began to open for the read, because none was idle.
    pub new_connections: u32,
    /// Time from the start of the first attempt to the start of the last one, i.e. failed attempts and the pauses between
    /// attempts.
    pub retry: Duration,
    /// Wait for a connection: for a new one (name lookup, TCP and TLS), or for an existing one that became free earlier.
    pub connect: Duration,
    /// Time from the request to the start of its response, without the wait for a connection. For a folder: the switch to a
    /// blocking thread and opening the file. For an object in memory: the configured latency.
    pub first_byte: Duration,
    /// Time from the start of the response to its last byte. Includes the verification of a whole object's checksum if the
    /// response contains one, as for most objects of at most 16 MiB.
    pub body: Duration,
    /// Time to calculate the checksum of an object that was read in parts.
    pub verify: Duration,
}

impl ReadParts {
    /// Starts an attempt. `after_first` is the time since the start of the first attempt, `None` for the first attempt itself.
    /// The times of the previous attempt become part of `retry`.
    pub(crate) fn begin_attempt(&mut self, after_first: Option<Duration>) {
        *self = Self {
            attempts: self.attempts + 1,
            retries: self.retries + u32::from(after_first.is_some()),
            new_connections: self.new_connections,
            retry: after_first.unwrap_or_default(),
            ..Self::default()
        };
    }

    /// Adds the counts of another read, without its times.
    pub(crate) fn add_counts(&mut self, other: Self) {
        self.attempts += other.attempts;
        self.retries += other.retries;
        self.new_connections += other.new_connections;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the only clock of this crate; ops report the duration of their reads"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Runs `read` and returns the phases of the single read in it. If `read` contains several reads, the counts are sums, and the
/// times are meaningless.
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

/// Updates the phases of the current read; does nothing if the read is not observed.
pub(crate) fn note(change: impl FnOnce(&mut ReadParts)) {
    let noted = PARTS.try_with(|known| {
        let mut parts = known.get();
        change(&mut parts);
        known.set(parts);
    });
    // Outside of an observed read, accessing the task-local value fails, which is no error.
    noted.unwrap_or_default();
}
