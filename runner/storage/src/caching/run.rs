//! Knowledge and figures of one run.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_engine::lock::locked;
use penstock_types::stats::StoreCacheFigures;
use tokio::sync::OnceCell;

use super::object::Object;
use crate::data_cache::{NotAdmitted, Room, Set, Stopped};
use crate::stamp::Stamp;
use crate::store::Version;

/// Most objects whose versions a run remembers; those of others are asked for again.
const MOST_STAMPS: usize = 4 << 20;
const MOST_VERSIONS: usize = 1 << 16;

/// Knowledge and figures of one run.
#[derive(Default)]
pub(super) struct Run {
    /// `None` once the set could not be opened.
    pub(super) set: OnceCell<Option<Arc<Set>>>,
    known: Mutex<Known>,
    counts: Counts,
    pub(super) room: Arc<Room>,
}

/// Versions that the run has seen, by the group of the object.
#[derive(Default)]
struct Known {
    stamps: HashMap<u64, Stamp>,
    versions: HashMap<u64, Version>,
    /// Objects that turned out to have another version than the one that was kept.
    changed: HashSet<u64>,
    /// Objects whose versions do not tell all changes.
    weak: HashSet<u64>,
}

#[derive(Default)]
struct Counts {
    hits: AtomicU64,
    hit_bytes: AtomicU64,
    misses: AtomicU64,
    asked: AtomicU64,
    weak: AtomicU64,
    recent: AtomicU64,
    full: AtomicU64,
    busy: AtomicU64,
    failed: AtomicU64,
    wait_ns: AtomicU64,
}

fn insert<V>(map: &mut HashMap<u64, V>, object: Object, value: V, most: usize) {
    if map.len() < most || map.contains_key(&object.group()) {
        map.insert(object.group(), value);
    }
}

impl Run {
    pub(super) fn stamp(&self, object: Object) -> Option<Stamp> {
        locked(&self.known).stamps.get(&object.group()).copied()
    }

    pub(super) fn learn_stamp(&self, object: Object, stamp: Stamp) {
        let known = &mut *locked(&self.known);
        // Whatever was seen before may be another version.
        known.versions.remove(&object.group());
        insert(&mut known.stamps, object, stamp, MOST_STAMPS);
    }

    pub(super) fn version(&self, object: Object) -> Option<Version> {
        locked(&self.known).versions.get(&object.group()).cloned()
    }

    pub(super) fn learn(&self, object: Object, version: &Version) {
        let known = &mut *locked(&self.known);
        match Stamp::of(version) {
            Some(stamp) => insert(&mut known.stamps, object, stamp, MOST_STAMPS),
            None => {
                if known.weak.len() < MOST_VERSIONS {
                    known.weak.insert(object.group());
                }
            }
        }
        insert(&mut known.versions, object, version.clone(), MOST_VERSIONS);
    }

    /// Forgets the version of an object, which may have changed.
    pub(super) fn forget(&self, object: Object) {
        let known = &mut *locked(&self.known);
        known.stamps.remove(&object.group());
        known.versions.remove(&object.group());
        if known.changed.len() < MOST_VERSIONS {
            known.changed.insert(object.group());
        }
    }

    /// True if the object has changed during the run.
    pub(super) fn has_changed(&self, object: Object) -> bool {
        locked(&self.known).changed.contains(&object.group())
    }

    /// True if the object is known to have no version that tells all changes.
    pub(super) fn is_weak(&self, object: Object) -> bool {
        locked(&self.known).weak.contains(&object.group())
    }

    pub(super) fn count_hit(&self, bytes: usize) {
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        self.counts.hit_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a miss as a hit: another task made the entry meanwhile.
    pub(super) fn count_late_hit(&self, bytes: usize) {
        self.counts.misses.fetch_sub(1, Ordering::Relaxed);
        self.count_hit(bytes);
    }

    pub(super) fn count_wait(&self, time: Duration) {
        self.counts.wait_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(super) fn count_miss(&self) {
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_asked(&self) {
        self.counts.asked.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_weak(&self) {
        self.counts.weak.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_recent(&self) {
        self.counts.recent.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_not_admitted(&self, reason: &NotAdmitted) {
        let count = match reason {
            NotAdmitted::Busy => &self.counts.busy,
            NotAdmitted::Stopped(Stopped::Failed(_)) => &self.counts.failed,
            NotAdmitted::Stopped(Stopped::Full | Stopped::DiskFull) => &self.counts.full,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn figures(&self) -> StoreCacheFigures {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (counts, refused) = (&self.counts, self.room.refused());
        let set = self.set.get().and_then(Option::as_ref);
        StoreCacheFigures {
            hits: get(&counts.hits),
            misses: get(&counts.misses),
            hit_bytes: get(&counts.hit_bytes),
            asked: get(&counts.asked),
            damaged: set.map_or(0, |set| set.damaged()),
            weak: get(&counts.weak),
            recent: get(&counts.recent),
            full: get(&counts.full) + refused.full,
            busy: get(&counts.busy),
            failed: get(&counts.failed) + refused.failed,
            wait_s: Duration::from_nanos(get(&counts.wait_ns)).as_secs_f64(),
        }
    }
}
