//! A bucket: its objects, and the S3 operations on them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::{Bound, Range};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use s3s::dto::{
    ChecksumMode, CommonPrefix, ETag, ETagCondition, EncodingType, GetObjectInput, GetObjectOutput,
    HeadObjectInput, HeadObjectOutput, ListObjectsV2Input, ListObjectsV2Output, Object as Listed,
    PutObjectInput, PutObjectOutput, StreamingBlob, Timestamp,
};
use s3s::{Body, S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use crate::mode::Order;

/// Handling of `If-Match` and `If-None-Match`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conditions {
    /// Conditions are honoured, as by S3.
    #[default]
    Kept,
    /// Conditions are ignored, as by old servers.
    Ignored,
    /// A write with a condition is answered `501 NotImplemented`; conditions of reads are honoured.
    Refused,
}

/// Objects of a bucket by key.
#[derive(Clone)]
pub(crate) struct Bucket {
    name: Arc<str>,
    conditions: Conditions,
    /// Maximum number of keys on one page of a listing.
    page: usize,
    order: Order,
    objects: Arc<Mutex<BTreeMap<String, Object>>>,
    versions: Arc<AtomicU64>,
}

/// A key with its object.
type Entry = (String, Object);

#[derive(Clone)]
struct Object {
    content: Content,
    size: u64,
    etag: String,
    modified: SystemTime,
}

#[derive(Clone)]
enum Content {
    Held { bytes: Bytes, crc32: String },
    File(PathBuf),
}

impl Bucket {
    pub(crate) fn new(name: &str, conditions: Conditions, page: usize, order: Order) -> Self {
        let name = Arc::from(name);
        Self { name, conditions, page, order, objects: Arc::default(), versions: Arc::default() }
    }

    /// A page of a listing that is in another order than that of S3. `token` is the number of keys before it.
    fn unsorted_page(&self, prefix: &str, token: Option<&str>, most: usize) -> (Vec<Entry>, Option<String>) {
        let mut found: Vec<Entry> = {
            let objects = self.objects();
            let found = objects.range::<String, _>((Bound::Included(prefix.to_owned()), Bound::Unbounded));
            let found = found.take_while(|(key, _)| key.starts_with(prefix));
            found.map(|(key, object)| (key.clone(), object.clone())).collect()
        };
        match self.order {
            Order::Reversed => found.reverse(),
            Order::Shuffled => found.sort_by_key(|(key, _)| crc32fast::hash(key.as_bytes())),
            Order::PagesReversed => {
                found = found.chunks(most).rev().flatten().cloned().collect();
            }
            Order::Sorted | Order::Repeated | Order::Endless | Order::CaseIgnored | Order::Utf16 => {}
        }
        let start: usize = token.and_then(|token| token.parse().ok()).unwrap_or_default();
        let from = if self.order == Order::Repeated { start.saturating_sub(1) } else { start };
        let end = found.len().min(start + most);
        let next = match end < found.len() {
            true => Some(end),
            false => (self.order == Order::Endless).then_some(0),
        };
        (found.drain(from.min(end)..end).collect(), next.map(|next| next.to_string()))
    }

    /// A page of a listing by a service that sorts keys in an order of its own.
    fn collated_page(
        &self,
        input: &ListObjectsV2Input,
        prefix: &str,
        after: Option<&str>,
        most: usize,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let objects = self.objects();
        let mut found: Vec<(Vec<u8>, &String, &Object)> = objects
            .iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .filter_map(|(key, object)| Some((self.order.collation(key)?, key, object)))
            .collect();
        found.sort_by(|one, other| one.0.cmp(&other.0));
        let after_in_order = after.and_then(|after| self.order.collation(after));
        let (mut contents, mut folders, mut last, mut next) = (Vec::new(), Vec::<&str>::new(), None, None);
        for (_, key, object) in found.iter().filter(|(place, ..)| after_in_order.as_ref() < Some(place)) {
            let slash = input.delimiter.as_ref().and_then(|delimiter| key[prefix.len()..].find(&**delimiter));
            let folder = slash.map(|at| &key[..=prefix.len() + at]);
            let is_listed = folder.is_some_and(|folder| {
                folders.last() == Some(&folder) || after.is_some_and(|after| after.starts_with(folder))
            });
            if !is_listed && contents.len() + folders.len() == most {
                next = last;
                break;
            }
            match folder {
                Some(folder) if !is_listed => folders.push(folder),
                Some(_) => {}
                None => contents.push(object.listed(encoded(key))?),
            }
            last = Some((*key).clone());
        }
        let folders = folders.into_iter().map(|folder| CommonPrefix { prefix: Some(encoded(folder)) });
        Ok(S3Response::new(ListObjectsV2Output {
            is_truncated: Some(next.is_some()),
            next_continuation_token: next,
            contents: Some(contents),
            common_prefixes: Some(folders.collect()),
            encoding_type: Some(EncodingType::from_static(EncodingType::URL)),
            ..ListObjectsV2Output::default()
        }))
    }

    /// Adds the current files below `root`.
    pub(crate) fn over_folder(self, root: &Path) -> io::Result<Self> {
        let bucket = self;
        let mut folders = vec![(root.to_owned(), String::new())];
        while let Some((folder, prefix)) = folders.pop() {
            for entry in std::fs::read_dir(&folder)? {
                let entry = entry?;
                let Ok(name) = entry.file_name().into_string() else { continue };
                let (path, key, found) = (entry.path(), format!("{prefix}{name}"), entry.metadata()?);
                if found.is_dir() {
                    folders.push((path, format!("{key}/")));
                } else if found.is_file() {
                    let (etag, modified) = (bucket.next_etag(), found.modified()?);
                    let object = Object { content: Content::File(path), size: found.len(), etag, modified };
                    bucket.objects().insert(key, object);
                }
            }
        }
        Ok(bucket)
    }

    pub(crate) fn put(&self, key: &str, bytes: Bytes) {
        let object = self.made(bytes);
        self.objects().insert(key.to_owned(), object);
    }

    /// Creates an object with these bytes.
    fn made(&self, bytes: Bytes) -> Object {
        let crc32 = BASE64_STANDARD.encode(crc32fast::hash(&bytes).to_be_bytes());
        let size = bytes.len() as u64;
        let content = Content::Held { bytes, crc32 };
        Object { content, size, etag: self.next_etag(), modified: SystemTime::now() }
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.objects().keys().cloned().collect()
    }

    /// Bytes of an object, if they are in memory.
    pub(crate) fn held(&self, key: &str) -> Option<Bytes> {
        match &self.objects().get(key)?.content {
            Content::Held { bytes, .. } => Some(bytes.clone()),
            Content::File(_) => None,
        }
    }

    /// Returns a new tag each time, so that clients notice a replaced object even if its content is equal.
    fn next_etag(&self) -> String {
        format!("version-{}", self.versions.fetch_add(1, Ordering::Relaxed))
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Object>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_name(&self, bucket: &str) -> S3Result<()> {
        if bucket == &*self.name {
            Ok(())
        } else {
            Err(s3_error!(NoSuchBucket, "The specified bucket does not exist"))
        }
    }

    fn find(&self, bucket: &str, key: &str, if_match: Option<&ETagCondition>) -> S3Result<Object> {
        self.check_name(bucket)?;
        let found = self.objects().get(key).cloned();
        let object = found.ok_or_else(|| s3_error!(NoSuchKey, "The specified key does not exist."))?;
        match if_match {
            Some(ETagCondition::ETag(wanted))
                if self.conditions != Conditions::Ignored && !wanted.strong_cmp(&object.etag()) =>
            {
                Err(unmet())
            }
            _ => Ok(object),
        }
    }
}

impl Object {
    fn etag(&self) -> ETag {
        ETag::Strong(self.etag.clone())
    }

    fn crc32(&self, mode: Option<&ChecksumMode>) -> Option<String> {
        match &self.content {
            Content::Held { crc32, .. }
                if mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED) =>
            {
                Some(crc32.clone())
            }
            _ => None,
        }
    }

    fn listed(&self, key: String) -> S3Result<Listed> {
        let (size, e_tag) = (Some(length(self.size)?), Some(self.etag()));
        Ok(Listed { key: Some(key), size, e_tag, ..Listed::default() })
    }

    async fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        match &self.content {
            Content::Held { bytes, .. } => Ok(bytes.slice(place(range.start)?..place(range.end)?)),
            Content::File(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || -> io::Result<Bytes> {
                    let mut bytes = BytesMut::zeroed(place(range.end - range.start)?);
                    File::open(path)?.read_exact_at(&mut bytes, range.start)?;
                    Ok(bytes.freeze())
                });
                read.await?
            }
        }
    }
}

#[async_trait::async_trait]
impl S3 for Bucket {
    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        let object = self.find(&input.bucket, &input.key, input.if_match.as_ref())?;
        let range = input.range.map(|range| range.check(object.size)).transpose()?;
        let wanted = range.clone().unwrap_or(0..object.size);
        let bytes = object.read(wanted.clone()).await.map_err(S3Error::internal_error)?;
        let output = GetObjectOutput {
            content_length: Some(length(wanted.end - wanted.start)?),
            content_range: range
                .map(|range| format!("bytes {}-{}/{}", range.start, range.end - 1, object.size)),
            body: Some(StreamingBlob::from(Body::from(bytes))),
            e_tag: Some(object.etag()),
            last_modified: Some(Timestamp::from(object.modified)),
            checksum_crc32: match wanted == (0..object.size) {
                true => object.crc32(input.checksum_mode.as_ref()),
                false => None,
            },
            ..GetObjectOutput::default()
        };
        Ok(S3Response::new(output))
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = request.input;
        let object = self.find(&input.bucket, &input.key, input.if_match.as_ref())?;
        let output = HeadObjectOutput {
            content_length: Some(length(object.size)?),
            e_tag: Some(object.etag()),
            last_modified: Some(Timestamp::from(object.modified)),
            ..HeadObjectOutput::default()
        };
        Ok(S3Response::new(output))
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let input = request.input;
        self.check_name(&input.bucket)?;
        let body = input.body.ok_or_else(|| s3_error!(IncompleteBody))?;
        let bytes: Result<BytesMut, _> = body.try_collect().await;
        let bytes = bytes.map_err(|error| S3Error::with_source(S3ErrorCode::IncompleteBody, error))?;
        if input.content_length.is_some_and(|said| length(bytes.len() as u64).ok() != Some(said)) {
            return Err(s3_error!(IncompleteBody));
        }
        let found = BASE64_STANDARD.encode(crc32fast::hash(&bytes).to_be_bytes());
        if input.checksum_crc32.is_some_and(|said| said != found) {
            return Err(s3_error!(BadDigest, "The checksum you specified did not match what we received."));
        }
        let must_be_new = match (input.if_none_match, self.conditions) {
            (Some(_), Conditions::Refused) => {
                return Err(s3_error!(
                    NotImplemented,
                    "A header you provided implies what is not implemented"
                ));
            }
            (Some(ETagCondition::Any), Conditions::Kept) => true,
            _ => false,
        };
        let object = self.made(bytes.freeze());
        let etag = object.etag();
        let mut objects = self.objects();
        if must_be_new && objects.contains_key(&input.key) {
            return Err(unmet());
        }
        objects.insert(input.key, object);
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(etag), ..PutObjectOutput::default() }))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        self.check_name(&input.bucket)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = input.continuation_token.as_ref().or(input.start_after.as_ref());
        let most =
            input.max_keys.and_then(|most| usize::try_from(most).ok()).unwrap_or(self.page).min(self.page);
        if self.order.collation("").is_some() {
            return self.collated_page(&input, &prefix, after.map(String::as_str), most);
        }
        if self.order != Order::Sorted && input.delimiter.is_none() {
            let token = input.continuation_token.as_deref();
            let (page, next) = self.unsorted_page(&prefix, token, most);
            return Ok(S3Response::new(ListObjectsV2Output {
                is_truncated: Some(next.is_some()),
                next_continuation_token: next,
                contents: Some(
                    page.iter().map(|(key, object)| object.listed(encoded(key))).collect::<S3Result<_>>()?,
                ),
                encoding_type: Some(EncodingType::from_static(EncodingType::URL)),
                ..ListObjectsV2Output::default()
            }));
        }
        let start = match after {
            Some(after) if *after >= prefix => Bound::Excluded(after.clone()),
            _ => Bound::Included(prefix.clone()),
        };
        let objects = self.objects();
        let mut found = objects.range::<String, _>((start, Bound::Unbounded));
        let mut page: Vec<(&String, &Object)> = Vec::new();
        let mut folders: Vec<&str> = Vec::new();
        let mut is_truncated = false;
        while let Some((key, object)) = found.next().filter(|(key, _)| key.starts_with(&prefix)) {
            if page.len() + folders.len() == most {
                is_truncated = true;
                break;
            }
            let slash = input.delimiter.as_ref().and_then(|delimiter| key[prefix.len()..].find(&**delimiter));
            match slash {
                None => page.push((key, object)),
                Some(at) => {
                    let folder = &key[..=prefix.len() + at];
                    folders.push(folder);
                    // No key of the folder is greater.
                    let end = Bound::Excluded(format!("{folder}{}", char::MAX));
                    found = objects.range::<String, _>((end, Bound::Unbounded));
                }
            }
        }
        let last = page.last().map(|(key, _)| (*key).clone());
        let last_folder = folders.last().map(|folder| format!("{folder}{}", char::MAX));
        let is_encoded = input.encoding_type.as_ref().is_some_and(|kind| kind.as_str() == EncodingType::URL);
        let contents: S3Result<Vec<Listed>> = page
            .iter()
            .map(|(key, object)| object.listed(if is_encoded { encoded(key) } else { (*key).clone() }))
            .collect();
        let output = ListObjectsV2Output {
            key_count: i32::try_from(page.len() + folders.len()).ok(),
            next_continuation_token: match is_truncated {
                true => last.max(last_folder),
                false => None,
            },
            is_truncated: Some(is_truncated),
            contents: Some(contents?),
            common_prefixes: Some(
                folders
                    .iter()
                    .map(|folder| CommonPrefix {
                        prefix: Some(if is_encoded { encoded(folder) } else { (*folder).to_owned() }),
                    })
                    .collect(),
            ),
            delimiter: input.delimiter,
            name: Some(input.bucket),
            prefix: Some(prefix),
            encoding_type: input.encoding_type,
            continuation_token: input.continuation_token,
            ..ListObjectsV2Output::default()
        };
        Ok(S3Response::new(output))
    }
}

fn unmet() -> S3Error {
    s3_error!(PreconditionFailed, "At least one of the pre-conditions you specified did not hold")
}

fn length(size: u64) -> S3Result<i64> {
    i64::try_from(size).map_err(S3Error::internal_error)
}

fn place(offset: u64) -> io::Result<usize> {
    usize::try_from(offset).map_err(io::Error::other)
}

/// Encodes a key as S3 does in a listing with `encoding-type=url`: a blank becomes `+`.
fn encoded(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'/' | b'*' => {
                text.push(char::from(byte))
            }
            b' ' => text.push('+'),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
