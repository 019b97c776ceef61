//! The `list` source: a sample for every object in a listing.

use std::collections::HashSet;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use penstock_engine::notes::Notes;
use penstock_engine::numbered::Open;
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_types::fault::listed;
use penstock_types::left_out::{Endings, LeftOut, LeftOutReason};
use penstock_types::resume::DataSet;
use penstock_types::spec::{Links, Suffix};
use penstock_types::traversal::{Traversal, TraversalSettings};
use tokio::task::JoinSet;

use crate::bounded::BoundedStore;
use crate::error::{StoreError, interrupted, shown};
use crate::index::{MAX_INDEX_BYTES, RAISE_BUFFER};
use crate::keyed::{CHUNK, KeyedSamples, produced};
use crate::keys::{Keys, KeysDigest, LinkedKey, PackedKeys};
use crate::store::KeyPages;

/// Rule of [`Notes::rules`]: hidden keys that earlier versions took are left out.
pub const NEW_HIDDEN: &str = "files in hidden folders are left out; `\"hidden\": true` takes them, as before";

/// Rule of [`Notes::rules`]: keys that earlier versions left out are found through links.
pub const NEW_LINKS: &str =
    "links to folders and absolute links are followed; `\"links\": \"files\"` leaves them out, as before";

/// Folder that archives made by macOS contain beside their content.
const MACOS_FOLDER: &str = "__MACOSX";

/// Maximum number of keys found through links of which a listing knows when their files are listed again.
const MAX_LINKED: usize = 1 << 20;

/// Makes a sample without fields for every key of a store that starts with a prefix and ends with a suffix. Keys are sorted by
/// their bytes, so that a folder and a bucket with equal keys produce the same samples in the same order. A shuffled order needs all
/// keys first: see [`list_samples`].
///
/// The listing is made once, and its keys are kept for all epochs, front-coded: numbered names take about 10 bytes each. The first
/// samples are made after the first page of the listing, and no page is read beyond `limit`; a single epoch keeps only keys
/// that are not visited yet, so that the number of keys does not matter. An empty result is a fault that names the prefix and suffix.
pub struct ListSource {
    store: BoundedStore,
    wanted: Wanted,
    settings: TraversalSettings,
    most_bytes: u64,
    /// Listing and visits; `None` before the first call.
    listed: Option<InPages>,
}

/// A listing in progress or at its end, and the visits of its keys in order.
struct InPages {
    found: Found,
    /// Read of the next page; `None` once all wanted keys are listed.
    next: Option<PageRead>,
    /// True if the last page was shorter than pages usually are.
    is_short: bool,
    traversal: Traversal,
    /// True if there is one epoch, so that visited keys are not needed again.
    is_once: bool,
}

/// A read in progress of the next page of a listing, as a set of one task. Dropping the set cancels the read.
type PageRead = JoinSet<(KeyPages, Option<Result<Keys, StoreError>>)>;

/// Number of keys in a page, unless it is the last one or the store skips keys.
const FULL_PAGE: usize = 1000;

/// Size in bytes of the keys of a single epoch from which on the next page waits until they are visited.
const AHEAD_BYTES: u64 = 16 << 20;

impl ListSource {
    /// Creates a source that visits the wanted keys of `store` in order.
    pub fn new(store: BoundedStore, wanted: Wanted, settings: TraversalSettings) -> Self {
        Self { store, wanted, settings, most_bytes: MAX_INDEX_BYTES, listed: None }
    }

    /// Limits the memory of the keys to `bytes`, the source's part of the run's budget.
    #[must_use]
    pub fn within(self, bytes: u64) -> Self {
        Self { most_bytes: bytes.min(MAX_INDEX_BYTES), ..self }
    }
}

/// Samples without fields, one for each key that is wanted, sorted by the bytes of the keys. All keys are listed first; they may take
/// `most_bytes` of memory.
pub fn list_samples(store: BoundedStore, wanted: Wanted, most_bytes: u64) -> Open {
    async move {
        let keys = wanted.list(most_bytes.min(MAX_INDEX_BYTES), &store, |_| {}).await?;
        Ok(KeyedSamples::numbered(keys))
    }
    .boxed()
}

impl Source for ListSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
        let Self { store, wanted, settings, most_bytes, listed } = self;
        async move {
            let listed = match listed {
                Some(listed) => listed,
                none => {
                    none.insert(InPages::start(wanted.pages(store, settings.limit.is_some()), *settings)?)
                }
            };
            listed.next_chunk(wanted, store.name(), *most_bytes).await
        }
        .boxed()
    }

    fn total(&self) -> Option<u64> {
        let listed = self.listed.as_ref().filter(|listed| listed.next.is_none())?;
        listed.traversal.total()
    }

    fn data(&self) -> DataSet {
        let listed = self.listed.as_ref().filter(|listed| listed.next.is_none());
        // A limit ends the listing early.
        let is_whole = |count: &u64| self.settings.limit.is_none_or(|limit| *count < limit);
        let whole = listed.filter(|listed| is_whole(&listed.traversal.count()));
        DataSet {
            count: whole.map(|listed| listed.traversal.count()),
            digest: whole.map(|listed| listed.found.digest.get()),
            ..DataSet::default()
        }
    }

    fn kept_bytes(&self) -> u64 {
        self.listed.as_ref().map_or(0, |listed| listed.found.keys.bytes())
    }
}

impl InPages {
    fn start(pages: KeyPages, settings: TraversalSettings) -> Result<Self, SourceFault> {
        let traversal =
            Traversal::new(0, settings).map_err(|fault| SourceFault::new(fault.to_string(), None))?;
        // With a limit of 0, one key is found to tell an empty selection from an empty listing.
        let most = settings.limit.map(|limit| limit.max(1));
        let found = Found { most, ..Found::default() };
        let is_once = settings.after(settings.first_epoch).is_none();
        Ok(Self { found, next: Some(read_page(pages)), is_short: false, traversal, is_once })
    }

    /// Returns the next samples or the end of an epoch. Waits for a page only if no known key is left to visit, or if the end of
    /// the listing is near: the total is then known early.
    async fn next_chunk(
        &mut self,
        wanted: &Wanted,
        store: &str,
        most_bytes: u64,
    ) -> Result<Option<Produced>, SourceFault> {
        let ahead_bytes = AHEAD_BYTES.min(most_bytes / 2);
        while let Some(next) = &mut self.next {
            if self.is_once && self.found.keys.bytes() > ahead_bytes {
                if !self.traversal.is_epoch_visited() {
                    break;
                }
                self.found.remove_before(self.traversal.unvisited_from());
            }
            let waits = self.is_short || self.traversal.is_epoch_visited();
            let read = if waits { next.join_next().await } else { next.try_join_next() };
            let Some(read) = read else { break };
            let (pages, page) = read.map_err(|error| interrupted("the listing", error))?;
            self.next = match page.transpose()? {
                None => None,
                Some(page) => {
                    self.is_short = page.len() < FULL_PAGE;
                    self.found.add(wanted, &page);
                    self.found.check_size(wanted, store, most_bytes)?;
                    (!self.found.is_full()).then(|| read_page(pages))
                }
            };
            if self.next.is_none() {
                self.found.check_end(wanted, store)?;
                self.found.keys.shrink();
            }
            self.traversal.grow(self.found.count());
        }
        let visits = self.traversal.next_visits(CHUNK);
        Ok(visits.map(|visits| produced(&self.found.keys, self.found.removed, visits)))
    }
}

fn read_page(mut pages: KeyPages) -> PageRead {
    let mut read = PageRead::new();
    read.spawn(async move {
        let page = pages.next().await;
        (pages, page)
    });
    read
}

/// Keys of a listing that a source takes.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub prefix: String,
    pub suffix: Suffix,
    /// Key that is not taken: that of a table of labels or of an index.
    pub except: Option<String>,
    /// Set if keys in hidden folders behind the prefix are taken, too.
    pub hidden: bool,
    /// Links that are followed in a folder.
    pub links: Links,
    /// Notes that get what is left out.
    pub notes: Notes,
}

/// The keys found by a listing, and the counts of all listed keys.
#[derive(Default)]
struct Found {
    /// Keys from the index `removed` on.
    keys: PackedKeys,
    removed: u64,
    /// Digest of all keys, also of those that were removed.
    digest: KeysDigest,
    /// Number of keys after which the rest of the listing is not needed.
    most: Option<u64>,
    seen: Seen,
    /// Notes of what this listing left out, for its errors.
    left_out: Notes,
    /// Identities of the keys that were found through links.
    linked: HashSet<u64>,
}

#[derive(Default)]
struct Seen {
    count: u64,
    with_suffix: u64,
}

impl Found {
    /// Number of keys found, including those that were removed.
    fn count(&self) -> u64 {
        self.removed + self.keys.len() as u64
    }

    fn is_full(&self) -> bool {
        self.most.is_some_and(|most| self.count() >= most)
    }

    fn remove_before(&mut self, index: u64) {
        let count = index.min(self.count()) - self.removed;
        self.keys.remove_first(usize::try_from(count).unwrap_or(usize::MAX));
        self.removed += count;
    }

    fn add(&mut self, wanted: &Wanted, page: &Keys) {
        self.leave_out(wanted, page);
        let (mut endings, mut hidden) = (Endings::default(), Keys::default());
        let mut linked = page.linked().iter().peekable();
        // The keys of a folder are neighbours.
        let mut folder = ("", false);
        for (index, key) in page.iter().enumerate() {
            // The rest of the page is not needed.
            if self.is_full() {
                break;
            }
            let linked = linked.next_if(|linked| linked.index == index);
            self.seen.count += 1;
            let is_wanted = wanted.suffix.takes(key);
            let path = &key[..key.rfind('/').map_or(0, |slash| slash + 1)];
            if path != folder.0 {
                folder = (path, !wanted.hidden && wanted.is_hidden(path));
            }
            let is_hidden = folder.1;
            self.seen.with_suffix += u64::from(is_wanted && !is_hidden);
            match (is_wanted, is_hidden) {
                _ if wanted.except.as_deref() == Some(key) => {}
                (true, true) => hidden.leave_out(LeftOutReason::Hidden, Some(key)),
                (false, true) => {}
                (false, false) => endings.add(key),
                (true, false) => {
                    if let Some(linked) = linked {
                        self.add_linked(wanted, key, linked);
                    }
                    self.keys.push(key);
                    self.digest.push(key);
                }
            }
        }
        for notes in [&wanted.notes, &self.left_out] {
            notes.leave_out_endings(&endings);
        }
        self.leave_out(wanted, &hidden);
        if !hidden.left_out.is_empty() {
            wanted.notes.rule(NEW_HIDDEN);
        }
    }

    fn leave_out(&self, wanted: &Wanted, page: &Keys) {
        for LeftOut { reason, count, first, .. } in page.left_out() {
            for notes in [&wanted.notes, &self.left_out] {
                notes.leave_out(*reason, *count, first.iter().map(String::as_str));
            }
        }
    }

    fn add_linked(&mut self, wanted: &Wanted, key: &str, linked: &LinkedKey) {
        if linked.is_new {
            wanted.notes.rule(NEW_LINKS);
        }
        let is_listed = linked.own_key.as_deref().is_some_and(|own| wanted.takes(own));
        let is_known = self.linked.contains(&linked.identity);
        if !is_known && self.linked.len() < MAX_LINKED {
            self.linked.insert(linked.identity);
        }
        if is_listed || is_known {
            wanted.notes.warn("files listed under two keys", key);
        }
    }

    fn check_size(&self, wanted: &Wanted, store: &str, most_bytes: u64) -> Result<(), SourceFault> {
        match self.keys.bytes() > most_bytes {
            true => Err(SourceFault::new(wanted.too_many(store, self.count(), most_bytes), None)),
            false => Ok(()),
        }
    }

    fn check_end(&self, wanted: &Wanted, store: &str) -> Result<(), SourceFault> {
        if self.count() > 0 {
            return Ok(());
        }
        let message = wanted.nothing_found(store, &self.seen, &self.left_out.left_out());
        Err(SourceFault::new(message, None))
    }
}

impl Wanted {
    /// Lists the matching keys of `store`, sorted by their bytes. All keys are held in memory, of which they may take `most_bytes`.
    /// `on_page` receives the number of keys found so far. An empty result and too many keys are faults, whose messages state prefix
    /// and suffix.
    pub async fn list(
        &self,
        most_bytes: u64,
        store: &BoundedStore,
        mut on_page: impl FnMut(usize),
    ) -> Result<PackedKeys, SourceFault> {
        let mut found = Found::default();
        let mut pages = self.pages(store, false);
        while let Some(page) = pages.next().await {
            found.add(self, &page?);
            found.check_size(self, store.name(), most_bytes)?;
            on_page(found.keys.len());
        }
        found.check_end(self, store.name())?;
        Ok(found.keys)
    }

    /// Pages of the listing, read when they are needed if only the first keys are.
    fn pages(&self, store: &BoundedStore, is_limited: bool) -> KeyPages {
        match (self.links, is_limited) {
            (Links::All, true) => store.list(&self.prefix),
            (links, _) => store.list_all(&self.prefix, links),
        }
    }

    fn takes(&self, key: &str) -> bool {
        key.starts_with(&self.prefix)
            && self.suffix.takes(key)
            && (self.hidden || !self.is_hidden(key))
            && self.except.as_deref() != Some(key)
    }

    /// True if the key is in a hidden folder behind the folder of the prefix. A first folder that the prefix names is not hidden.
    fn is_hidden(&self, key: &str) -> bool {
        let start = self.prefix.rfind('/').map_or(0, |slash| slash + 1);
        let Some((folders, _)) = key.get(start..).and_then(|rest| rest.rsplit_once('/')) else {
            return false;
        };
        let named = &self.prefix[start..];
        let is_named = named.starts_with('.') || named.starts_with(MACOS_FOLDER);
        folders.split('/').skip(usize::from(is_named)).any(is_hidden_folder)
    }

    fn nothing_found(&self, store: &str, seen: &Seen, left_out: &[LeftOut]) -> String {
        let (whose, that) = match self.prefix.as_str() {
            "" => (String::new(), String::new()),
            prefix => {
                let prefix = shown(prefix);
                (format!(" whose key starts with {prefix}"), format!(" that start with {prefix}"))
            }
        };
        // No key is listed twice, so if keys with the suffix were seen and none is kept, the only one is the excluded key.
        let but = match &self.except {
            Some(index) if seen.with_suffix > 0 => format!(" but the index {}", shown(index)),
            _ => String::new(),
        };
        let reasons: Vec<String> = left_out.iter().filter_map(|left_out| self.reason(left_out)).collect();
        let (holds, reasons) = match reasons.join("; ") {
            none if none.is_empty() => ("holds", none),
            reasons => ("gives", format!(": {reasons}")),
        };
        match (seen.count, &self.suffix) {
            (0, _) if self.prefix.is_empty() && reasons.is_empty() => {
                format!("store `{store}` contains no objects")
            }
            (count, suffix) if count == 0 || suffix.is_all() => {
                format!("store `{store}` {holds} no object{whose}{but}{reasons}")
            }
            (count, suffix) => {
                format!(
                    "none of the {count} objects of store `{store}`{that} ends with {suffix}{but}{reasons}"
                )
            }
        }
    }

    /// Reason why a listing without keys may have none, with the remedy.
    fn reason(&self, left_out: &LeftOut) -> Option<String> {
        let is_one = left_out.count == 1;
        let them = if is_one { "it" } else { "them" };
        match left_out.reason {
            LeftOutReason::Link if self.links == Links::All => {
                let lead = if is_one { "link leads" } else { "links lead" };
                let more = if left_out.count > left_out.first.len() as u64 { ", ..." } else { "" };
                let first = listed(left_out.first.iter().map(String::as_str));
                let count = left_out.count;
                Some(format!(
                    "{count} {lead} out of the folder: {first}{more}; `--store-links DIR`, in Python `links`, lets {them}"
                ))
            }
            LeftOutReason::Hidden => {
                Some(format!("{}; `\"hidden\": true` takes {them}", left_out.in_words()))
            }
            reason if reason.is_selection() => None,
            _ => Some(left_out.in_words()),
        }
    }

    fn too_many(&self, store: &str, found: u64, most_bytes: u64) -> String {
        let longer = if self.prefix.is_empty() { "a prefix" } else { "a longer prefix" };
        let raise = if most_bytes < MAX_INDEX_BYTES { RAISE_BUFFER } else { "" };
        format!(
            "the first {found} keys of store `{store}` take more than the limit of {most_bytes} bytes of memory; list a \
             part of it with {longer}{raise}"
        )
    }
}

/// True for the names of folders that listings leave out behind their prefix.
pub fn is_hidden_folder(name: &str) -> bool {
    name.starts_with('.') || name == MACOS_FOLDER
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bounded::DEFAULT_READS;
    use crate::folder::FolderStore;

    #[test]
    fn the_excluded_index_is_named_if_no_other_key_is_found() {
        let message = |prefix: &str, suffix: &str, count, with_suffix| {
            let (prefix, suffix) = (prefix.to_owned(), Suffix::One(suffix.to_owned()));
            let wanted =
                Wanted { prefix, suffix, except: Some("a/index.json".to_owned()), ..Wanted::default() };
            wanted.nothing_found("data", &Seen { count, with_suffix }, &[])
        };
        assert_eq!(message("", "", 1, 1), "store `data` holds no object but the index `a/index.json`");
        assert_eq!(
            message("a/", "", 1, 1),
            "store `data` holds no object whose key starts with `a/` but the index `a/index.json`"
        );
        assert_eq!(
            message("", ".json", 7, 1),
            "none of the 7 objects of store `data` ends with `.json` but the index `a/index.json`"
        );
        assert_eq!(
            message("a/", ".jpg", 7, 0),
            "none of the 7 objects of store `data` that start with `a/` ends with `.jpg`"
        );
    }

    #[tokio::test]
    async fn a_listing_with_too_many_keys_suggests_a_prefix() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..10 {
            std::fs::write(folder.path().join(format!("key-{number}")), b"").unwrap();
        }
        let store = FolderStore::open("data", folder.path()).unwrap();
        let store = BoundedStore::new(Arc::new(store), DEFAULT_READS);
        // The first key takes five bytes of text, the others one; each has two bytes of lengths, and the block's position eight.
        let listing = |most_bytes| {
            let store = store.clone();
            async move { Wanted::default().list(most_bytes, &store, |_| {}).await }
        };
        assert_eq!(listing(42).await.unwrap().bytes(), 42);
        assert_eq!(
            listing(41).await.unwrap_err().to_string(),
            "the first 10 keys of store `data` take more than the limit of 41 bytes of memory; list a part of it with a \
             prefix, or raise `buffer_mib`, of which the source may use a part"
        );
    }
}
