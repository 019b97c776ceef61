//! Lists a bucket page by page.

use std::cmp::Ordering;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashSet};
use std::hash::BuildHasher;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;
use aws_sdk_s3::operation::list_objects_v2::builders::ListObjectsV2FluentBuilder;
use aws_sdk_s3::types::EncodingType;
use penstock_types::left_out::LeftOutReason;

use crate::key::{check_bucket_key, check_key};
use crate::keys::Keys;
use crate::s3::bucket::Bucket;
use crate::s3::failure::S3Failure;

/// Maximum number of consecutive responses without a new key. A service may send a few of them while it skips deleted keys; the limit
/// ends a listing in which all responses are empty, or have the same keys.
const MOST_EMPTY: u32 = 1000;

/// Maximum number of folders directly in one folder.
const MOST_FOLDERS: usize = 1 << 20;

pub(crate) struct Listing {
    /// Prefix of the keys in the bucket, including the store's prefix.
    prefix: String,
    /// Prefix that is asked for; shorter if the service has only prefixes that end with `/`.
    asked: String,
    next: Next,
    /// The key after which the listing starts; empty if it starts at the first one.
    after: String,
    first: Option<String>,
    /// The last key received, or the one after which the listing starts.
    last: String,
    /// The last key up to `end`, and the first one received behind it.
    behind: Option<(String, String)>,
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
pub(crate) struct Stop {
    /// The last key of the listing, or the one after which it started.
    pub(crate) last: String,
    /// The key that the service lists next; `None` if there is none.
    pub(crate) next: Option<String>,
}

impl Listing {
    pub(crate) fn new(bucket: &Bucket, prefix: &str) -> Self {
        Self::between(bucket.full(prefix), String::new(), None)
    }

    /// Keys that start with `prefix`, of the bucket, behind `after` and up to `end`.
    pub(crate) fn between(prefix: String, after: String, end: Option<String>) -> Self {
        let (asked, last, tokens) = (prefix.clone(), after.clone(), Tokens::default());
        let (next, first, behind) = (Next::First, None, None);
        Self { prefix, asked, next, after, first, last, behind, end, is_sorted: true, tokens }
    }

    /// Keys that start with `prefix`, of the bucket, in the order of the service.
    pub(crate) fn unsorted(bucket: &Bucket, prefix: String) -> Self {
        let folder = prefix.rfind('/').map_or(0, |slash| slash + 1);
        let asked = if bucket.is_directory() { prefix[..folder].to_owned() } else { prefix.clone() };
        Self { asked, is_sorted: false, ..Self::between(prefix, String::new(), None) }
    }

    /// Prefix of the keys in the bucket.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The last key received; `None` if no key follows it.
    pub(crate) fn last(&self) -> Option<&str> {
        matches!(self.next, Next::After(_)).then_some(&self.last)
    }

    /// Place after which the listing starts.
    pub(crate) fn after(&self) -> &str {
        &self.after
    }

    /// The first key received, even if it is behind the end; `None` if there was none.
    pub(crate) fn first(&self) -> Option<&str> {
        self.first.as_deref()
    }

    /// Place where the listing ended, once it has no further pages.
    pub(crate) fn stop(&self) -> Stop {
        match &self.behind {
            Some((last, next)) => Stop { last: last.clone(), next: Some(next.clone()) },
            None => Stop { last: self.last.clone(), next: None },
        }
    }

    /// Returns the next keys, possibly none; `None` at the end of the listing.
    pub(crate) async fn next_page(&mut self, bucket: &Bucket) -> Result<Option<Keys>, S3Failure> {
        let token = match &self.next {
            Next::First => None,
            Next::After(token) => Some(token.clone()),
            Next::None => return Ok(None),
        };
        let after = Some(&self.last).filter(|after| token.is_none() && !after.is_empty());
        let send = |client: &Client| {
            let request = request(bucket, client, &self.asked).set_continuation_token(token.clone());
            let request = request.set_start_after(after.cloned());
            async { page(bucket, request).await }
        };
        let answer = bucket.attempts(Duration::ZERO, send).await?;
        let is_encoded = answer.encoding_type == Some(EncodingType::Url);
        let next = self.tokens.next(&answer)?;
        let objects = answer.contents.unwrap_or_default();
        self.next = next.map_or(Next::None, Next::After);
        let mut page = Keys::default();
        for object in objects {
            let key = object.key.unwrap_or_default();
            let key = if is_encoded { decoded(&key) } else { Some(key) };
            self.add(bucket, &mut page, key, object.size)?;
        }
        Ok(Some(page))
    }

    fn add(
        &mut self,
        bucket: &Bucket,
        page: &mut Keys,
        key: Option<String>,
        size: Option<i64>,
    ) -> Result<(), S3Failure> {
        let Some(key) = key else {
            page.leave_out(LeftOutReason::Name, None);
            return Ok(());
        };
        if self.is_sorted && !self.last.is_empty() {
            match key.cmp(&self.last) {
                Ordering::Greater => {}
                // The last key of a page may be listed again as the first one of the next page.
                Ordering::Equal => return Ok(()),
                Ordering::Less => return Err(S3Failure::Unsorted),
            }
        }
        if self.is_sorted && self.first.is_none() {
            self.first = Some(key.clone());
        }
        if self.end.as_ref().is_some_and(|end| key > *end) {
            self.next = Next::None;
            self.behind.get_or_insert_with(|| (self.last.clone(), key.clone()));
            self.last = key;
            return Ok(());
        }
        match key.strip_prefix(bucket.prefix()) {
            // Within the folder that was asked for.
            Some(_) if !key.starts_with(&self.prefix) && self.asked != self.prefix => {}
            // An object that a console created to represent a folder.
            Some(folder) if (folder.is_empty() || folder.ends_with('/')) && size.unwrap_or(0) == 0 => {}
            Some(own) if key.starts_with(&self.prefix) && check_bucket_key(own).is_ok() => page.push(own),
            Some(own) => page.leave_out(LeftOutReason::Name, Some(own)),
            None => page.leave_out(LeftOutReason::Name, None),
        }
        self.last = key;
        Ok(())
    }
}

/// Request for keys or folders that start with `prefix`. Keys are requested URL-encoded, because a key may contain characters that are
/// not valid in XML.
pub(crate) fn request(bucket: &Bucket, client: &Client, prefix: &str) -> ListObjectsV2FluentBuilder {
    let request = client.list_objects_v2().bucket(bucket.name()).prefix(prefix);
    request.encoding_type(EncodingType::Url).set_request_payer(bucket.payer())
}

/// Sends a request for a page.
pub(crate) async fn page(
    bucket: &Bucket,
    request: ListObjectsV2FluentBuilder,
) -> Result<ListObjectsV2Output, S3Failure> {
    let answer = bucket.answer(request.send()).await?;
    let arrived = answer.contents().len() + answer.common_prefixes().len();
    // Some services count nothing, and some the keys without the folders. No page has less than its count.
    match answer.key_count {
        Some(count) if usize::try_from(count).is_ok_and(|count| count > arrived) => Err(S3Failure::passing(
            format!("the listing is incomplete: it announces {count} keys and folders, but has {arrived}"),
        )),
        _ => Ok(answer),
    }
}

/// Continuation tokens of a listing.
#[derive(Default)]
pub(crate) struct Tokens {
    /// Hashes of the tokens so far.
    seen: HashSet<u64>,
    /// Hashes of the pages so far, whatever the order of their keys and folders.
    pages: HashSet<u64>,
    hasher: RandomState,
    /// Number of consecutive responses without a new key or folder.
    empty: u32,
}

impl Tokens {
    /// Token of the response after `answer`; `None` behind the last one.
    pub(crate) fn next(&mut self, answer: &ListObjectsV2Output) -> Result<Option<String>, S3Failure> {
        let keys = answer.contents().iter().map(|object| object.key());
        let names = keys.chain(answer.common_prefixes().iter().map(|folder| folder.prefix()));
        let hashes = names.map(|name| self.hasher.hash_one(name));
        let is_empty = match hashes.reduce(u64::wrapping_add) {
            // A page with the same names brings nothing, even if its token is another one.
            Some(page) => !self.pages.insert(page),
            None => true,
        };
        self.empty = if is_empty { self.empty + 1 } else { 0 };
        let next = answer.next_continuation_token.clone();
        // A service that says neither gives a token only if there is more.
        let has_token = || next.as_ref().is_some_and(|next| !next.is_empty());
        if !answer.is_truncated.unwrap_or_else(has_token) {
            return Ok(None);
        }
        let Some(next) = next else {
            let text = "the listing is truncated, but the response has no continuation token";
            return Err(S3Failure::lasting(text));
        };
        if !self.seen.insert(self.hasher.hash_one(&next)) {
            let text = "the listing does not end: the service has returned the same continuation token twice";
            return Err(S3Failure::lasting(text));
        }
        match self.empty >= MOST_EMPTY {
            true => Err(S3Failure::lasting(format!(
                "the listing is truncated, but the last {MOST_EMPTY} responses had no new keys"
            ))),
            false => Ok(Some(next)),
        }
    }
}

/// Names of the folders directly in `folder`, sorted by their bytes. Each has an object, which may be one that a console created to
/// represent the folder.
pub(crate) async fn folders(bucket: &Bucket, folder: &str) -> Result<Vec<String>, S3Failure> {
    let within = bucket.full(folder);
    let (mut names, mut token, mut tokens) = (BTreeSet::new(), None::<String>, Tokens::default());
    loop {
        let send = |client: &Client| {
            let request = request(bucket, client, &within).delimiter("/");
            let request = request.set_continuation_token(token.clone());
            async { page(bucket, request).await }
        };
        let answer = bucket.attempts(Duration::ZERO, send).await?;
        let is_encoded = answer.encoding_type == Some(EncodingType::Url);
        let next = tokens.next(&answer)?;
        for folder in answer.common_prefixes.unwrap_or_default() {
            let path = folder.prefix.and_then(|path| if is_encoded { decoded(&path) } else { Some(path) });
            let name = path.as_deref().and_then(|path| path.strip_prefix(&within)?.strip_suffix('/'));
            names.extend(name.filter(|name| check_key(name).is_ok()).map(str::to_owned));
        }
        if names.len() > MOST_FOLDERS {
            return Err(S3Failure::lasting(format!("the folder has more than {MOST_FOLDERS} folders")));
        }
        match next {
            None => return Ok(names.into_iter().collect()),
            next => token = next,
        }
    }
}

/// Decodes a form-encoded key: `+` is a space, `%` and two hex digits a byte.
pub(crate) fn decoded(key: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?].map(char::from).map(|digit| digit.to_digit(16));
                u8::try_from(digits[0]? * 16 + digits[1]?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_decoded_like_form_data() {
        assert_eq!(decoded("a/b+c%2Bd%e4%bd%a0").as_deref(), Some("a/b c+d\u{4f60}"));
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decoded(bad), None, "{bad:?}");
        }
    }
}
