//! A store that keeps its objects in memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::{Bound, Range};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use futures::StreamExt;
use futures::stream;
use penstock_engine::timer::Timer;

use crate::asked::{Asked, CHANGED};
use crate::error::{Access, StoreError};
use crate::key::{check_key, check_prefix};
use crate::keys::Keys;
use crate::observe::{note, now};
use crate::store::{IfThere, KeyPages, Store, StoreFuture, Version};

const PAGE: usize = 1000;

/// Maximum number of different synthetic objects of one size; further objects repeat their content.
const DIFFERENT: usize = 1 << 20;

/// Distance in bytes between the starts of two consecutive synthetic objects in their shared bytes. Odd, so that all positions
/// are used in turn.
const STEP: usize = 4099;

/// A store that keeps its objects in memory: a read takes almost no time, or exactly the configured latency.
///
/// Reads return slices of the stored bytes, without copying. The content is not shared between processes.
pub struct MemoryStore {
    name: Arc<str>,
    objects: Arc<Objects>,
    /// Timer and length of the delay of each read.
    latency: Option<(Arc<Timer>, Duration)>,
}

#[derive(Default)]
struct Objects(RwLock<BTreeMap<Arc<str>, Object>>);

#[derive(Clone)]
struct Object {
    bytes: Bytes,
    replaced: u64,
}

impl MemoryStore {
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), objects: Arc::default(), latency: None }
    }

    /// Creates a store called `name` that holds `count` objects of `size` bytes for each `(count, size)`, named `000000.bin`,
    /// `000001.bin`, ... Consecutive objects differ, and equal names have equal bytes in every store with the same objects. The
    /// store occupies the size of the largest object, plus 1 MiB, plus about 200 bytes per object.
    pub fn synthetic(name: impl Into<Arc<str>>, objects: &[(usize, usize)]) -> Self {
        let largest = objects.iter().map(|(_, size)| *size).max().unwrap_or_default();
        let mut noise = vec![0; largest + DIFFERENT];
        Rng::with_seed(0).fill(&mut noise);
        let noise = Bytes::from(noise);
        let sizes = objects.iter().flat_map(|(count, size)| std::iter::repeat_n(*size, *count));
        let objects = sizes.enumerate().map(|(number, size)| {
            let start = number.wrapping_mul(STEP) % DIFFERENT;
            let object = Object { bytes: noise.slice(start..start + size), replaced: 0 };
            (Arc::from(format!("{number:06}.bin")), object)
        });
        let objects = Arc::new(Objects(RwLock::new(objects.collect())));
        Self { name: name.into(), objects, latency: None }
    }

    /// Delays each read by `latency`, with a precision of a tenth of a millisecond. Fails if the system cannot start a thread for
    /// the timer.
    pub fn with_latency(self, latency: Duration) -> io::Result<Self> {
        let timer = Arc::new(Timer::start()?);
        Ok(Self { latency: Some((timer, latency)), ..self })
    }

    /// Runs `read` on the object after the latency.
    fn with_object<T: Send + 'static>(
        &self,
        key: Arc<str>,
        read: impl FnOnce(&Asked, Object) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        let (objects, latency) = (self.objects.clone(), self.latency.clone());
        let asked = self.asked(key, Access::Reading);
        Box::pin(async move {
            check_key(&asked.key).map_err(|reason| asked.refused(reason))?;
            note(|parts| parts.attempts += 1);
            if let Some((timer, each)) = latency {
                let start = now();
                timer.sleep(each).await;
                note(|parts| parts.first_byte = start.elapsed());
            }
            let object = objects.read().get(&asked.key).cloned();
            read(&asked, object.ok_or_else(|| asked.not_found())?)
        })
    }

    fn asked(&self, key: Arc<str>, access: Access) -> Asked {
        Asked { store: self.name.clone(), key, access }
    }
}

impl Store for MemoryStore {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn describe(&self) -> String {
        format!("store `{}` (memory)", self.name)
    }

    fn list(&self, prefix: &str) -> KeyPages {
        let asked = self.asked(Arc::from(prefix), Access::Listing);
        if let Err(reason) = check_prefix(prefix) {
            return asked.refused_pages(reason);
        }
        let (objects, prefix) = (self.objects.clone(), asked.key);
        let first = Some(Bound::Included(prefix.clone()));
        stream::unfold(first, move |from| {
            let page = from.and_then(|from| objects.page(&prefix, from));
            std::future::ready(page.map(|(page, last)| (Ok(page), Some(Bound::Excluded(last)))))
        })
        .boxed()
    }

    fn get(&self, key: Arc<str>) -> StoreFuture<Bytes> {
        self.with_object(key, |asked, object| {
            let all = 0..object.bytes.len() as u64;
            object.range(asked, all)
        })
    }

    fn get_range(&self, key: Arc<str>, of: Option<Version>, range: Range<u64>) -> StoreFuture<Bytes> {
        self.with_object(key, move |asked, object| match of {
            Some(of) if of != object.version() => Err(asked.failed(CHANGED)),
            _ => object.range(asked, range),
        })
    }

    fn version(&self, key: Arc<str>) -> StoreFuture<Version> {
        self.with_object(key, |_, object| Ok(object.version()))
    }

    fn write(&self, key: Arc<str>, bytes: Bytes, if_there: IfThere) -> StoreFuture<bool> {
        let (objects, asked) = (self.objects.clone(), self.asked(key, Access::Writing));
        Box::pin(async move {
            check_key(&asked.key).map_err(|reason| asked.refused(reason))?;
            match (objects.write().entry(asked.key), if_there) {
                (Entry::Vacant(place), _) => {
                    place.insert(Object { bytes, replaced: 0 });
                    Ok(true)
                }
                (Entry::Occupied(mut object), IfThere::Replace) => {
                    let replaced = object.get().replaced + 1;
                    object.insert(Object { bytes, replaced });
                    Ok(true)
                }
                (Entry::Occupied(_), IfThere::Leave) => Ok(false),
            }
        })
    }
}

impl Objects {
    // A poisoned lock is ignored, because no code under the lock can panic.
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Arc<str>, Object>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Arc<str>, Object>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next keys that start with `prefix`, and the last of these keys; `None` at the end.
    fn page(&self, prefix: &str, from: Bound<Arc<str>>) -> Option<(Keys, Arc<str>)> {
        let objects = self.read();
        let (mut page, mut last) = (Keys::default(), None);
        let keys = objects.range((from, Bound::Unbounded)).map(|(key, _)| key);
        for key in keys.take_while(|key| key.starts_with(prefix)).take(PAGE) {
            page.push(key);
            last = Some(key.clone());
        }
        last.map(|last| (page, last))
    }
}

impl Object {
    fn version(&self) -> Version {
        let tag = self.replaced.to_string();
        Version { size: self.bytes.len() as u64, tag: Some(tag.into()) }
    }

    fn range(&self, asked: &Asked, range: Range<u64>) -> Result<Bytes, StoreError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        asked.check_range(&range, self.bytes.len() as u64)?;
        let place = |at| usize::try_from(at).expect("it is no more than the object's length");
        Ok(self.bytes.slice(place(range.start)..place(range.end)))
    }
}
