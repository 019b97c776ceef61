//! Lists a remote store with several requests at a time, in order.
//!
//! A service returns the pages of one listing one after the other only. Parts of a listing that begin at folders are listed at the
//! same time instead: a request with a delimiter returns the names of up to 1000 folders. Folders are only used to divide the
//! keys into parts; a store whose keys have no folders is listed page by page.
//!
//! All of this relies on the order of keys. If the service turns out not to sort them, all keys are listed one page after the other, and
//! sorted here.
//!
//! A service may sort keys in another order, such as without case. Each part may still be in the order of bytes, while keys that
//! the service lists between two folders are in none of the parts. So each part must begin with the very key at which the part before it
//! ended: both are places in the order of the service, and no key lies between them. The first part begins at the first
//! key, and the last one has no end, so that all parts together have all keys.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::task::JoinSet;

use crate::keys::Keys;
use crate::remote::connected::Remote;
use crate::remote::failure::Failure;
use crate::remote::list::{Listing, Stop, Tokens};
use crate::remote::service::{PageRequest, Service};
use crate::remote::sort::{SortedKeys, Sorter};

/// Minimum number of keys of a listing with several pages before any of them is used.
const LEAST_KEYS: usize = 100;

/// Number of pages of a listing that are read one after the other before the rest is divided.
const PAGES_BEFORE: usize = 4;

/// Maximum number of parts that are read at a time; the first ones are fewer, so that little is read in vain if few keys are needed.
const MOST_PARTS: usize = 12;

/// Maximum number of pages of a part that are read ahead.
const PART_PAGES: usize = 16;

/// Maximum number of divisions within each other.
const MOST_DEPTH: usize = 3;

/// Maximum number of folders above a key in which folders behind it are searched.
const MOST_LEVELS: usize = 8;

/// Maximum number of folders in a part.
const MOST_FOLDERS: usize = 512;

/// All pages of a listing, in order.
pub(crate) struct Pages<S> {
    remote: Arc<Remote<S>>,
    /// Pages that were read ahead; the pages of `listing` follow.
    ready: VecDeque<Keys>,
    listing: Option<Listing>,
    /// Number of pages until the rest of `listing` is divided; `None` if it is not to be divided.
    undivided: Option<usize>,
    /// Divisions whose parts follow `listing`, the innermost last.
    divisions: Vec<Division>,
    /// Place where the part before the next one ended.
    stop: Option<Stop>,
    /// Prefix of the keys of the service.
    prefix: String,
    /// First pages, held back while they have few keys, and the number and the last one of the keys that were returned.
    held: VecDeque<Keys>,
    given: (u64, String),
    /// Keys left out on the pages that were returned.
    given_left_out: Keys,
    /// Sorted keys of a service that does not sort them.
    sorted: Option<SortedKeys>,
}

/// Part of a listing after its folders, in order.
struct Division {
    /// Reads in progress or done, each as a set of one task. Dropping the set cancels the read.
    reads: VecDeque<JoinSet<Result<Part, Failure>>>,
    most_reads: usize,
    folders: Folders,
    /// Number of folders in the next part.
    group: usize,
    /// Start of the next part; `None` if all parts were started.
    start: Option<String>,
    prefix: String,
    /// Last key of the division.
    end: Option<String>,
}

/// First pages of a part, and the listing of the others.
struct Part {
    pages: VecDeque<Keys>,
    listing: Listing,
}

struct Folders {
    /// Prefix of the names: usually a folder.
    within: String,
    /// Names less than or equal to this one are ignored.
    after: String,
    end: Option<String>,
    names: VecDeque<String>,
    /// Continuation token; `None` at the end.
    next: Option<String>,
    tokens: Tokens,
}

impl<S: Service> Pages<S> {
    /// Pages that are read ahead.
    pub(crate) fn new(remote: Arc<Remote<S>>, prefix: &str) -> Self {
        Self { undivided: Some(PAGES_BEFORE), ..Self::one_by_one(remote, prefix) }
    }

    /// Pages that are read when they are needed.
    pub(crate) fn one_by_one(remote: Arc<Remote<S>>, prefix: &str) -> Self {
        let prefix = remote.full(prefix);
        Self {
            remote,
            ready: VecDeque::new(),
            listing: Some(Listing::between(prefix.clone(), String::new(), None)),
            undivided: None,
            divisions: Vec::new(),
            stop: None,
            prefix,
            held: VecDeque::new(),
            given: (0, String::new()),
            given_left_out: Keys::default(),
            sorted: None,
        }
    }

    /// Returns the next keys in order, possibly none; `None` at the end of the listing.
    pub(crate) async fn next_page(&mut self) -> Result<Option<Keys>, Failure> {
        let sorted = match &mut self.sorted {
            Some(sorted) => sorted,
            None if self.remote.is_sorted() => match self.next_in_order().await {
                Err(Failure::Unsorted) => {
                    self.remote.notice_disorder();
                    self.sort().await?
                }
                page => return page,
            },
            None => self.sort().await?,
        };
        Ok(sorted.next_page())
    }

    /// Returns the next keys of a service that sorts them. If the first pages are small, returns none until there are some keys: a
    /// service that does not sort them is then noticed in time.
    async fn next_in_order(&mut self) -> Result<Option<Keys>, Failure> {
        let count = |pages: &VecDeque<Keys>| pages.iter().map(Keys::len).sum::<usize>();
        while self.given.0 == 0 && count(&self.held) < LEAST_KEYS {
            match self.read_page().await? {
                Some(page) => self.held.push_back(page),
                None => break,
            }
        }
        let page = match self.held.pop_front() {
            Some(page) => Some(page),
            None => self.read_page().await?,
        };
        if let Some(page) = &page {
            self.given_left_out.add_left_out(page);
            self.given.0 += page.len() as u64;
            if let Some(last) = page.last() {
                self.given.1.clear();
                self.given.1.push_str(last);
            }
        }
        Ok(page)
    }

    /// Lists all keys, in the order of the service, and sorts them. Fails if the keys that were returned before are not the first ones.
    async fn sort(&mut self) -> Result<&mut SortedKeys, Failure> {
        (self.listing, self.held, self.ready, self.divisions, self.stop) = Default::default();
        let mut listing = Listing::unsorted(&self.remote, self.prefix.clone());
        let mut sorter = Sorter::default();
        while let Some(page) = listing.next_page(&self.remote).await? {
            sorter.add(&page)?;
        }
        let mut sorted = sorter.sorted();
        let (count, last) = &self.given;
        if !sorted.skip(*count, last, &self.given_left_out) {
            return Err(Failure::Unsorted);
        }
        Ok(self.sorted.insert(sorted))
    }

    async fn read_page(&mut self) -> Result<Option<Keys>, Failure> {
        loop {
            if let Some(page) = self.ready.pop_front() {
                return Ok(Some(page));
            }
            if let Some(listing) = &mut self.listing {
                if let Some(page) = listing.next_page(&self.remote).await? {
                    self.undivided = self.undivided.and_then(|pages| pages.checked_sub(1));
                    if self.undivided == Some(0) && self.divisions.len() < MOST_DEPTH {
                        self.divisions.extend(Division::of(&self.remote, listing).await?);
                    }
                    return Ok(Some(page));
                }
                self.stop = Some(listing.stop());
                self.listing = None;
            }
            let Some(division) = self.divisions.last_mut() else { return Ok(None) };
            match division.next_part(&self.remote).await? {
                Some(Part { pages, listing }) => {
                    if let Some(stop) = self.stop.take() {
                        check_edge(&self.remote, &stop, &listing).await?;
                    }
                    (self.ready, self.listing, self.undivided) = (pages, Some(listing), Some(1));
                }
                None => drop(self.divisions.pop()),
            }
        }
    }
}

impl Division {
    /// Divides the rest of `listing`, which then ends at the first folder after its last key. `None` if no folder follows.
    async fn of<S: Service>(remote: &Remote<S>, listing: &mut Listing) -> Result<Option<Self>, Failure> {
        let Some(last) = listing.last().map(str::to_owned) else { return Ok(None) };
        let prefix = listing.prefix.clone();
        let above = last.rmatch_indices('/').map(|(at, _)| &last[..=at]);
        let above = above.take_while(|folder| folder.len() > prefix.len()).take(MOST_LEVELS - 1);
        for within in above.chain([&*prefix]) {
            let mut folders = Folders {
                within: within.to_owned(),
                after: last.clone(),
                end: listing.end.clone(),
                names: VecDeque::new(),
                next: None,
                tokens: Tokens::default(),
            };
            folders.read(remote, None).await?;
            if let Some(first) = folders.names.pop_front() {
                let end = listing.end.replace(first.clone());
                let (reads, start, prefix) = (VecDeque::new(), Some(first), prefix.clone());
                return Ok(Some(Self { reads, most_reads: 2, folders, group: 1, start, prefix, end }));
            }
        }
        Ok(None)
    }

    async fn next_part<S: Service>(&mut self, remote: &Arc<Remote<S>>) -> Result<Option<Part>, Failure> {
        while self.reads.len() < self.most_reads {
            let Some(start) = self.start.take() else { break };
            if self.folders.names.len() < self.group
                && let Some(token) = self.folders.next.take()
            {
                self.folders.read(remote, Some(token)).await?;
            }
            let count = self.group.min(self.folders.names.len());
            self.start = self.folders.names.drain(..count).next_back();
            let end = self.start.clone().or_else(|| self.end.clone());
            let listing = Listing::between(self.prefix.clone(), start, end);
            let remote = remote.clone();
            let mut read = JoinSet::new();
            read.spawn(async move { Part::read(&remote, listing).await });
            self.reads.push_back(read);
        }
        self.most_reads = (self.most_reads * 2).min(MOST_PARTS);
        let Some(mut read) = self.reads.pop_front() else { return Ok(None) };
        let Some(Ok(part)) = read.join_next().await else {
            return Err(Failure::lasting("the listing was interrupted"));
        };
        let part = part?;
        // A part has one to two pages if its folders are of equal size.
        match part.pages.iter().map(Keys::len).sum::<usize>() {
            ..800 => self.group = (self.group * 2).min(MOST_FOLDERS),
            3000.. => self.group = (self.group / 2).max(1),
            _ => {}
        }
        Ok(Some(part))
    }
}

impl Part {
    async fn read<S: Service>(remote: &Remote<S>, mut listing: Listing) -> Result<Self, Failure> {
        let mut pages = VecDeque::new();
        while pages.len() < PART_PAGES {
            match listing.next_page(remote).await? {
                Some(page) => pages.push_back(page),
                None => break,
            }
        }
        Ok(Self { pages, listing })
    }
}

/// Checks that `part` begins where the part before it ended. Fails if the service lists other keys between them.
async fn check_edge<S: Service>(remote: &Remote<S>, stop: &Stop, part: &Listing) -> Result<(), Failure> {
    if stop.next == part.first {
        return Ok(());
    }
    // The two parts were not listed at the same time: the key may have been written or deleted meanwhile.
    let next = async |after: &str| {
        let mut listing = Listing::between(part.prefix.clone(), after.to_owned(), None);
        while listing.first.is_none() && listing.next_page(remote).await?.is_some() {}
        Ok(listing.first)
    };
    match next(&stop.last).await? == next(&part.after).await? {
        true => Ok(()),
        false => Err(Failure::Unsorted),
    }
}

impl Folders {
    /// Reads the next names. A response without usable names is taken for the end.
    async fn read<S: Service>(&mut self, remote: &Remote<S>, token: Option<String>) -> Result<(), Failure> {
        let request = PageRequest {
            prefix: &self.within,
            after: Some(&self.after),
            token: token.as_deref(),
            is_of_folders: true,
        };
        let answer = remote.page(request).await?;
        let next = self.tokens.next(&answer);
        for folder in answer.folders.into_iter().filter(|folder| folder.is_utf8) {
            let name = folder.name;
            let last = self.names.back().unwrap_or(&self.after);
            if name > *last
                && name.starts_with(&self.within)
                && self.end.as_ref().is_none_or(|end| name < *end)
            {
                self.names.push_back(name);
            }
        }
        if let Some(last) = self.names.back() {
            self.after.clone_from(last);
            self.next = next?;
        }
        Ok(())
    }
}
