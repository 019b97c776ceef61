//! The history of runs, modules and benchmarks: one SQLite file in the data directory.
//!
//! A single thread writes, and takes its work from a bounded channel. Each reader has its own connection and never waits for the
//! writer. The rows of a live run are in the [`RowBuffer`] of the run until they are written; queries merge buffered and stored
//! rows.

mod buffer;
mod chunk;
mod error;
mod layout;
pub(crate) mod modules;
mod query;
pub(crate) mod read;
pub(crate) mod runs;
mod schema;

#[cfg(test)]
mod tests;

use std::fs::{self, File, TryLockError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use penstock_engine::lock::locked;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

pub(crate) use self::buffer::{RowBuffer, Unwritten};
pub(crate) use self::chunk::{compress, decompress};
pub use self::error::HistoryError;
pub(crate) use self::error::undamaged;
pub(crate) use self::layout::Layout;
pub(crate) use self::query::{NO_FIGURE, PageQuery, first, json_of};
pub(crate) use self::read::RunRows;
pub(crate) use self::runs::{Entry, MAX_ERRORS, MAX_LOGS, Registered, Repeat, now, write as write_entry};
#[cfg(test)]
pub(crate) use self::schema::migrate;
use crate::error::OpenError;
use crate::private;

const FILE: &str = "penstock.sqlite";
const LOCK: &str = "penstock.lock";
/// Capacity of the channel of work for the writer.
const WAITING: usize = 1024;
/// Maximum number of concurrent readers, each with its own connection.
const READERS: usize = 4;
/// Time limit for the check of the database's pages at the start of the server.
const CHECK_TIME: Duration = Duration::from_secs(5);
/// Time that a connection waits for a lock of another process on the file, in milliseconds.
const PATIENCE_MS: u32 = 5_000;

type Work = Box<dyn FnOnce(&mut Connection) + Send>;

/// Handle that reads and writes the history. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct History(Arc<Connections>);

#[derive(Debug)]
struct Connections {
    path: PathBuf,
    runtime: Handle,
    work: Mutex<Option<SyncSender<Work>>>,
    writer: Mutex<Option<Writer>>,
    /// Idle connections, to be reused by readers.
    readers: Mutex<Vec<Connection>>,
    places: Arc<Semaphore>,
    _lock: File,
}

#[derive(Debug)]
struct Writer {
    thread: JoinHandle<()>,
    /// Channel for the last work of the writer, which runs after all queued work.
    last: SyncSender<Work>,
    ended: Receiver<()>,
}

impl History {
    /// Opens the history in `folder`, which must exist, and starts its writer.
    pub(crate) fn open(folder: &Path, runtime: &Handle) -> Result<Self, OpenError> {
        let lock = lock(folder)?;
        let path = folder.join(FILE);
        let database = |source| OpenError::Database { path: path.clone(), source };
        // SQLite creates the `-wal` and `-shm` files with the permissions of the database file.
        let beside = ["-wal", "-shm"].map(|end| folder.join(format!("{FILE}{end}")));
        for file in beside.iter().filter(|file| file.exists()).chain([&path]) {
            private::file(file).map_err(|source| OpenError::Unusable { path: file.clone(), source })?;
        }
        let mut connection = Connection::open(&path).map_err(database)?;
        configure(&connection).map_err(database)?;
        if let Some(damage) = damage(&connection, CHECK_TIME) {
            tracing::error!(
                path = %path.display(),
                damage,
                "the history is damaged: data on the damaged pages is lost or wrong; restore a copy, or continue without the data"
            );
        }
        match schema::migrate(&mut connection).map_err(database)? {
            schema::Found::Ready => {}
            schema::Found::Newer(found) => {
                return Err(OpenError::Newer { path, found, supported: schema::VERSION });
            }
            schema::Found::Foreign => return Err(OpenError::Foreign(path)),
        }
        runs::interrupt_all(&connection).map_err(database)?;
        let (send, receive) = sync_channel(WAITING);
        let (last, at_last) = sync_channel(1);
        let (ends, ended) = sync_channel(0);
        let thread = Builder::new()
            .name("history".to_owned())
            .spawn(move || {
                let _ends: SyncSender<()> = ends;
                write_all(connection, &receive, &at_last);
            })
            .map_err(|source| OpenError::Unusable { path: path.clone(), source })?;
        Ok(Self(Arc::new(Connections {
            path,
            runtime: runtime.clone(),
            work: Mutex::new(Some(send)),
            writer: Mutex::new(Some(Writer { thread, last, ended })),
            readers: Mutex::default(),
            places: Arc::new(Semaphore::new(READERS)),
            _lock: lock,
        })))
    }

    /// Executes `work` in one transaction, to its end even if the future is dropped.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, HistoryError> + Send + 'static,
    ) -> Result<T, HistoryError> {
        self.work(|connection| transact(connection, work)).await
    }

    /// Blocking form of [`Self::write`], for a thread that may block.
    pub(crate) fn write_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, HistoryError> + Send + 'static,
    ) -> Result<T, HistoryError> {
        let (reply, answer) = sync_channel(1);
        let sender = self.sender().ok_or(HistoryError::Closed)?;
        let work: Work = Box::new(move |connection| {
            reply.send(transact(connection, work)).ok();
        });
        sender.send(work).map_err(|_| HistoryError::Closed)?;
        answer.recv().map_err(|_| self.unanswered())?
    }

    /// Runs work that makes its own transactions. The work runs to its end even if the future is dropped.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, HistoryError> + Send + 'static,
    ) -> Result<T, HistoryError> {
        let (reply, answer) = oneshot::channel();
        self.hand_over(Box::new(move |connection| {
            reply.send(work(connection)).ok();
        }))?;
        answer.await.map_err(|_| self.unanswered())?
    }

    /// Queues work whose result no caller waits for. `failed` gets the error of the work, or of a full queue.
    pub(crate) fn work_later(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<(), HistoryError> + Send + 'static,
        failed: impl Fn(&HistoryError) + Clone + Send + 'static,
    ) {
        let own = failed.clone();
        let queued = self.hand_over(Box::new(move |connection| {
            work(connection).unwrap_or_else(|error| own(&error));
        }));
        queued.unwrap_or_else(|error| failed(&error));
    }

    /// Queues work without waiting for its result. Fails if the queue is full.
    pub(crate) fn hand_over(&self, work: Work) -> Result<(), HistoryError> {
        match self.sender().map(|sender| sender.try_send(work)) {
            Some(Ok(())) => Ok(()),
            Some(Err(TrySendError::Full(_))) => Err(HistoryError::Behind),
            Some(Err(TrySendError::Disconnected(_))) | None => Err(HistoryError::Closed),
        }
    }

    /// Reads with an idle or new connection, off the I/O threads.
    pub(crate) async fn read<T: Send + 'static, E: From<HistoryError> + Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let own = self.clone();
        let place = self.0.places.clone().acquire_owned().await.map_err(|_| HistoryError::Closed)?;
        let read = self.0.runtime.spawn_blocking(move || {
            // The permit is held until the read has ended, even if the future is dropped.
            let _place = place;
            own.read_blocking(work)
        });
        read.await.unwrap_or_else(|panic| match panic.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(HistoryError::Closed.into()),
        })
    }

    /// Blocking form of [`Self::read`], for a thread that may block.
    pub(crate) fn read_blocking<T, E: From<HistoryError>>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        let readers = || locked(&self.0.readers);
        let kept = readers().pop();
        let connection = kept.map_or_else(|| self.reader(), Ok).map_err(HistoryError::from)?;
        let found = work(&connection);
        let mut readers = readers();
        if readers.len() < READERS {
            readers.push(connection);
        }
        found
    }

    fn reader(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.0.path, flags)?;
        connection.pragma_update(None, "busy_timeout", PATIENCE_MS)?;
        Ok(connection)
    }

    /// Runs all queued work and then `last`, and ends the writer. Returns after `patience` even if the writer has not ended.
    pub(crate) fn close(&self, last: Work, patience: Duration) {
        let writer = locked(&self.0.writer).take();
        let Some(writer) = writer else { return };
        if writer.last.try_send(last).is_err() {
            tracing::error!(
                "the history's writer thread has ended unexpectedly; this is a defect of Penstock"
            );
        }
        drop(locked(&self.0.work).take());
        match writer.ended.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => {
                // A thread that hangs in a system call cannot be joined; the process is about to end.
                tracing::error!(
                    "the disk does not respond; writes of the history that are still queued are lost"
                );
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                if writer.thread.join().is_err() {
                    tracing::error!("the history's writer panicked; this is a defect of Penstock");
                }
            }
        }
    }

    fn unanswered(&self) -> HistoryError {
        let is_closed = locked(&self.0.work).is_none();
        if is_closed { HistoryError::Closed } else { HistoryError::Defect }
    }

    fn sender(&self) -> Option<SyncSender<Work>> {
        locked(&self.0.work).clone()
    }
}

/// Size of the free pages of the database, in bytes. SQLite reuses free pages before the file grows.
pub(crate) fn free_bytes(connection: &Connection) -> Result<u64, HistoryError> {
    let pages = query::count(connection, "SELECT freelist_count FROM pragma_freelist_count", [])?;
    Ok(pages * query::count(connection, "SELECT page_size FROM pragma_page_size", [])?)
}

/// Runs `work`, which removes rows. Returns the result of `work` and the number of freed bytes.
pub(crate) fn freeing<T>(
    connection: &Connection,
    work: impl FnOnce() -> Result<T, HistoryError>,
) -> Result<(T, u64), HistoryError> {
    let before = free_bytes(connection)?;
    let done = work()?;
    Ok((done, free_bytes(connection)?.saturating_sub(before)))
}

pub(crate) fn transact<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, HistoryError>,
) -> Result<T, HistoryError> {
    let transact = || {
        let transaction = connection.transaction()?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    };
    // Errors of the database are reported as failed reads elsewhere.
    transact().map_err(|error| match error {
        HistoryError::Database { source, .. } => HistoryError::Database { what: "written", source },
        other => other,
    })
}

/// Runs all queued work until the channel closes. Work that panics is rolled back.
fn write_all(mut connection: Connection, waiting: &Receiver<Work>, last: &Receiver<Work>) {
    for work in waiting.iter().chain(last.try_iter()) {
        if catch_unwind(AssertUnwindSafe(|| work(&mut connection))).is_err() {
            tracing::error!("an operation on the history panicked; this is a defect of Penstock");
        }
    }
    // An explicit checkpoint: while the connection of a reader is open, closing this connection does not truncate the write-ahead
    // log.
    let folded = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
    if !matches!(folded, Ok(0)) {
        tracing::warn!(
            ?folded,
            "the last changes stay in the write-ahead log; the next start merges them into the history"
        );
    }
    if let Err((_, error)) = connection.close() {
        tracing::warn!(%error, "failed to close the history; no written data is lost");
    }
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "busy_timeout", PATIENCE_MS)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    // With `normal`, a power failure may lose the last writes, and a killed process loses none; the file stays consistent in both
    // cases.
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20)
}

/// Returns the first damage found in the pages of the database within the time `most`. The check has a time limit, because a
/// history may be too large to be read completely at the start of the server.
fn damage(connection: &Connection, most: Duration) -> Option<String> {
    let interrupt = connection.get_interrupt_handle();
    let (checks, checked) = sync_channel::<()>(0);
    std::thread::scope(|scope| {
        let timer = Builder::new().name("history-check".to_owned()).spawn_scoped(scope, move || {
            if checked.recv_timeout(most) == Err(RecvTimeoutError::Timeout) {
                interrupt.interrupt();
            }
        });
        if let Err(error) = timer {
            tracing::warn!(%error, "skipped the check of the history: cannot start the thread that limits its time");
            return None;
        }
        let found = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
        drop(checks);
        match found {
            Ok(found) => (found != "ok").then_some(found),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
                tracing::warn!(
                    ?most,
                    "the check of the history stopped at its time limit; the rest of the file was not checked for damage"
                );
                None
            }
            Err(error) => Some(error.to_string()),
        }
    })
}

/// Locks the directory. The operating system releases the lock when the process ends.
fn lock(folder: &Path) -> Result<File, OpenError> {
    let path = folder.join(LOCK);
    let unusable = |source| OpenError::Unusable { path: path.clone(), source };
    private::file(&path).map_err(unusable)?;
    let file = fs::OpenOptions::new().write(true).open(&path).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(folder.to_owned())),
        Err(TryLockError::Error(source)) => Err(unusable(source)),
    }
}
