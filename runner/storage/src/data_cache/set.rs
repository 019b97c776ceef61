//! An open set of entries.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bytes::Bytes;
use penstock_engine::lock::locked;
use penstock_engine::private::PrivateFolder;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::claims::{Claim, Claims};
use super::filler::{Job, Room};
use super::segment::{self, Payloads, Row, Rows, Writer};
use super::{DataCache, EntryKey, Stopped, stopped, touch};

/// Most processes that write into a set at the same time, and most segments.
const MOST_SEGMENTS: u32 = 256;
const CLAIMS: &str = "claims";
/// Time after which a task stops waiting for another one's entry: a process that is stopped keeps its claims.
const MOST_WAIT: Duration = Duration::from_secs(30);
/// Rows that are read on the thread of an asynchronous task.
const FEW_ROWS: usize = 1024;
/// Size of an entry that is read on the thread of an asynchronous task.
const SMALL_BYTES: u32 = 128 << 10;
/// The first and the longest pause between two attempts to lock what another process has locked.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// An open set, which is kept as long as it is open in any process.
pub(crate) struct Set {
    cache: Arc<DataCache>,
    folder: PrivateFolder,
    /// Has the lock that keeps the set.
    in_use: File,
    claims: Arc<Claims>,
    /// Rows that are read; held during a refresh.
    rows: Mutex<Vec<Rows>>,
    entries: RwLock<Entries>,
    writing: Mutex<Writing>,
    damaged: AtomicU64,
}

/// Entries by the short form of their keys.
#[derive(Default)]
struct Entries {
    segments: Vec<Arc<Payloads>>,
    places: HashMap<u64, Place>,
    groups: HashSet<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    segment: u32,
    bytes: u32,
    at_s: u32,
    start: u64,
}

enum Writing {
    NotBegun,
    Begun(Writer),
    Stopped(Stopped),
}

/// Result of a search for an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Entry(Bytes),
    Missing,
    Damaged,
}

/// Reason why one entry is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// Too many entries wait to be written.
    Busy,
    Stopped(Stopped),
}

impl Entries {
    /// Adds an entry; a later one with the same key stays.
    fn add(&mut self, Row { key, group, start, bytes, at_s }: Row, segment: u32) {
        self.groups.insert(group);
        let place = Place { segment, bytes, at_s, start };
        let kept = self.places.entry(key.short()).or_insert(place);
        if kept.at_s <= at_s {
            *kept = place;
        }
    }
}

impl Set {
    pub(super) fn open(cache: Arc<DataCache>, folder: PrivateFolder, in_use: File) -> io::Result<Self> {
        let claims = Claims::new(folder.shared_file(CLAIMS).map_err(io::Error::other)?);
        let set = Self {
            cache,
            folder,
            in_use,
            claims,
            rows: Mutex::default(),
            entries: RwLock::default(),
            writing: Mutex::new(Writing::NotBegun),
            damaged: AtomicU64::new(0),
        };
        set.refresh();
        Ok(set)
    }

    /// Reads an entry. Waits for the disk.
    pub(crate) fn read(&self, key: &EntryKey) -> Found {
        let Some((place, payloads)) = self.place(key) else { return Found::Missing };
        if let Some(payload) = payloads.read(&self.cache.keys, key, place.start, place.bytes) {
            return Found::Entry(payload);
        }
        self.damaged.fetch_add(1, Ordering::Relaxed);
        let places = &mut self.entries_mut().places;
        // A whole one may have been written meanwhile.
        if places.get(&key.short()) == Some(&place) {
            places.remove(&key.short());
        }
        Found::Damaged
    }

    /// Reads an entry that is small and in this machine's memory; `None` for any other.
    pub(crate) fn read_at_once(&self, key: &EntryKey) -> Option<Bytes> {
        let (place, payloads) = self.place(key).filter(|(place, _)| place.bytes <= SMALL_BYTES)?;
        payloads.read_in_memory(&self.cache.keys, key, place.start, place.bytes)
    }

    fn place(&self, key: &EntryKey) -> Option<(Place, Arc<Payloads>)> {
        let entries = self.entries();
        let place = *entries.places.get(&key.short())?;
        Some((place, entries.segments[place.segment as usize].clone()))
    }

    pub(crate) fn contains(&self, key: &EntryKey) -> bool {
        self.entries().places.contains_key(&key.short())
    }

    /// True if there is an entry of the group.
    pub(crate) fn has_group(&self, group: u64) -> bool {
        self.entries().groups.contains(&group)
    }

    /// Takes note of entries that were written since the last call. Waits for the disk.
    pub(crate) fn refresh(&self) {
        let mut rows = locked(&self.rows);
        let mut found: Vec<(Row, u32)> = Vec::new();
        for number in 0..MOST_SEGMENTS {
            if rows.len() <= number as usize {
                match segment::open(&self.folder, number) {
                    Ok(Some((new, payloads))) => {
                        rows.push(new);
                        self.entries_mut().segments.push(Arc::new(payloads));
                    }
                    Ok(None) | Err(_) => break,
                }
            }
            let read = rows[number as usize].read(&self.cache.keys, |row| found.push((row, number)));
            self.damaged.fetch_add(read.unwrap_or(0), Ordering::Relaxed);
        }
        if found.is_empty() {
            return;
        }
        let mut entries = self.entries_mut();
        found.into_iter().for_each(|(row, segment)| entries.add(row, segment));
    }

    /// Refreshes, on another thread if that takes long.
    async fn refreshed(self: &Arc<Self>) {
        let unread = locked(&self.rows).iter().map(|rows| rows.unread().unwrap_or(0)).sum::<usize>();
        if unread <= FEW_ROWS {
            return self.refresh();
        }
        let set = self.clone();
        // A panic is reported where it happens, and leaves the entries as they were.
        spawn_blocking(move || set.refresh()).await.unwrap_or_default();
    }

    /// Waits for the right to make an entry; `None` if another task has made it, and also if the wait has taken too long. `is_there` says
    /// that it is made.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        key: &EntryKey,
        is_there: impl Fn(&Self) -> bool,
    ) -> Option<Claim> {
        timeout(MOST_WAIT, self.claim_of(key, is_there)).await.ok().flatten()
    }

    async fn claim_of(self: &Arc<Self>, key: &EntryKey, is_there: impl Fn(&Self) -> bool) -> Option<Claim> {
        let claim = loop {
            match self.claims.take(key) {
                Ok(claim) => break claim,
                Err(given_back) => given_back.await,
            }
            if is_there(self) {
                return None;
            }
        };
        let [mut pause, longest] = PAUSES;
        while !claim.lock() {
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
        // Another process may have made it before it gave the claim back.
        self.refreshed().await;
        (!is_there(self)).then_some(claim)
    }

    /// Admits an entry, which is written soon.
    pub(crate) fn admit(
        self: &Arc<Self>,
        key: EntryKey,
        group: u64,
        payload: Bytes,
        claim: Option<Claim>,
        room: &Arc<Room>,
    ) -> Result<(), NotAdmitted> {
        if let Some(stopped) = self.stopped() {
            return Err(NotAdmitted::Stopped(stopped));
        }
        let in_room = room.take(payload.len() as u64).ok_or(NotAdmitted::Busy)?;
        self.cache.filler.add(Job { set: self.clone(), key, group, payload, claim, in_room });
        Ok(())
    }

    /// Reason why the set takes no more entries.
    pub(crate) fn stopped(&self) -> Option<Stopped> {
        // The thread that writes may hold the lock for as long as the disk takes.
        let writing = self.writing.try_lock().ok()?;
        if let Writing::Stopped(stopped) = &*writing { Some(stopped.clone()) } else { None }
    }

    /// Number of damaged rows and entries that were found.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Writes an entry, unless the set has stopped. Waits for the disk.
    pub(super) fn write(&self, key: EntryKey, group: u64, payload: &[u8]) -> Result<(), Stopped> {
        let mut writing = locked(&self.writing);
        let written = self.write_with(&mut writing, key, group, payload);
        if let Err(stopped) = &written {
            if !matches!(*writing, Writing::Stopped(_)) {
                self.tell(stopped);
            }
            *writing = Writing::Stopped(stopped.clone());
        }
        written
    }

    fn write_with(
        &self,
        writing: &mut Writing,
        key: EntryKey,
        group: u64,
        payload: &[u8],
    ) -> Result<(), Stopped> {
        if let Writing::NotBegun = writing {
            let writer = Writer::take(&self.folder, &self.cache.keys, MOST_SEGMENTS)?;
            let writer = writer.ok_or_else(|| Stopped::Failed("too many processes write".to_owned()))?;
            *writing = Writing::Begun(writer);
        }
        let writer = match writing {
            Writing::Begun(writer) => writer,
            Writing::Stopped(stopped) => return Err(stopped.clone()),
            Writing::NotBegun => return Ok(()),
        };
        let least = writer.lacks(payload.len());
        if least > 0 {
            self.cache.reserve(least, |bytes| writer.reserve(bytes))?;
        }
        let written = writer.write(&self.cache.keys, key, group, payload);
        let (row, index) = written.map_err(|error| stopped(&error))?;
        let is_next = locked(&self.rows).get_mut(writer.number as usize).is_some_and(|rows| rows.pass(index));
        match is_next {
            true => self.entries_mut().add(row, writer.number),
            false => self.refresh(),
        }
        Ok(())
    }

    /// Says once why no more entries are added.
    fn tell(&self, stopped: &Stopped) {
        let folder = self.folder.display();
        match stopped {
            Stopped::Full => tracing::info!(%folder, "the cache is full; no more entries are added"),
            Stopped::DiskFull => {
                tracing::warn!(%folder, "the disk of the cache is full; no more entries are added");
            }
            Stopped::Failed(reason) => {
                tracing::warn!(%folder, reason, "the cache cannot be written; no more entries are added");
            }
        }
    }

    /// Reads and checks all entries in the folder of a set. Returns the number of whole entries and of damaged ones.
    pub(super) fn verify(cache: &DataCache, folder: &PrivateFolder) -> (u64, u64) {
        let (mut whole, mut damaged) = (0, 0);
        for number in 0..MOST_SEGMENTS {
            let Ok(Some((mut rows, payloads))) = segment::open(folder, number) else { break };
            let rows_damaged = rows.read(&cache.keys, |row| {
                match payloads.read(&cache.keys, &row.key, row.start, row.bytes) {
                    Some(_) => whole += 1,
                    None => damaged += 1,
                }
            });
            damaged += rows_damaged.unwrap_or(0);
        }
        (whole, damaged)
    }

    fn entries(&self) -> RwLockReadGuard<'_, Entries> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries_mut(&self) -> RwLockWriteGuard<'_, Entries> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        touch(&self.in_use);
    }
}
