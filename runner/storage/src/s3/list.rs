//! Lists a bucket page by page.

use std::collections::BTreeSet;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::types::EncodingType;
use penstock_types::left_out::LeftOutReason;

use crate::key::check_key;
use crate::keys::Keys;
use crate::s3::bucket::Bucket;
use crate::s3::failure::S3Failure;

/// Maximum number of consecutive responses without a key. A service may send a few of them while it skips deleted keys; the limit
/// ends a listing in which all responses are empty.
const MOST_EMPTY: u32 = 1000;

/// Maximum number of folders directly in one folder.
const MOST_FOLDERS: usize = 1 << 20;

pub(crate) struct Listing {
    /// Prefix of the keys in the bucket, including the store's prefix.
    prefix: String,
    next: Next,
    /// The last key received, or the one after which the listing starts; also detects a service that does not sort.
    last: String,
    /// First key that is not listed.
    pub(crate) end: Option<String>,
    /// Number of consecutive responses without a key.
    empty: u32,
}

enum Next {
    First,
    After(String),
    None,
}

impl Listing {
    pub(crate) fn new(bucket: &Bucket, prefix: &str) -> Self {
        Self::between(bucket.full(prefix), String::new(), None)
    }

    /// Keys that start with `prefix`, of the bucket, behind `after` and before `end`.
    pub(crate) fn between(prefix: String, after: String, end: Option<String>) -> Self {
        Self { prefix, next: Next::First, last: after, end, empty: 0 }
    }

    /// Prefix of the keys in the bucket.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The last key received; `None` if no key follows it.
    pub(crate) fn last(&self) -> Option<&str> {
        matches!(self.next, Next::After(_)).then_some(&self.last)
    }

    /// Returns the next keys in order, possibly none; `None` at the end of the listing.
    pub(crate) async fn next_page(&mut self, bucket: &Bucket) -> Result<Option<Keys>, S3Failure> {
        let token = match &self.next {
            Next::First => None,
            Next::After(token) => Some(token.clone()),
            Next::None => return Ok(None),
        };
        let request = |client: &Client| {
            let request = client.list_objects_v2().bucket(bucket.name()).prefix(&self.prefix);
            // Keys are requested URL-encoded, because a key may contain characters that are not valid in XML.
            let request = request.set_continuation_token(token.clone()).encoding_type(EncodingType::Url);
            let request = request.set_request_payer(bucket.payer());
            let after = Some(self.last.clone()).filter(|after| token.is_none() && !after.is_empty());
            let request = request.set_start_after(after);
            async { bucket.answer(request.send()).await }
        };
        let answer = bucket.attempts(Duration::ZERO, request).await?;
        let is_encoded = answer.encoding_type == Some(EncodingType::Url);
        let objects = answer.contents.unwrap_or_default();
        self.empty = if objects.is_empty() { self.empty + 1 } else { 0 };
        let next =
            next_token(answer.is_truncated, answer.next_continuation_token, token.as_ref(), self.empty)?;
        self.next = next.map_or(Next::None, Next::After);
        let mut page = Keys::default();
        for object in objects {
            let key = object.key.unwrap_or_default();
            let key = if is_encoded { decoded(&key) } else { Some(key) };
            if self.end.is_some() && key >= self.end {
                self.next = Next::None;
                break;
            }
            self.add(bucket, &mut page, key)?;
        }
        Ok(Some(page))
    }

    fn add(&mut self, bucket: &Bucket, page: &mut Keys, key: Option<String>) -> Result<(), S3Failure> {
        let Some(key) = key else {
            page.leave_out(LeftOutReason::Name, None);
            return Ok(());
        };
        if key <= self.last && !self.last.is_empty() {
            return Err(S3Failure::lasting("the service does not list keys in byte order, as S3 does"));
        }
        match key.strip_prefix(bucket.prefix()) {
            // An object that a console created to represent a folder.
            Some(folder) if folder.is_empty() || folder.ends_with('/') => {}
            Some(own) if key.starts_with(&self.prefix) && check_key(own).is_ok() => page.push(own),
            Some(own) => page.leave_out(LeftOutReason::Name, Some(own)),
            None => page.leave_out(LeftOutReason::Name, None),
        }
        self.last = key;
        Ok(())
    }
}

/// Token of the next response; `None` behind the last one. `empty` consecutive responses had no keys.
fn next_token(
    is_truncated: Option<bool>,
    next: Option<String>,
    before: Option<&String>,
    empty: u32,
) -> Result<Option<String>, S3Failure> {
    if is_truncated != Some(true) {
        return Ok(None);
    }
    if empty >= MOST_EMPTY {
        return Err(S3Failure::lasting(format!(
            "the listing is truncated, but the last {MOST_EMPTY} responses had no keys"
        )));
    }
    match next.filter(|next| Some(next) != before) {
        None => {
            Err(S3Failure::lasting("the listing is truncated, but the response has no continuation token"))
        }
        next => Ok(next),
    }
}

/// Names of the folders directly in `folder`, sorted by their bytes. Each has an object, which may be one that a console created to
/// represent the folder.
pub(crate) async fn folders(bucket: &Bucket, folder: &str) -> Result<Vec<String>, S3Failure> {
    let within = bucket.full(folder);
    let (mut names, mut token, mut empty) = (BTreeSet::new(), None::<String>, 0);
    loop {
        let request = |client: &Client| {
            let request = client.list_objects_v2().bucket(bucket.name()).prefix(&within).delimiter("/");
            let request = request.set_continuation_token(token.clone()).encoding_type(EncodingType::Url);
            let request = request.set_request_payer(bucket.payer());
            async { bucket.answer(request.send()).await }
        };
        let answer = bucket.attempts(Duration::ZERO, request).await?;
        let is_encoded = answer.encoding_type == Some(EncodingType::Url);
        let (folders, objects) = (answer.common_prefixes.unwrap_or_default(), answer.contents);
        let is_empty = folders.is_empty() && objects.unwrap_or_default().is_empty();
        empty = if is_empty { empty + 1 } else { 0 };
        for folder in folders {
            let path = folder.prefix.and_then(|path| if is_encoded { decoded(&path) } else { Some(path) });
            let name = path.as_deref().and_then(|path| path.strip_prefix(&within)?.strip_suffix('/'));
            names.extend(name.filter(|name| check_key(name).is_ok()).map(str::to_owned));
        }
        if names.len() > MOST_FOLDERS {
            return Err(S3Failure::lasting(format!("the folder has more than {MOST_FOLDERS} folders")));
        }
        match next_token(answer.is_truncated, answer.next_continuation_token, token.as_ref(), empty)? {
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
