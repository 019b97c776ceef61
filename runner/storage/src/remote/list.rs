//! Lists a remote store page by page.

use std::cmp::Ordering;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashSet};
use std::hash::BuildHasher;

use penstock_types::left_out::LeftOutReason;

use crate::key::{check_bucket_key, check_key};
use crate::keys::Keys;
use crate::remote::connected::Remote;
use crate::remote::failure::Failure;
use crate::remote::service::{Listed, Page, PageRequest, Service};
use crate::stamp::Stamp;

/// Maximum number of consecutive responses without a new key. A service may send a few of them while it skips deleted keys; the limit
/// ends a listing in which all responses are empty, or have the same keys.
const MOST_EMPTY: u32 = 1000;

/// Maximum number of folders directly in one folder.
const MOST_FOLDERS: usize = 1 << 20;

pub(crate) struct Listing {
    /// Prefix of the keys of the service, including the store's prefix.
    pub(crate) prefix: String,
    /// Prefix that is asked for; shorter if the service has only prefixes that end with `/`.
    asked: String,
    next: Next,
    /// The key after which the listing starts; empty if it starts at the first one.
    pub(crate) after: String,
    /// The first key received, even if it is behind the end.
    pub(crate) first: Option<String>,
    /// The last key received, or the one after which the listing starts.
    last: String,
    /// Place where the listing has ended at `end`.
    stop: Option<Stop>,
    /// Last key that is listed.
    pub(crate) end: Option<String>,
    /// Set if keys that are not in the order of their bytes are a failure.
    is_sorted: bool,
    tokens: Tokens,
}

enum Next {
    First,
    After(String),
    None,
}

/// Place where a listing ended.
#[derive(Clone)]
pub(crate) struct Stop {
    /// The last key of the listing, or the one after which it started.
    pub(crate) last: String,
    /// The key that the service lists next; `None` if there is none.
    pub(crate) next: Option<String>,
}

impl Listing {
    /// Keys of the service that start with `prefix`, behind `after` and up to `end`.
    pub(crate) fn between(prefix: String, after: String, end: Option<String>) -> Self {
        let (asked, last, tokens) = (prefix.clone(), after.clone(), Tokens::default());
        let (next, first, stop) = (Next::First, None, None);
        Self { prefix, asked, next, after, first, last, stop, end, is_sorted: true, tokens }
    }

    /// Keys of the service that start with `prefix`, in the order of the service.
    pub(crate) fn unsorted<S>(remote: &Remote<S>, prefix: String) -> Self {
        let folder = prefix.rfind('/').map_or(0, |slash| slash + 1);
        let asked =
            if remote.options.lists_folders_only { prefix[..folder].to_owned() } else { prefix.clone() };
        Self { asked, is_sorted: false, ..Self::between(prefix, String::new(), None) }
    }

    /// The last key received; `None` if no key follows it.
    pub(crate) fn last(&self) -> Option<&str> {
        matches!(self.next, Next::After(_)).then_some(&self.last)
    }

    /// Place where the listing ended, once it has no further pages.
    pub(crate) fn stop(&self) -> Stop {
        self.stop.clone().unwrap_or_else(|| Stop { last: self.last.clone(), next: None })
    }

    /// Returns the next keys, possibly none; `None` at the end of the listing.
    pub(crate) async fn next_page<S: Service>(
        &mut self,
        remote: &Remote<S>,
    ) -> Result<Option<Keys>, Failure> {
        let token = match &self.next {
            Next::First => None,
            Next::After(token) => Some(&**token),
            Next::None => return Ok(None),
        };
        let after = Some(&*self.last).filter(|after| token.is_none() && !after.is_empty());
        let request = PageRequest { prefix: &self.asked, after, token, is_of_folders: false };
        let answer = remote.page(request).await?;
        let next = self.tokens.next(&answer)?;
        self.next = next.map_or(Next::None, Next::After);
        let mut page = Keys::default();
        for object in answer.objects {
            self.add(&remote.options.prefix, &mut page, object)?;
        }
        Ok(Some(page))
    }

    /// Adds an object to `page`, without `store`, the prefix of the store.
    fn add(&mut self, store: &str, page: &mut Keys, object: Listed) -> Result<(), Failure> {
        let Listed { name: key, is_utf8: true, is_empty, version } = object else {
            page.leave_out(LeftOutReason::Name, None);
            return Ok(());
        };
        if self.is_sorted && !self.last.is_empty() {
            match key.cmp(&self.last) {
                Ordering::Greater => {}
                // The last key of a page may be listed again as the first one of the next page.
                Ordering::Equal => return Ok(()),
                Ordering::Less => return Err(Failure::Unsorted),
            }
        }
        if self.is_sorted && self.first.is_none() {
            self.first = Some(key.clone());
        }
        if self.end.as_ref().is_some_and(|end| key > *end) {
            self.next = Next::None;
            self.stop.get_or_insert_with(|| Stop { last: self.last.clone(), next: Some(key.clone()) });
            self.last = key;
            return Ok(());
        }
        match key.strip_prefix(store) {
            // Within the folder that was asked for.
            Some(_) if !key.starts_with(&self.prefix) && self.asked != self.prefix => {}
            // An object that a console created to represent a folder.
            Some(folder) if is_empty && (folder.is_empty() || folder.ends_with('/')) => {}
            Some(own) if key.starts_with(&self.prefix) && check_bucket_key(own).is_ok() => {
                page.push_stamped(own, version.as_ref().and_then(Stamp::of));
            }
            Some(own) => page.leave_out(LeftOutReason::Name, Some(own)),
            None => page.leave_out(LeftOutReason::Name, None),
        }
        self.last = key;
        Ok(())
    }
}

#[derive(Default)]
pub(crate) struct Tokens {
    /// Hashes of the tokens so far.
    seen: HashSet<u64>,
    /// Hashes of the pages so far, which do not depend on the order of their keys and folders.
    pages: HashSet<u64>,
    hasher: RandomState,
    /// Number of consecutive responses without a new key or folder.
    empty: u32,
}

impl Tokens {
    /// Token of the response after `answer`; `None` behind the last one.
    pub(crate) fn next(&mut self, answer: &Page) -> Result<Option<String>, Failure> {
        let names = answer.objects.iter().chain(&answer.folders).map(|listed| (listed.is_utf8, &listed.name));
        let hashes = names.map(|name| self.hasher.hash_one(name));
        let is_empty = match hashes.reduce(u64::wrapping_add) {
            // A page with the same names brings nothing, even if its token is another one.
            Some(page) => !self.pages.insert(page),
            None => true,
        };
        self.empty = if is_empty { self.empty + 1 } else { 0 };
        if !answer.is_truncated {
            return Ok(None);
        }
        let Some(next) = &answer.next else {
            let text = "the listing is truncated, but the response has no continuation token";
            return Err(Failure::lasting(text));
        };
        if !self.seen.insert(self.hasher.hash_one(next)) {
            let text = "the listing does not end: the service has returned the same continuation token twice";
            return Err(Failure::lasting(text));
        }
        if self.empty >= MOST_EMPTY {
            let text =
                format!("the listing is truncated, but the last {MOST_EMPTY} responses had no new keys");
            return Err(Failure::lasting(text));
        }
        Ok(Some(next.clone()))
    }
}

/// Names of the folders directly in `folder`, sorted by their bytes. Each has an object, which may be one that a console created to
/// represent the folder.
pub(crate) async fn folders<S: Service>(remote: &Remote<S>, folder: &str) -> Result<Vec<String>, Failure> {
    let within = remote.full(folder);
    let (mut names, mut token, mut tokens) = (BTreeSet::new(), None::<String>, Tokens::default());
    loop {
        let request =
            PageRequest { prefix: &within, after: None, token: token.as_deref(), is_of_folders: true };
        let answer = remote.page(request).await?;
        let next = tokens.next(&answer)?;
        for folder in answer.folders.iter().filter(|folder| folder.is_utf8) {
            let name = folder.name.strip_prefix(&within).and_then(|name| name.strip_suffix('/'));
            names.extend(name.filter(|name| check_key(name).is_ok()).map(str::to_owned));
        }
        if names.len() > MOST_FOLDERS {
            return Err(Failure::lasting(format!("the folder has more than {MOST_FOLDERS} folders")));
        }
        match next {
            None => return Ok(names.into_iter().collect()),
            next => token = next,
        }
    }
}
