//! A store whose objects are kept in a data cache.
//!
//! An entry is found by the place and the key of the object, its version, and the part of it: objects that are read whole are one entry up
//! to [`WHOLE_BYTES`](crate::stamp::WHOLE_BYTES), and blocks above; of objects that are read in ranges, those larger than a block are kept in blocks. A changed object
//! has other entries. Versions come from listings, and for other objects from a request of their own, unless the cache has nothing of the
//! object. Whatever fails in the cache, the store answers.

mod object;
mod run;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use futures::stream::StreamExt;
use penstock_types::config::Revalidate;
use penstock_types::spec::Links;
use penstock_types::stats::StoreCacheFigures;
use penstock_types::text::hex;
use tokio::task::coop::consume_budget;
use tokio::task::spawn_blocking;

pub use self::object::ObjectPlace;
use self::object::{Object, Part, PlaceDigest, from_bytes, to_bytes};
use self::run::Run;
use crate::data_cache::{Claim, DataCache, EntryKey, Found, NotAdmitted, Set};
use crate::error::StoreError;
use crate::keys::Keys;
use crate::observe::now;
use crate::stamp::Stamp;
use crate::store::{Folders, IfThere, KeyPages, MAX_GET_BYTES, Store, StoreFuture, Version};

/// Size of blocks.
const BLOCK_BYTES: u64 = 1 << 20;
/// Bytes of a large object that are read whole at a time, so that its blocks are written meanwhile.
const STRETCH_BYTES: u64 = 32 << 20;
/// Time after its last change within which a file can change again without another version.
const UNSETTLED: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct CachingStore {
    shared: Arc<Shared>,
    run: Arc<Run>,
}

struct Shared {
    inner: Arc<dyn Store>,
    cache: Arc<DataCache>,
    place: PlaceDigest,
    prefix: String,
    about: String,
    revalidate: Revalidate,
}

/// Cache of the objects of a store.
#[derive(Clone)]
pub struct ObjectCache(Arc<Shared>);

impl ObjectCache {
    /// Keeps objects of `store`, which are at `place`, in `cache`.
    pub fn new(
        store: Arc<dyn Store>,
        cache: Arc<DataCache>,
        place: &ObjectPlace,
        revalidate: Revalidate,
    ) -> Self {
        Self(Arc::new(Shared {
            inner: store,
            cache,
            place: PlaceDigest::of(place),
            prefix: place.prefix.clone(),
            about: format!("objects of {}", place.parts.join(" ")),
            revalidate,
        }))
    }

    /// The store with its cache, for one run, which has its own figures and remembers the versions that it has seen.
    pub fn for_run(&self) -> Arc<dyn Store> {
        Arc::new(CachingStore { shared: self.0.clone(), run: Arc::default() })
    }
}

/// A version of an object in a set, while parts of it are read.
struct Reading<'a> {
    store: &'a CachingStore,
    set: &'a Arc<Set>,
    key: Arc<str>,
    object: Object,
    version: Version,
    stamp: Stamp,
    /// False once a wait for another task has taken too long.
    waits: bool,
}

impl CachingStore {
    fn inner(&self) -> &dyn Store {
        &*self.shared.inner
    }

    /// The set of the place, which is opened for the first object; `None` if it cannot be.
    async fn set(&self) -> Option<&Arc<Set>> {
        let open = || async {
            let shared = self.shared.clone();
            let open = move || shared.cache.set(&hex(&shared.place.0), &shared.about);
            let opened = spawn_blocking(open).await.unwrap_or_else(|error| Err(error.into()));
            let store = &**self.inner().name();
            opened
                .inspect_err(|error| tracing::warn!(store, %error, "the store is read without its cache"))
                .ok()
        };
        self.run.set.get_or_init(open).await.as_ref()
    }

    fn object(&self, key: &str) -> Object {
        self.shared.place.object(&self.shared.prefix, key)
    }

    /// True if the run relies on versions that it has seen before.
    fn remembers(&self) -> bool {
        !matches!(self.shared.revalidate, Revalidate::Pass)
    }

    /// Version of the object: one that the run has seen, one that is kept for ever, or the current one.
    async fn version_of(&self, set: &Arc<Set>, key: Arc<str>, object: Object) -> Result<Version, StoreError> {
        if self.remembers()
            && let Some(version) = self.run.version(object)
        {
            return Ok(version);
        }
        let is_kept = matches!(self.shared.revalidate, Revalidate::Never) && !self.run.has_changed(object);
        let kept = match is_kept {
            true => self.read(set, object.entry(Part::Version)).await.and_then(|kept| from_bytes(&kept)),
            false => None,
        };
        let version = match kept {
            Some(version) => version,
            None => {
                self.run.count_asked();
                self.inner().version(key).await?
            }
        };
        if self.remembers() {
            self.run.learn(object, &version);
        }
        Ok(version)
    }

    /// Stamp of the object's version, if the cache may have an entry of the object.
    async fn stamp(&self, set: &Arc<Set>, key: &Arc<str>, object: Object) -> Option<Stamp> {
        if self.remembers()
            && let Some(stamp) = self.run.stamp(object)
        {
            return Some(stamp);
        }
        if !set.has_group(object.group()) {
            return None;
        }
        // If this request fails, the one for the object says why.
        Stamp::of(&self.version_of(set, key.clone(), object).await.ok()?)
    }

    async fn read(&self, set: &Arc<Set>, key: EntryKey) -> Option<Bytes> {
        if !set.contains(&key) {
            return None;
        }
        let begin = now();
        // A task that reads many entries lets other tasks run in between.
        consume_budget().await;
        if let Some(bytes) = set.read_at_once(&key) {
            self.run.count_wait(begin.elapsed());
            return Some(bytes);
        }
        let set = set.clone();
        let found = spawn_blocking(move || set.read(&key)).await;
        self.run.count_wait(begin.elapsed());
        match found {
            Ok(Found::Entry(bytes)) => Some(bytes),
            Ok(Found::Missing | Found::Damaged) | Err(_) => None,
        }
    }

    /// Reads an entry, and counts it.
    async fn found(&self, set: &Arc<Set>, key: EntryKey) -> Option<Bytes> {
        let found = self.read(set, key).await;
        found.inspect(|bytes| self.run.count_hit(bytes.len()))
    }

    async fn whole(&self, key: Arc<str>) -> Result<Bytes, StoreError> {
        let object = self.object(&key);
        let Some(set) = self.set().await else {
            self.run.count_miss();
            return self.inner().get(key).await;
        };
        if self.run.is_weak(object) {
            self.run.count_miss();
            self.run.count_weak();
            return self.inner().get(key).await;
        }
        let mut claim = None;
        let mut stamp = self.stamp(set, &key, object).await;
        if stamp.is_none() && !set.has_group(object.group()) && self.may_admit(set, 0) {
            claim = set.claim(&object.entry(Part::Any), |set| set.has_group(object.group())).await;
            if claim.is_none() {
                stamp = self.stamp(set, &key, object).await;
            }
        }
        if stamp.is_some_and(Stamp::is_large) {
            // Blocks have claims of their own.
            claim = None;
            if let Some(bytes) = self.large(set, &key, object).await {
                return Ok(bytes);
            }
        } else if let Some(stamp) = stamp {
            let entry = object.entry(Part::Whole(stamp));
            if let Some(bytes) = self.found(set, entry).await {
                return Ok(bytes);
            }
            if claim.is_none() && self.may_admit(set, 0) {
                claim = set.claim(&entry, |set| set.contains(&entry)).await;
                if claim.is_none()
                    && let Some(bytes) = self.found(set, entry).await
                {
                    return Ok(bytes);
                }
            }
        }
        self.run.count_miss();
        let Some(read) = self.inner().get_versioned(key.clone()) else {
            self.run.count_weak();
            return self.inner().get(key).await;
        };
        let (bytes, version) = read.await?;
        if self.remembers() {
            self.run.learn(object, &version);
        }
        if let Some(stamp) = self.admissible(set, object, &version) {
            match stamp.is_large() {
                false => self.admit(set, object, Part::Whole(stamp), bytes.clone(), claim),
                true => {
                    let reading = Reading { store: self, set, key, object, version, stamp, waits: true };
                    reading.admit_blocks(&bytes, 0, Vec::new(), claim);
                }
            }
        }
        Ok(bytes)
    }

    /// Reads a large object block by block; `None` if that fails, and for one that is too large.
    async fn large(&self, set: &Arc<Set>, key: &Arc<str>, object: Object) -> Option<Bytes> {
        let version = self.version_of(set, key.clone(), object).await.ok()?;
        let size = version.size;
        if size > MAX_GET_BYTES {
            return None;
        }
        let mut all = BytesMut::with_capacity(usize::try_from(size).ok()?);
        let mut start = 0;
        while start < size {
            let end = size.min(start + STRETCH_BYTES);
            all.extend_from_slice(&self.range(key.clone(), version.clone(), start..end).await.ok()?);
            start = end;
        }
        Some(all.freeze())
    }

    async fn range(&self, key: Arc<str>, of: Version, range: Range<u64>) -> Result<Bytes, StoreError> {
        let object = self.object(&key);
        let Some(set) = self.set().await else {
            self.run.count_miss();
            return self.inner().get_range(key, Some(of), range).await;
        };
        let Some(stamp) = Stamp::of(&of) else {
            self.run.count_miss();
            self.run.count_weak();
            return self.inner().get_range(key, Some(of), range).await;
        };
        let mut reading = Reading { store: self, set, key, object, version: of, stamp, waits: true };
        let read = match range {
            range if range.is_empty() || range.end > reading.version.size => reading.direct(range).await,
            range if reading.version.size <= BLOCK_BYTES => reading.slice(range).await,
            range => reading.blocks(range).await,
        };
        // The object may have another version by now, which the next one who asks gets.
        read.inspect_err(|_| self.run.forget(object))
    }

    /// True if an entry of this length would be admitted now.
    fn may_admit(&self, set: &Set, bytes: u64) -> bool {
        set.stopped().is_none() && self.run.room.has_room(bytes)
    }

    /// Stamp of a version whose parts may be kept.
    fn admissible(&self, set: &Arc<Set>, object: Object, version: &Version) -> Option<Stamp> {
        let stamp = Stamp::of(version);
        if stamp.is_none() {
            self.run.count_weak();
        } else if is_unsettled(version) {
            self.run.count_recent();
            return None;
        }
        if stamp.is_some() && matches!(self.shared.revalidate, Revalidate::Never) {
            let entry = object.entry(Part::Version);
            if self.run.has_changed(object) || !set.contains(&entry) {
                self.admit(set, object, Part::Version, to_bytes(version), None);
            }
        }
        stamp
    }

    fn admit(&self, set: &Arc<Set>, object: Object, part: Part, payload: Bytes, claim: Option<Claim>) {
        let admitted = set.admit(object.entry(part), object.group(), payload, claim, &self.run.room);
        if let Err(reason) = admitted {
            self.run.count_not_admitted(&reason);
        }
    }

    /// Takes note of the versions in the pages of a listing.
    fn noted(&self, pages: KeyPages) -> KeyPages {
        if !self.remembers() {
            return pages;
        }
        let store = self.clone();
        let note = move |page: Result<Keys, StoreError>| {
            for (index, key) in page.iter().flat_map(|page| page.iter().enumerate()) {
                if let Some(stamp) = page.as_ref().ok().and_then(|page| page.stamp(index)) {
                    store.run.learn_stamp(store.object(key), stamp);
                }
            }
            page
        };
        pages.map(note).boxed()
    }
}

impl Reading<'_> {
    fn direct(&self, range: Range<u64>) -> StoreFuture<Bytes> {
        self.store.inner().get_range(self.key.clone(), Some(self.version.clone()), range)
    }

    /// Reads an entry, or waits for the right to make it. The error is the claim, which is missing if the entry is not to be made.
    async fn found_or_claimed(&mut self, part: Part, bytes: u64) -> Result<Bytes, Option<Claim>> {
        let (store, set, entry) = (self.store, self.set, self.object.entry(part));
        if let Some(bytes) = store.found(set, entry).await {
            return Ok(bytes);
        }
        store.run.count_miss();
        if let Some(stopped) = set.stopped() {
            store.run.count_not_admitted(&NotAdmitted::Stopped(stopped));
            return Err(None);
        }
        if !self.waits || !store.run.room.has_room(bytes) || is_unsettled(&self.version) {
            return Err(None);
        }
        match set.claim(&entry, |set| set.contains(&entry)).await {
            Some(claim) => Err(Some(claim)),
            None => match store.read(set, entry).await {
                Some(bytes) => {
                    store.run.count_late_hit(bytes.len());
                    Ok(bytes)
                }
                None => {
                    self.waits = false;
                    Err(None)
                }
            },
        }
    }

    /// Admits the blocks from `first` on, each with its claim if it has one. `last` is given back after all of them.
    fn admit_blocks(&self, bytes: &Bytes, first: u64, claims: Vec<Option<Claim>>, mut last: Option<Claim>) {
        let mut claims = claims.into_iter();
        let step = BLOCK_BYTES as usize;
        for (number, start) in (first..).zip((0..bytes.len()).step_by(step)) {
            let end = bytes.len().min(start + step);
            let claim = claims.next().flatten();
            let claim = if end == bytes.len() { last.take().or(claim) } else { claim };
            let part = Part::Block(self.stamp, number);
            self.store.admit(self.set, self.object, part, bytes.slice(start..end), claim);
        }
    }

    /// Reads a part of an object that is one entry.
    async fn slice(&mut self, range: Range<u64>) -> Result<Bytes, StoreError> {
        match self.found_or_claimed(Part::Whole(self.stamp), self.version.size).await {
            Ok(bytes) => Ok(part_of(&bytes, &range)),
            Err(None) => self.direct(range).await,
            Err(claim) => {
                let bytes = self.direct(0..self.version.size).await?;
                if let Some(stamp) = self.store.admissible(self.set, self.object, &self.version) {
                    self.store.admit(self.set, self.object, Part::Whole(stamp), bytes.clone(), claim);
                }
                Ok(part_of(&bytes, &range))
            }
        }
    }

    /// Reads a part of an object that is kept in blocks. Adjacent blocks that are missing are read with one request.
    async fn blocks(&mut self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let end = range.end.div_ceil(BLOCK_BYTES);
        let mut pieces: Vec<Bytes> = Vec::new();
        let mut missing: Option<(u64, Vec<Option<Claim>>)> = None;
        for number in range.start / BLOCK_BYTES..end {
            let start = number * BLOCK_BYTES;
            let bytes = BLOCK_BYTES.min(self.version.size - start);
            // Claims are taken in the order of blocks, so that no two readers wait for each other.
            match self.found_or_claimed(Part::Block(self.stamp, number), bytes).await {
                Err(claim) => missing.get_or_insert_with(|| (number, Vec::new())).1.push(claim),
                Ok(block) => {
                    if let Some(missing) = missing.take() {
                        pieces.push(self.missing(missing, number, &range).await?);
                    }
                    let part = range.start.max(start) - start..range.end.min(start + BLOCK_BYTES) - start;
                    pieces.push(part_of(&block, &part));
                }
            }
        }
        if let Some(missing) = missing.take() {
            pieces.push(self.missing(missing, end, &range).await?);
        }
        Ok(match pieces.len() {
            1 => pieces.remove(0),
            _ => {
                let mut all = BytesMut::with_capacity((range.end - range.start) as usize);
                pieces.iter().for_each(|piece| all.extend_from_slice(piece));
                all.freeze()
            }
        })
    }

    /// Reads the blocks from `first` to `end` that the cache does not have, or the part of them in `range` if none is to be kept.
    async fn missing(
        &self,
        (first, claims): (u64, Vec<Option<Claim>>),
        end: u64,
        range: &Range<u64>,
    ) -> Result<Bytes, StoreError> {
        let blocks = first * BLOCK_BYTES..self.version.size.min(end * BLOCK_BYTES);
        let wanted = blocks.start.max(range.start)..blocks.end.min(range.end);
        if claims.iter().all(Option::is_none) {
            return self.direct(wanted).await;
        }
        let bytes = self.direct(blocks.clone()).await?;
        if self.store.admissible(self.set, self.object, &self.version).is_some() {
            self.admit_blocks(&bytes, first, claims, None);
        }
        Ok(part_of(&bytes, &(wanted.start - blocks.start..wanted.end - blocks.start)))
    }
}

impl Store for CachingStore {
    fn name(&self) -> &Arc<str> {
        self.inner().name()
    }

    fn describe(&self) -> String {
        self.inner().describe()
    }

    fn list(&self, prefix: &str) -> KeyPages {
        self.noted(self.inner().list(prefix))
    }

    fn list_all(&self, prefix: &str, links: Links) -> KeyPages {
        self.noted(self.inner().list_all(prefix, links))
    }

    fn folders(&self, folder: &str, links: Links) -> StoreFuture<Option<Folders>> {
        self.inner().folders(folder, links)
    }

    fn get(&self, key: Arc<str>) -> StoreFuture<Bytes> {
        let store = self.clone();
        Box::pin(async move { store.whole(key).await })
    }

    fn get_range(&self, key: Arc<str>, of: Option<Version>, range: Range<u64>) -> StoreFuture<Bytes> {
        let Some(of) = of else { return self.inner().get_range(key, None, range) };
        let store = self.clone();
        Box::pin(async move { store.range(key, of, range).await })
    }

    fn version(&self, key: Arc<str>) -> StoreFuture<Version> {
        let store = self.clone();
        Box::pin(async move {
            match store.set().await {
                Some(set) => store.version_of(set, key.clone(), store.object(&key)).await,
                None => store.inner().version(key).await,
            }
        })
    }

    fn write(&self, key: Arc<str>, bytes: Bytes, if_there: IfThere) -> StoreFuture<bool> {
        let (object, run) = (self.object(&key), self.run.clone());
        let write = self.inner().write(key, bytes, if_there);
        Box::pin(async move {
            let written = write.await;
            run.forget(object);
            written
        })
    }

    fn forget(&self, key: Arc<str>) -> StoreFuture<bool> {
        self.inner().forget(key)
    }

    fn cached_share(&self, key: Arc<str>) -> StoreFuture<Option<f64>> {
        self.inner().cached_share(key)
    }

    fn cache_figures(&self) -> Option<StoreCacheFigures> {
        Some(self.run.figures())
    }

    fn set_cache_room(&self, bytes: u64) {
        self.run.room.resize(bytes);
    }

    fn cache_written(&self, most: Duration) -> u64 {
        self.run.room.wait(most)
    }
}

/// True for a file that can change within the resolution of its time.
fn is_unsettled(version: &Version) -> bool {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    version.file_time().is_some_and(|changed| since_1970.saturating_sub(changed) < UNSETTLED)
}

/// A part of an entry; a small one does not keep the rest in memory.
fn part_of(bytes: &Bytes, part: &Range<u64>) -> Bytes {
    let part = bytes.slice(part.start as usize..part.end as usize);
    if part.len() < bytes.len() / 2 { Bytes::copy_from_slice(&part) } else { part }
}
