//! Row groups and shards in memory, of which a limited number of bytes is kept.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use penstock_engine::lock::locked;
use penstock_engine::ports::SourceFault;
use tokio::sync::{Notify, OnceCell};

/// Memory that values share, in bytes. Values that are not used make room for others, those first that were not used for longest.
pub(crate) struct Cache<T> {
    pub(crate) limits: Limits,
    memory: Arc<Memory>,
    kept: Mutex<Kept<T>>,
}

/// Maximum numbers of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of all values.
    pub(crate) all: u64,
    /// Of values in use of which samples may share the memory.
    pub(crate) shared: u64,
    /// Of values that are not used.
    pub(crate) unused: u64,
}

struct Kept<T> {
    slots: HashMap<usize, Slot<T>>,
    /// Number of uses of all slots.
    uses: u64,
}

struct Slot<T> {
    cell: Arc<OnceCell<Arc<(T, Reserved)>>>,
    last_use: u64,
}

struct Memory {
    most: u64,
    used: AtomicU64,
    freed: Notify,
}

/// Reserved bytes, which are free again when the value is dropped.
pub(crate) struct Reserved {
    bytes: u64,
    memory: Arc<Memory>,
}

/// A value that is in use. Its memory stays reserved until the value is dropped.
pub(crate) struct InUse<T> {
    value: Option<Arc<(T, Reserved)>>,
    memory: Arc<Memory>,
}

impl<T> Cache<T> {
    pub(crate) fn new(limits: Limits) -> Self {
        let kept = Mutex::new(Kept { slots: HashMap::new(), uses: 0 });
        let memory = Arc::new(Memory { most: limits.all, used: AtomicU64::new(0), freed: Notify::new() });
        Self { limits, memory, kept }
    }

    /// True if the values in use may stay so for as long as samples share their memory: what is left is enough to make others.
    pub(crate) fn can_share(&self) -> bool {
        let kept = locked(&self.kept);
        let in_use = kept.slots.values().filter(|slot| !slot.is_unused());
        in_use.map(Slot::bytes).sum::<u64>() <= self.limits.shared
    }

    /// Bytes that are in use or kept.
    pub(crate) fn used(&self) -> u64 {
        self.memory.used.load(Ordering::Relaxed)
    }

    /// The value with this number, which is made if it is not kept. Several callers make it once. To make it, `bytes` are reserved first;
    /// `make` returns those that the value still takes.
    pub(crate) async fn get<F>(
        &self,
        number: usize,
        bytes: u64,
        make: impl FnOnce(Reserved) -> F,
    ) -> Result<InUse<T>, SourceFault>
    where
        F: Future<Output = Result<(T, Reserved), SourceFault>>,
    {
        let cell = {
            let mut kept = locked(&self.kept);
            kept.uses += 1;
            let last_use = kept.uses;
            let slot = kept.slots.entry(number).or_insert_with(|| Slot { cell: Arc::default(), last_use });
            slot.last_use = last_use;
            slot.cell.clone()
        };
        let value = cell.get_or_try_init(|| async {
            Ok::<_, SourceFault>(Arc::new(make(self.reserve(bytes).await).await?))
        });
        let value = Some(value.await?.clone());
        drop(cell);
        Ok(InUse { value, memory: self.memory.clone() })
    }

    /// Waits for `bytes`, which are at most the limit. A caller must not use a value meanwhile, so that all uses end.
    pub(crate) async fn reserve(&self, bytes: u64) -> Reserved {
        let bytes = bytes.min(self.limits.all);
        loop {
            let freed = self.memory.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.try_reserve(bytes) {
                return Reserved { bytes, memory: self.memory.clone() };
            }
            freed.await;
        }
    }

    fn try_reserve(&self, bytes: u64) -> bool {
        loop {
            let mut kept = locked(&self.kept);
            let (mut unused, mut first): (_, Option<(u64, usize)>) = (0, None);
            for (number, slot) in kept.slots.iter().filter(|(_, slot)| slot.is_unused()) {
                let use_of_slot = (slot.last_use, *number);
                first = Some(first.map_or(use_of_slot, |first| first.min(use_of_slot)));
                unused += slot.bytes();
            }
            if unused <= self.limits.unused && self.memory.try_take(bytes) {
                return true;
            }
            let Some((_, number)) = first else { return false };
            let slot = kept.slots.remove(&number);
            drop(kept);
            // Frees its memory, which takes no lock.
            drop(slot);
        }
    }
}

impl Memory {
    fn try_take(&self, bytes: u64) -> bool {
        let with = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.most);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).is_ok()
    }
}

impl<T> Slot<T> {
    fn bytes(&self) -> u64 {
        self.cell.get().map_or(0, |value| value.1.bytes)
    }

    /// True if the value exists and only the slot refers to it: others begin to refer to it under the lock of the slots.
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.cell) == 1
            && self.cell.get().is_some_and(|value| Arc::strong_count(value) == 1)
    }
}

impl<T> InUse<T> {
    pub(crate) fn value(&self) -> &T {
        &self.value.as_ref().expect("a value stays until its use ends").0
    }
}

impl<T> Drop for InUse<T> {
    fn drop(&mut self) {
        self.value = None;
        self.memory.freed.notify_waiters();
    }
}

impl Reserved {
    /// Adds bytes. Returns false if they are not free now.
    pub(crate) fn grow_by(&mut self, bytes: u64) -> bool {
        let is_free = self.memory.try_take(bytes);
        if is_free {
            self.bytes += bytes;
        }
        is_free
    }

    /// Returns the bytes beyond `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let free = self.bytes.saturating_sub(bytes);
        self.bytes -= free;
        self.memory.used.fetch_sub(free, Ordering::Relaxed);
        self.memory.freed.notify_waiters();
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use futures::future::{join, join_all};

    use super::*;

    const LIMITS: Limits = Limits { all: 20, shared: 0, unused: 20 };

    async fn get(cache: &Cache<usize>, number: usize, makes: &AtomicU64) -> InUse<usize> {
        let make = |reserved| async move {
            makes.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok((number, reserved))
        };
        cache.get(number, 10, make).await.unwrap()
    }

    #[tokio::test]
    async fn a_value_is_made_once_for_all_its_users_and_kept_while_there_is_room() {
        let (cache, makes) = (Cache::new(LIMITS), AtomicU64::new(0));
        let all = join_all([1, 1, 2, 1, 2].map(|number| get(&cache, number, &makes))).await;
        assert_eq!(all.iter().map(|value| *value.value()).collect::<Vec<_>>(), [1, 1, 2, 1, 2]);
        assert_eq!((makes.load(Ordering::Relaxed), cache.used()), (2, 20));
        drop(all);
        // The value that was used first makes room.
        drop(get(&cache, 1, &makes).await);
        drop(get(&cache, 3, &makes).await);
        drop(get(&cache, 1, &makes).await);
        assert_eq!((makes.load(Ordering::Relaxed), cache.used()), (3, 20));
        drop(get(&cache, 2, &makes).await);
        assert_eq!(makes.load(Ordering::Relaxed), 4);
    }

    #[tokio::test]
    async fn more_bytes_than_the_limit_wait_until_a_use_ends() {
        let (cache, makes) = (Cache::new(LIMITS), AtomicU64::new(0));
        let (one, two) = (get(&cache, 1, &makes).await, get(&cache, 2, &makes).await);
        let third = get(&cache, 3, &makes);
        let end = async {
            tokio::task::yield_now().await;
            assert_eq!((makes.load(Ordering::Relaxed), cache.used()), (2, 20));
            drop(one);
        };
        let (three, ()) = join(third, end).await;
        assert_eq!((*three.value(), *two.value(), cache.used()), (3, 2, 20));
    }

    #[tokio::test]
    async fn values_are_shared_while_few_are_in_use() {
        let (cache, makes) = (Cache::new(Limits { all: 40, shared: 20, unused: 40 }), AtomicU64::new(0));
        let mut values = Vec::new();
        for (number, can_share) in [(1, true), (2, true), (2, true), (3, false)] {
            values.push(get(&cache, number, &makes).await);
            assert_eq!(cache.can_share(), can_share, "{number}");
        }
        drop(values);
        assert!(cache.can_share());
    }

    #[tokio::test]
    async fn few_values_stay_when_they_are_not_used() {
        let (cache, makes) = (Cache::new(Limits { all: 100, shared: 0, unused: 10 }), AtomicU64::new(0));
        let held = get(&cache, 0, &makes).await;
        for number in 1..9 {
            drop(get(&cache, number, &makes).await);
            assert!(cache.used() <= 30);
        }
        drop((held, get(&cache, 0, &makes).await));
        assert_eq!(makes.load(Ordering::Relaxed), 9);
    }

    #[tokio::test]
    async fn a_failed_or_cancelled_reading_frees_its_memory() {
        let cache = Cache::<usize>::new(LIMITS);
        let failed = cache.get(1, 20, |_| async { Err(SourceFault::new("no", None)) }).await;
        assert!(failed.is_err());
        assert_eq!(cache.used(), 0);
        let pending = cache.get(2, 20, |reserved| async {
            std::future::pending::<()>().await;
            Ok((2, reserved))
        });
        assert!(futures::poll!(Box::pin(pending)).is_pending());
        assert_eq!(cache.used(), 0);
    }
}
