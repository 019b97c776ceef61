//! Thread that writes admitted entries, so that no run waits for the disk.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use penstock_engine::lock::locked;

use super::{Claim, EntryKey, Set, Stopped};

/// Most bytes of entries of one run that wait to be written, unless the run has less memory.
pub const MOST_WAITING: u64 = 64 << 20;
/// Bytes that a waiting entry takes beside its payload.
const ENTRY_BYTES: u64 = 512;

/// Memory in which entries of one run wait to be written.
#[derive(Debug)]
pub(crate) struct Room {
    state: Mutex<RoomState>,
    written: Condvar,
}

#[derive(Debug)]
struct RoomState {
    most: u64,
    used: u64,
    waiting: u64,
    refused: Refused,
}

/// Entries that were admitted and then not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refused {
    /// For want of space.
    pub(crate) full: u64,
    pub(crate) failed: u64,
}

/// Place of an entry in a [`Room`], until it is dropped.
#[derive(Debug)]
pub(super) struct InRoom {
    room: Arc<Room>,
    bytes: u64,
}

/// An entry to be written. Whoever waits for its claim goes on once it is written.
pub(super) struct Job {
    pub(super) set: Arc<Set>,
    pub(super) key: EntryKey,
    pub(super) group: u64,
    pub(super) payload: Bytes,
    pub(super) claim: Option<Claim>,
    pub(super) in_room: InRoom,
}

/// The thread, which ends when the filler is dropped and all entries are written.
pub(super) struct Filler {
    jobs: Sender<Job>,
    _thread: JoinHandle<()>,
}

impl Default for Room {
    fn default() -> Self {
        let state = RoomState { most: MOST_WAITING, used: 0, waiting: 0, refused: Refused::default() };
        Self { state: Mutex::new(state), written: Condvar::new() }
    }
}

impl Room {
    /// Changes the number of bytes.
    pub(crate) fn resize(&self, most: u64) {
        locked(&self.state).most = most;
    }

    /// True if an entry of this length may be admitted now. One that is larger than the room is alone in it.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        locked(&self.state).has_room(bytes)
    }

    pub(crate) fn refused(&self) -> Refused {
        locked(&self.state).refused
    }

    /// Blocks the thread until no entry waits, or `most` has passed. Returns the number of entries that still wait.
    pub(crate) fn wait(&self, most: Duration) -> u64 {
        let waited = self.written.wait_timeout_while(locked(&self.state), most, |state| state.waiting > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.waiting
    }

    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Option<InRoom> {
        let mut state = locked(&self.state);
        state.has_room(bytes).then(|| {
            let bytes = bytes.saturating_add(ENTRY_BYTES);
            state.used = state.used.saturating_add(bytes);
            state.waiting += 1;
            InRoom { room: self.clone(), bytes }
        })
    }
}

impl RoomState {
    fn has_room(&self, bytes: u64) -> bool {
        let needed = self.used.saturating_add(bytes).saturating_add(ENTRY_BYTES);
        self.waiting == 0 || needed <= self.most
    }
}

impl InRoom {
    /// Counts the entry as not written.
    fn refuse(&self, stopped: &Stopped) {
        let refused = &mut locked(&self.room.state).refused;
        match stopped {
            Stopped::Full | Stopped::DiskFull => refused.full += 1,
            Stopped::Failed(_) => refused.failed += 1,
        }
    }
}

impl Drop for InRoom {
    fn drop(&mut self) {
        let mut state = locked(&self.room.state);
        state.used -= self.bytes;
        state.waiting -= 1;
        self.room.written.notify_all();
    }
}

impl Filler {
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, received) = channel();
        let thread = Builder::new().name("penstock-cache".to_owned()).spawn(move || fill(&received))?;
        Ok(Self { jobs, _thread: thread })
    }

    /// Passes an entry to the thread. The rooms of the runs bound the number of those that wait.
    pub(super) fn add(&self, job: Job) {
        self.jobs.send(job).unwrap_or_default();
    }
}

fn fill(jobs: &Receiver<Job>) {
    while let Ok(Job { set, key, group, payload, claim, in_room }) = jobs.recv() {
        if let Err(stopped) = set.write(key, group, &payload) {
            in_room.refuse(&stopped);
        }
        // The set stays open as long as one of its entries waits.
        drop((claim, set, payload));
        drop(in_room);
    }
}
