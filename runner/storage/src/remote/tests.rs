//! The layers around a service in memory whose requests fail as the tests say.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard};

use futures::stream::TryStreamExt;

use super::*;
use crate::keys::Keys;
use crate::observe::{now, observe};
use crate::remote::failure::Cause;
use crate::remote::options::{Retries, Timeouts};
use crate::remote::service::{Head, Listed, Page, PageRequest, Part, Renewal, Response};

/// Number of objects on a page.
const PAGE: usize = 100;

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Bytes>,
    /// Failures of the next requests.
    failures: VecDeque<Failure>,
    /// Place and kind of each request so far.
    requests: Vec<String>,
    /// Results of the next searches for credentials.
    renewals: VecDeque<Renewal<&'static str>>,
    generation: u64,
    /// Lists keys backwards.
    is_backwards: bool,
    /// Replaces each object after a read.
    changes: bool,
    /// Refuses conditional writes.
    is_unconditional: bool,
}

#[derive(Clone, Default)]
struct Memory {
    state: Arc<Mutex<State>>,
    place: String,
}

impl Memory {
    fn begin(&self, kind: &str) -> Result<MutexGuard<'_, State>, Failure> {
        let mut state = self.state.lock().unwrap();
        state.requests.push(format!("{}{kind}", self.place));
        state.failures.pop_front().map_or(Ok(state), Err)
    }

    fn store(&self) -> RemoteStore<Self> {
        let ms = Duration::from_millis;
        let options = Options {
            store: Arc::from("data"),
            describe: "store `data` (memory)".to_owned(),
            prefix: "in/".to_owned(),
            is_sorted: true,
            lists_folders_only: false,
            timeouts: Timeouts::default(),
            retries: Retries { attempts: NonZeroU32::new(3).unwrap(), base: ms(1), cap: ms(50) },
        };
        let connected = self.clone();
        let connect = move || std::future::ready(Ok(connected.clone())).boxed();
        RemoteStore::new_with(options, Box::new(connect))
    }

    fn with_failures(failures: impl IntoIterator<Item = Failure>) -> (Self, RemoteStore<Self>) {
        let memory = Self::default();
        let mut state = memory.state.lock().unwrap();
        state.objects.insert("in/a".to_owned(), Bytes::from_static(b"abc"));
        state.failures.extend(failures);
        drop(state);
        let store = memory.store();
        (memory, store)
    }

    fn requests(&self) -> String {
        self.state.lock().unwrap().requests.join(" ")
    }
}

fn head(bytes: &Bytes) -> Head {
    let tag = bytes.first().map(|first| format!("\"{first}\""));
    Head { tag, modified: None, length: Some(bytes.len() as i64) }
}

impl Service for Memory {
    type Body = Option<Bytes>;
    type Absent = &'static str;

    const UNSORTED: &str = "the service lists keys in another order";

    async fn page(&self, wanted: &PageRequest<'_>) -> Result<Page, Failure> {
        let state = self.begin("page")?;
        let mut names: Vec<(String, bool)> = Vec::new();
        for key in state.objects.keys() {
            let Some(rest) = key.strip_prefix(wanted.prefix) else { continue };
            let folder = rest.find('/').filter(|_| wanted.is_of_folders);
            let name = folder.map_or(key.clone(), |at| key[..=wanted.prefix.len() + at].to_owned());
            if names.last().is_none_or(|(last, _)| *last != name) {
                names.push((name, folder.is_some()));
            }
        }
        if state.is_backwards {
            names.reverse();
        }
        let after = wanted.token.or(wanted.after);
        let start = match after.and_then(|after| names.iter().position(|(name, _)| name == after)) {
            Some(at) => at + 1,
            None => after.map_or(0, |after| names.partition_point(|(name, _)| &**name <= after)),
        };
        let end = names.len().min(start + PAGE);
        let next = names[start..end].last().map(|(name, _)| name.clone());
        let listed = |is_folder: bool| {
            let kind = names[start..end].iter().filter(move |(_, folder)| *folder == is_folder);
            kind.map(|(name, _)| Listed { name: name.clone(), is_utf8: true, is_empty: false, version: None })
                .collect()
        };
        Ok(Page { objects: listed(false), folders: listed(true), is_truncated: end < names.len(), next })
    }

    async fn read(&self, key: &str, part: Option<&Part<'_>>) -> Result<Response<Option<Bytes>>, Failure> {
        let mut state = self.begin("read")?;
        let object = state.objects.get(key).cloned().ok_or(Failure::NotFound)?;
        if state.changes {
            let other = vec![object[0].wrapping_add(1); object.len()];
            state.objects.insert(key.to_owned(), other.into());
        }
        let (mut head, size) = (head(&object), object.len() as u64);
        let Some(Part { range, tag }) = part else {
            return Ok(Response { head, content_range: None, crc32: None, body: Some(object) });
        };
        if tag.is_some_and(|tag| head.tag.as_deref() != Some(tag)) {
            return Err(Failure::Unmet);
        }
        let end = range.end.min(size);
        let body = object.slice(range.start as usize..end as usize);
        head.length = Some(body.len() as i64);
        let content_range = Some(format!("bytes {}-{}/{size}", range.start, end - 1));
        Ok(Response { head, content_range, crc32: None, body: Some(body) })
    }

    async fn next_bytes(body: &mut Option<Bytes>) -> Option<Result<Bytes, Failure>> {
        body.take().map(Ok)
    }

    async fn version(&self, key: &str) -> Result<Head, Failure> {
        self.begin("version")?.objects.get(key).map(head).ok_or(Failure::NotFound)
    }

    async fn write(&self, key: &str, bytes: Bytes, if_there: IfThere) -> Result<(), Failure> {
        let kind = if if_there == IfThere::Leave { "write-new" } else { "write" };
        let mut state = self.begin(kind)?;
        if state.is_unconditional && if_there == IfThere::Leave {
            return Err(Failure::NotImplemented(Cause::new("no conditions")));
        }
        state.objects.insert(key.to_owned(), bytes);
        Ok(())
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn at(&self, place: &str) -> Self {
        Self { place: place.to_owned(), ..self.clone() }
    }

    fn elsewhere(place: &str, is_tried: bool) -> String {
        format!("it is in `{place}`, tried: {is_tried}")
    }

    fn generation(&self) -> u64 {
        self.state.lock().unwrap().generation
    }

    async fn renew(&self, generation: u64) -> Option<Renewal<&'static str>> {
        let mut state = self.state.lock().unwrap();
        state.requests.push(format!("renew-{generation}"));
        let renewal = state.renewals.pop_front()?;
        state.generation += u64::from(renewal == Renewal::Other);
        Some(renewal)
    }

    fn permission_note(&self) -> Option<&'static str> {
        Some("ask the owner")
    }
}

fn key() -> Arc<str> {
    Arc::from("a")
}

fn refused() -> Failure {
    Failure::refused(false, Failure::Denied(Cause::new("no such key")))
}

fn moved(place: &str) -> Failure {
    let failure = Box::new(Failure::lasting("wrong place"));
    Failure::Moved { place: place.to_owned(), is_redirect: false, failure }
}

async fn text(store: &RemoteStore<Memory>) -> Result<Bytes, String> {
    store.get(key()).await.map_err(|error| error.with_causes())
}

#[tokio::test]
async fn passing_failures_are_attempted_again_after_the_wait_and_counted() {
    let wait = Duration::from_millis(20);
    let busy = || Failure::Passing { cause: Cause::new("busy"), after: Some(wait) };
    let (memory, store) = Memory::with_failures([busy(), busy()]);
    let start = now();
    let (read, parts) = observe(store.get(key())).await;
    assert_eq!(read.unwrap(), "abc");
    assert_eq!((parts.attempts, parts.retries, memory.requests().as_str()), (3, 2, "read read read"));
    assert!(start.elapsed() >= 2 * wait && parts.retry >= 2 * wait);
    let (_, store) = Memory::with_failures([busy(), busy(), busy()]);
    let told = text(&store).await.unwrap_err();
    assert_eq!(told, "reading `a` of store `data` failed: gave up after 3 attempts, the last: busy");
    let (memory, store) = Memory::with_failures([Failure::lasting("broken")]);
    assert_eq!(text(&store).await.unwrap_err(), "reading `a` of store `data` failed: broken");
    assert_eq!(memory.requests(), "read", "a lasting failure is not repeated");
}

#[tokio::test]
async fn a_refusal_begins_anew_with_other_credentials_and_fails_without_them() {
    let (memory, store) = Memory::with_failures([refused()]);
    memory.state.lock().unwrap().renewals.push_back(Renewal::Other);
    assert_eq!(text(&store).await.unwrap(), "abc");
    assert_eq!(memory.requests(), "read renew-0 read");
    let denied = "store `data` denies reading `a`; check its credentials and permissions";
    for (renewals, note) in [
        (vec![], ""),
        (vec![Renewal::Same], ""),
        (vec![Renewal::Failed("the file is gone")], "; they could not be renewed: the file is gone"),
    ] {
        let (memory, store) = Memory::with_failures([refused()]);
        memory.state.lock().unwrap().renewals.extend(renewals);
        assert_eq!(text(&store).await.unwrap_err(), format!("{denied}: no such key{note}"));
        assert_eq!(memory.requests(), "read renew-0");
    }
    // Credentials that are refused each time are not renewed without end.
    let (memory, store) = Memory::with_failures((0..9).map(|_| refused()));
    memory.state.lock().unwrap().renewals.extend((0..9).map(|_| Renewal::Other));
    let told = text(&store).await.unwrap_err();
    assert!(told.ends_with("the credentials were renewed, and the new ones are refused, too"), "{told}");
    assert_eq!(memory.requests().matches("renew").count(), 4);
    let (_, store) = Memory::with_failures([Failure::Forbidden(Cause::new("no"))]);
    assert_eq!(text(&store).await.unwrap_err(), format!("{denied}: no; ask the owner"));
}

#[tokio::test]
async fn another_place_is_followed_once() {
    let (memory, store) = Memory::with_failures([moved("b-")]);
    assert_eq!(text(&store).await.unwrap(), "abc");
    assert_eq!(text(&store).await.unwrap(), "abc");
    assert_eq!(memory.requests(), "read b-read b-read");
    memory.state.lock().unwrap().failures.push_back(moved("c-"));
    let told = text(&store).await.unwrap_err();
    assert!(told.ends_with("wrong place; it is in `c-`, tried: false"), "{told}");
}

#[tokio::test]
async fn a_large_object_is_read_in_parts_of_one_version() {
    let (memory, store) = Memory::with_failures([]);
    let large = Bytes::from((0..20).map(|at| vec![at; 1 << 20]).collect::<Vec<_>>().concat());
    memory.state.lock().unwrap().objects.insert("in/a".to_owned(), large.clone());
    assert_eq!(text(&store).await.unwrap(), large);
    assert_eq!(memory.requests(), "read read read");
    memory.state.lock().unwrap().changes = true;
    let told = text(&store).await.unwrap_err();
    assert_eq!(told, "reading `a` of store `data` failed: the object changed while it was read");
}

#[tokio::test]
async fn a_listing_with_folders_is_in_order_even_if_that_of_the_service_is_not() {
    let (memory, store) = Memory::with_failures([]);
    let keys: Vec<String> = (0..4000).map(|at| format!("{:03}/{:02}", at / 40, at % 40)).collect();
    let objects = keys.iter().map(|key| (format!("in/{key}"), Bytes::new()));
    memory.state.lock().unwrap().objects = objects.collect();
    for is_backwards in [false, true] {
        memory.state.lock().unwrap().is_backwards = is_backwards;
        for pages in [
            store.list("").try_collect().await,
            store.list_all("", Links::All).try_collect::<Vec<Keys>>().await,
        ] {
            let pages = pages.unwrap();
            let found: Vec<&str> = pages.iter().flat_map(|page| page.iter()).collect();
            assert!(found == keys, "{}", found.len());
        }
    }
    let folders = store.folders("", Links::All).await.unwrap().unwrap();
    assert_eq!((folders.names.len(), folders.names[99].as_str()), (100, "099"));
}

#[tokio::test]
async fn a_service_without_conditional_writes_is_asked_for_the_object_first() {
    let (memory, store) = Memory::with_failures([]);
    memory.state.lock().unwrap().is_unconditional = true;
    assert!(!store.put_new(key(), Bytes::from_static(b"other")).await.unwrap());
    assert!(store.put_new(Arc::from("b"), Bytes::from_static(b"other")).await.unwrap());
    assert_eq!(memory.requests(), "write-new version write-new version write");
    assert_eq!(text(&store).await.unwrap(), "abc");
}
